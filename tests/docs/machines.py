"""The transitions of two state machines, found by trying every event in every reachable state.

Both machines are pure: the plan of a supervisor (`actors/_plan.py`) and the ownership of a keyed
shard (`backends/_ownership.py`). An event that leads from one named state into another is a rung of
the picture; what leads back into the same one is not drawn.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence

from shove_actors.actors import Backoff, Crashed, Intensity, Restart, Returned, Strategy
from shove_actors.actors._plan import PlanState, begin, decide
from shove_actors.actors._plan_types import (
    Add,
    ChildDown,
    ChildRejected,
    ChildUp,
    FailStart,
    GiveUp,
    Phase,
    PlanEvent,
    PlanSlot,
    Remove,
    Tick,
)
from shove_actors.backends import _margins as margins
from shove_actors.backends._owner_record import OwnerRecord
from shove_actors.backends._ownership import Ownership, Step

from .svg import Rung

# --------------------------------------------------------------------- a supervised child

GIVES_UP = "(gives up)"
TURN = "its turn to start"
PHASES = [*(phase.value for phase in Phase), GIVES_UP]
CHILD, OTHERS = "child", ("second", "third")
PAUSE = Backoff(initial_s=1, max_s=1)
ERROR = RuntimeError()


def events(restart: Restart) -> Iterator[tuple[str, PlanEvent]]:
    """Everything that can be told to a plan about the child, and what of the other concerns it."""
    for other in OTHERS:
        yield TURN, ChildUp(id=other)
        yield "another of its group crashes", ChildDown(id=other, exit=Crashed(error=ERROR))
    yield "its pause is over", Tick()
    yield "ctx.started()", ChildUp(id=CHILD)
    yield "ends before ctx.started()", ChildRejected(id=CHILD, error=ERROR)
    kind = restart.value
    yield f"returns; {kind}", ChildDown(id=CHILD, exit=Returned())
    yield f"crashes; {kind}", ChildDown(id=CHILD, exit=Crashed(error=ERROR))
    yield "is removed", Remove(id=CHILD)


def child_rungs() -> list[Rung]:
    """Every change of phase, with what makes it, in the order of the phases."""
    found: dict[tuple[str, str, str], None] = {}
    for restart in Restart:
        for state in beginnings(restart):
            explore(state, restart, found)
    merged: dict[tuple[str, str, str], list[str]] = {}
    for label, start, end in found:
        what, _, note_ = label.partition("; ")
        merged.setdefault((what, start, end), []).append(note_)
    rungs = [
        Rung(label=what, start=start, end=end, note=summary(notes))
        for (what, start, end), notes in merged.items()
    ]
    return sorted(rungs, key=lambda r: (PHASES.index(r.start), PHASES.index(r.end), r.label))


def summary(notes: list[str]) -> str:
    """`permanent; no restart left` and `transient; no restart left` in one."""
    kinds: dict[str, list[str]] = {}
    for text in filter(None, notes):
        kind, _, why = text.partition("; ")
        kinds.setdefault(why, []).append(kind)
    return "; ".join(", ".join(kind) + (f": {why}" if why else "") for why, kind in kinds.items())


def beginnings(restart: Restart) -> Iterator[PlanState]:
    """With a pause before a restart, in a group that falls together, and in a pool."""
    child = PlanSlot(id=CHILD, restart=restart, backoff=PAUSE)
    budget = Intensity(max_restarts=2, period_s=10)
    others = [PlanSlot(id=other) for other in OTHERS]
    for group in ([child, *others], [*others, child]):
        yield begin(group, strategy=Strategy.ONE_FOR_ALL, intensity=budget)
    pool, _ = decide(begin([], strategy=None, intensity=budget), Tick(), 0.0)
    yield decide(pool, Add(slot=child), 0.0)[0]


def explore(state: PlanState, restart: Restart, found: dict[tuple[str, str, str], None]) -> None:
    """All states that a few events reach; each change of the child's phase goes into `found`."""
    todo, seen = [(decide(state, Tick(), 0.0)[0], 0.0, 0)], set[str]()
    note(found, TURN, state, todo[0][0])
    while todo:
        at, now, depth = todo.pop()
        if depth == 12 or repr(at) in seen or at.over:
            continue
        seen.add(repr(at))
        for label, event in events(restart):
            if not possible(at, event):
                continue
            later = now + PAUSE.max_s if isinstance(event, Tick) else now
            after, actions = decide(at, event, later)
            over = next((a for a in actions if isinstance(a, (GiveUp, FailStart))), None)
            if over is not None and over.id == CHILD and label != TURN:
                why = "at the first start" if isinstance(over, FailStart) else "no restart left"
                found[(f"{label}; {why}", at.slots[CHILD].phase.value, GIVES_UP)] = None
            else:
                note(found, label, at, after)
            todo.append((after, later, depth + 1))


def possible(state: PlanState, event: PlanEvent) -> bool:
    """Whether the supervisor could be told this now."""
    if isinstance(event, Tick):
        return state.wake_at is not None
    slot = state.slots.get(event.id) if not isinstance(event, Add) else None
    if slot is None or (isinstance(event, Remove) and state.strategy is not None):
        return False
    if isinstance(event, Remove):
        return True
    if isinstance(event, ChildDown):
        told = any(d.id == event.id for d in state.deferred)
        return not told and slot.phase in (Phase.UP, Phase.DOOMED, Phase.STOPPING)
    return slot.phase is Phase.STARTING


def note(
    found: dict[tuple[str, str, str], None], label: str, before: PlanState, after: PlanState
) -> None:
    start = before.slots[CHILD].phase if CHILD in before.slots else None
    end = after.slots[CHILD].phase if CHILD in after.slots else Phase.ENDED
    if start is not None and start is not end:
        if start is Phase.UP and label == TURN:
            return  # it had crashed before, which is only now looked at
        if start is Phase.STARTING and end is Phase.STOPPING:
            label += "; removed meanwhile"
        elif start is Phase.STARTING and end is Phase.ENDED:
            label += "; at the first start, in a pool"
        elif start is Phase.STOPPING:
            label = "has ended"
        elif start is Phase.DOOMED:
            label = "its turn to stop" if end is Phase.STOPPING else "ends before its turn"
        elif start is Phase.DOWN and end is Phase.STARTING and label != "its pause is over":
            label = TURN
        found[(label, start.value, end.value)] = None


# --------------------------------------------------------------- ownership of a keyed shard

STANDBY, TAKING, READING, OWNER, LEAVING = "standing by", "taking", "rewinding", "owner", "leaving"
OWNER_STATES = [STANDBY, TAKING, READING, OWNER, LEAVING]
LEASE = 10.0
#: Ids that the server may have given us. Which of the two it is makes no difference.
PINS = ("pin-1", "pin-2")
Change = Callable[[Ownership, float], None]
Move = tuple[str, Change]


def named(machine: Ownership) -> str:
    if machine.leaving:
        return LEAVING
    if machine.owns:
        return READING if machine._rewind or machine._awaits_first else OWNER
    return STANDBY if machine.pin is None or not machine.wanted or machine._unpin else TAKING


def happenings(machine: Ownership) -> Iterator[Move]:
    """What can happen to it that it has not asked for."""

    def arrives(count: int, pin: str = machine.pin or PINS[0]) -> Change:
        return lambda m, now: void(m.arrived(pin, count, m.last + 1, in_hand=False, now=now))

    if machine.pulls and not machine.owns:
        yield "a message comes: we are pinned", arrives(1)
    elif machine.pulls:
        if machine._awaits_first:
            yield "delivery number 1 comes", arrives(1)
        elif machine.pin is not None:
            yield "the next delivery comes", arrives(machine._expected)
        yield "a delivery is missing in the count", arrives(machine._expected + 1)
        yield "pinned anew", arrives(1, PINS[machine.pin == PINS[0]])
    if machine.pin is not None:
        yield "the pull is refused: the pin has moved", lambda m, now: m.refused(now)
    yield "not wanted here any more", lambda m, now: m.leave()
    yield "the connection is lost", lambda m, now: m.disconnected()
    yield "the durable is another one", lambda m, now: m.recreated()
    share = margins.CANCEL_SHARE
    yield f"lease not renewed for {share:g} x ack_wait", lambda m, now: lapse(m)


def void(_: object) -> None:
    """Only what the machine remembers is looked at."""


def lapse(machine: Ownership) -> None:
    if machine.owns:
        machine.lapsed(machine.lapses_at)


def answers(machine: Ownership, step: Step) -> Iterator[Move]:
    """What the server can answer to a request."""
    other = OwnerRecord(owner="other")
    revision = machine.revision
    if step is Step.READ:
        mine = machine.record if machine.owns else None
        yield "the record is free", lambda m, now: m.read(mine, revision, now)
        yield "the record is somebody else's", lambda m, now: m.read(other, 2, now)
    elif step is Step.LOOK:
        yield "nobody is pinned", lambda m, now: m.looked(None, 0, 0, now)
        yield "pinned to us", lambda m, now: m.looked(m.pin, 0, 0, now)
        yield "somebody else is pinned", lambda m, now: m.looked("pin-3", 0, 0, now)
    elif step in (Step.CLAIM, Step.RENEW, Step.RELEASE):
        what = {Step.CLAIM: "claimed", Step.RENEW: "renewed", Step.RELEASE: "handed on"}[step]
        yield f"{what}: the record is written", lambda m, now: m.wrote(step, 1, now, now)
        yield "somebody else has written", lambda m, now: m.wrote(step, None, now, now)
    elif step is Step.REWIND:
        yield "rewound", lambda m, now: m.rewound(now)
    else:
        yield "unpinned", lambda m, now: m.unpinned()
    yield "no answer", lambda m, now: m.failed(step, now)


def moves(machine: Ownership, now: float) -> Iterator[tuple[str, float, Ownership]]:
    """Each thing that can happen next: what, when, and the machine after it."""
    for label, change in happenings(machine):
        after = copy.copy(machine)
        change(after, now)
        yield label, now, after
    asked = copy.copy(machine)
    step, wake = asked.next(now, 0)
    if step is None and not math.isinf(wake):
        now = wake
        step, _ = asked.next(now, 0)
    if step is not None:
        for label, change in answers(asked, step):
            after = copy.copy(asked)
            change(after, now)
            yield label, now, after


def owner_rungs() -> list[Rung]:
    """Every change of state, with what makes it, in the order of the states."""
    found: dict[tuple[str, str, str], None] = {}
    todo: list[tuple[Ownership, float]] = [(Ownership("we", LEASE), 100.0)]
    seen: set[tuple[object, ...]] = set()
    while todo:
        machine, now = todo.pop(0)
        key = fingerprint(machine, now)
        if key in seen:
            continue
        seen.add(key)
        for label, later, after in moves(machine, now):
            start, end = named(machine), named(after)
            if start != end:
                found[(label, start, end)] = None
            todo.append((after, later))
    return ordered(found, OWNER_STATES)


def fingerprint(machine: Ownership, now: float) -> tuple[object, ...]:
    """What decides about what happens next: times only by whether they have come."""
    record = machine.record
    kept: list[object] = [machine.pin is None, record and (record.owner, record.handed_on)]
    for name, value in sorted(vars(machine).items()):
        if isinstance(value, bool):
            kept.append(value)
        elif isinstance(value, float) and name != "lease_s":
            kept.append(value if math.isinf(value) else value <= now)
    return tuple(kept)


def ordered(found: dict[tuple[str, str, str], None], states: Sequence[str]) -> list[Rung]:
    rungs = [Rung(label=label, start=start, end=end) for label, start, end in found]
    return sorted(rungs, key=lambda r: (states.index(r.start), states.index(r.end), r.label))
