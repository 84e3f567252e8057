"""A supervisor and its children without Trio: `decide`, and children that are notes on paper.

`PlanWorld` knows what the plan does not decide: what a child that is asked, cancelled or out of
time does, and the ordered stop. It checks on the way what must hold whatever happens.

Reports of children reach the plan in one of two ways. *Held*, they lie in a queue until `deliver`
hands over the first one, so that exits, requests and time come between in every order. *Led*, they
are handed over at once, in the order in which a real run saw them (`lead`): which of two children
that end in the same instant is heard first is the scheduler's choice, and the plan must go on from
there as the supervisor did. Everything else the plan foretells, and the real run must agree.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import replace

from supervisor_child import (
    DRAWS,
    PERIOD_S,
    Child,
    Fact,
    Seen,
    Setup,
    Traits,
    chain,
)
from supervisor_paper import GROUPS, PaperChildren, Report

from shove_actors.actors import (
    AutoShutdown,
    Crashed,
    Restart,
    Returned,
    State,
)
from shove_actors.actors._plan import PlanState, begin, decide
from shove_actors.actors._plan_types import (
    Add,
    ChildDown,
    ChildRejected,
    ChildUp,
    Delay,
    FailStart,
    Finish,
    Forget,
    GiveUp,
    Phase,
    PlanAction,
    PlanEvent,
    PlanSlot,
    Ready,
    Refuse,
    Remove,
    StartChild,
    StopChild,
    Tick,
)


class PlanWorld(PaperChildren):
    """The plan, its children and its clock."""

    def __init__(self, setup: Setup, *, held: bool) -> None:
        self.setup = setup
        self.held = held
        self.now = 0.0
        self.dynamic = setup.strategy is None
        self.children = {id_: Child(id_, traits) for id_, traits in setup.named().items()}
        self.state: PlanState = begin(
            [_plan_slot(child) for child in self.children.values()],
            strategy=setup.strategy,
            intensity=setup.intensity,
            auto_shutdown=AutoShutdown.NEVER if self.dynamic else setup.auto,
        )
        self.ready = False
        self.final: PlanAction | None = None
        self.stopping = False
        self.ended = False
        self.hard = False
        self.stopped_early = False
        self.facts: list[Fact] = []
        self.late: list[str] = []
        self.killed: list[str] = []
        self.adds: dict[str, list[str] | None] = {}
        """What `start_child` has come to: None, ["ok"], or the error and its causes."""
        self.removes: dict[int, tuple[Child, str | None]] = {}
        self._due: list[Report] = []
        self.queue: deque[Report] = deque()
        self._seen: deque[Seen] = deque()
        self._asked: dict[tuple[str, int], float] = {}
        self._begun: Collection[tuple[str, int]] = ()
        self._not_begun: list[str] = []
        self._draws = 0
        self._cursor: list[Child] | None = None
        self._known_late: set[tuple[Child, int]] = set()
        self._stop_begun: set[Child] = set()
        self._graces: dict[str, float] = {}
        self._starts = 0
        self.restarts: list[float] = []

    # ------------------------------------------------------------------- what is done to it

    def lead(
        self, seen: Sequence[Seen], facts: Sequence[Fact], begun: Collection[tuple[str, int]]
    ) -> None:
        """The reports of the next operation, in the order in which a real run saw them."""
        if self.stopping:
            # Requests are not even put to a supervisor that is stopping.
            seen = [each for each in seen if each[0] not in ("add", "remove")]
        self._seen = deque(seen)
        self._asked = {(f[1], f[4]): f[3] for f in facts if f[0] == "asked"}
        self._begun = begun
        self._not_begun.clear()

    def begin(self) -> None:
        self._dispatch(Tick())
        self.flush()

    def start_ends(self, id_: str, how: str) -> None:
        child = self.children[id_]
        if how != "up":
            self._end(child, how)
            return
        child.said_started = True
        if not child.start_cancelled:
            # Otherwise Trio does not let it through, and it remains a start that is over.
            child.up = True
            child.start_due = math.inf
            child.state = State.RUNNING
            self._due.append(Report("up", child))

    def children_end(self, *ends: tuple[str, str]) -> None:
        """All in one turn: none of them is a consequence of another."""
        for id_, how in ends:
            self._end(self.children[id_], how, go_on=False)
        self._go_on_stopping()

    def add(self, id_: str, traits: Traits) -> None:
        if self.stopping:
            self.adds[id_] = ["ActorGone"]
            return
        self.adds[id_] = None
        self._graces.pop(id_, None)
        child = self.children[id_] = Child(id_, replace(traits, significant=False))
        self._due.append(Report("add", child))

    def give_up_add(self, id_: str) -> None:
        """The task in `start_child` is cancelled; its child must not stay behind."""
        del self.adds[id_]
        if not self.stopping:
            self._due.append(Report("remove", self.children[id_]))

    def remove(self, id_: str, grace_s: float | None, ticket: int) -> None:
        child = self.children[id_]
        if grace_s is not None:
            self._graces[id_] = grace_s
        over = child.state is State.ENDED  # in a pool that stops, and waits for others
        self.removes[ticket] = (child, type(child.last_exit).__name__ if over else None)
        if not self.stopping:
            self._due.append(Report("remove", child))

    def stop(self, how: str) -> None:
        self.stopped_early = how == "ask" and not self.ready
        self._begin_stop()

    def hard_stop(self) -> None:
        self.hard = True
        for child in list(self.children.values()):
            if child.in_grace:
                self._grace_over(child)
        self._begin_stop()

    def advance(self, seconds: float) -> None:
        """As the loop does: never past a timer without looking."""
        target = self.now + seconds
        while (due := self.next_deadline()) is not None and due <= target and not self.queue:
            self.now = max(self.now, due)
            wake_at = self.state.wake_at
            if not self.stopping and wake_at is not None and wake_at <= self.now:
                self._dispatch(Tick())
            for child in list(self.children.values()):
                self._timers(child)
            self.flush()
        self.now = target

    def next_deadline(self) -> float | None:
        times = [
            min(c.start_due, c.grace_due, c.overrun_due) for c in self.children.values() if c.alive
        ]
        if self.state.wake_at is not None and not self.stopping:
            times.append(self.state.wake_at)
        first = min(times, default=math.inf)
        return None if first == math.inf else first

    @property
    def outcome(self) -> list[str] | None:
        """How it has ended, as `TrioWorld.outcome`."""
        if not self.ended:
            return None
        if isinstance(self.final, GiveUp):
            last = self.final.exit
            cause = chain(last.error) if isinstance(last, Crashed) else []
            return ["RestartIntensityExceeded", *cause]
        if isinstance(self.final, FailStart):
            return chain(self.final.error)
        return ["StartFailed"] if self.stopped_early else ["returned"]

    # -------------------------------------------------------------------------- reports

    def flush(self) -> None:
        """Hand over what is to be reported: to the queue, or to the plan as the run has seen it."""
        if self.held:
            self.queue.extend(self._due)
            self._due.clear()
            return
        while self._due:
            report = self._next_seen()
            if report is None:
                break
            self._due.remove(report)
            self._hand_over(report)

    def assert_all_led(self) -> None:
        """After an operation: nothing happened that the plan did not foretell."""
        assert not self._seen, f"Trio also saw {list(self._seen)}"
        # A start that was ordered just before the stop is not carried out.
        assert self.stopping or not self._not_begun, f"Trio did not start {self._not_begun}"

    def deliver(self) -> None:
        self._hand_over(self.queue.popleft())
        self.flush()

    def _next_seen(self) -> Report | None:
        if not self._seen or self._seen[0][3] > self.now:
            # The start of a child that has failed is not reported any more once all is stopping.
            left = [
                r for r in self._due if not (self.stopping and r.word in ("rejected", "remove"))
            ]
            assert not left, f"Trio did not see {[(r.word, r.child.id) for r in left]}"
            self._due.clear()
            return None
        word, id_, exit_, _ = self._seen.popleft()
        for report in self._due:
            if (report.word, report.child.id) == (word, id_):
                wanted = type(report.exit).__name__ if word == "down" else ""
                assert wanted == exit_, f"{id_} ended as {exit_}, and should have as {wanted}"
                return report
        raise AssertionError(f"Trio saw {word} {id_}, out of {self._due}")

    def _hand_over(self, report: Report) -> None:
        child = report.child
        if report.word in ("down", "rejected"):
            draw = child.draw = DRAWS[self._draws % len(DRAWS)]
            self._draws += 1
        if self.stopping:
            if isinstance(report.exit, Crashed) and report.word == "down":
                self._late(child, self.stopping)
            return
        if report.word == "up":
            self._dispatch(ChildUp(id=child.id))
            if self.adds.get(child.id, ()) is None:
                self.adds[child.id] = ["ok"]
        elif report.word == "down":
            assert report.exit is not None
            self._dispatch(ChildDown(id=child.id, exit=report.exit, draw=draw))
        elif report.word == "rejected":
            error = self._start_error(child, report.exit)
            self._dispatch(ChildRejected(id=child.id, error=error, draw=draw))
        elif report.word == "add":
            self._dispatch(Add(slot=_plan_slot(child)))
        else:
            child.removed = True
            self._dispatch(Remove(id=child.id))

    # ---------------------------------------------------------------- what the plan answers

    def _dispatch(self, event: PlanEvent) -> None:
        before, slots = self.state, deepcopy(self.state.slots)
        state, actions = decide(before, event, self.now)
        assert before.slots == slots, "decide changed its input"
        assert decide(before, event, self.now) == (state, actions), "decide is not pure"
        self.state = state
        self._note_exit(event, before)
        # One decision may count several: that of the event, and those of exits put off till then.
        counted = state.window.times.count(self.now) - before.window.times.count(self.now)
        if counted:
            self.restarts += [self.now] * counted
            recent = [t for t in self.restarts if t >= self.now - PERIOD_S]
            exceeded = len(recent) > self.setup.budget
            assert exceeded is any(isinstance(a, GiveUp) for a in actions), "budget"
        for action in actions:
            assert self.final is None, "an action after the final one"
            self._carry_out(action)
        if self.final is not None:
            self._begin_stop()

    def _note_exit(self, event: PlanEvent, before: PlanState) -> None:
        if isinstance(event, ChildUp) and event.id in self.children:
            self.children[event.id].up_since = self.now
        if isinstance(event, ChildDown):
            child = self.children[event.id]
            kind = child.traits.restart
            # Stopped with its group, however it ended, it is part of that restart.
            by_itself = before.slots[event.id].phase is Phase.UP
            if by_itself and kind is not Restart.PERMANENT:
                child.done_with = kind is Restart.TEMPORARY or isinstance(event.exit, Returned)

    def _carry_out(self, action: PlanAction) -> None:
        if isinstance(action, (GiveUp, FailStart, Finish)):
            self.final = action
            self._check_final(action)
        elif isinstance(action, Ready):
            assert not self.ready
            assert self.dynamic or all(c.number for c in self.children.values())
            self.ready = True
        elif isinstance(action, StartChild):
            self._start(self.children[action.id])
        elif isinstance(action, StopChild):
            self._stop(self.children[action.id])
        elif isinstance(action, Forget):
            self._forget(self.children[action.id])
        elif isinstance(action, Delay):
            self._delay(self.children[action.id], action)
        else:
            assert isinstance(action, Refuse)
            assert self.dynamic
            if self.adds.get(action.id, ()) is None:
                self.adds[action.id] = chain(action.error)

    def _check_final(self, action: GiveUp | FailStart | Finish) -> None:
        if isinstance(action, FailStart):
            assert not self.ready
            assert self.children[action.id].number == 1, "tried again"
        if isinstance(action, Finish):
            significant = [c for c in self.children.values() if c.traits.significant]
            assert any(c.done_with for c in significant)
            if self.setup.auto is AutoShutdown.ALL:
                assert not any(c.alive for c in significant)

    def _start(self, child: Child) -> None:
        assert not child.alive, "two incarnations at once"
        assert not child.forgotten
        assert not child.removed
        assert not child.done_with, "restarted although its kind forbids it"
        assert self.now >= child.not_before, "started before its backoff was over"
        if child.traits.restart is Restart.TEMPORARY:
            assert child.number == 0
        if not self.dynamic:
            assert not any(c.under_way for c in self._living())
        if self.setup.strategy in GROUPS:
            for other, slot in self.state.slots.items():
                if other == child.id:
                    break
                assert slot.phase in (Phase.UP, Phase.ENDED)
        self._starts += 1
        child.began, child.epoch = self._starts, len(self.restarts)
        if self.held or (child.id, child.number + 1) in self._begun:
            child.start(self.now)
        else:
            child.state = State.STARTING
            self._not_begun.append(child.id)

    def _stop(self, child: Child) -> None:
        # It may have ended already, its report still on the way; or be starting still.
        if self.dynamic:
            assert child.removed
        else:
            assert self.setup.strategy in GROUPS, "others are no business of one_for_one"
            ids = list(self.children)
            after = [self.children[id_] for id_ in ids[ids.index(child.id) + 1 :]]
            assert not any(c.alive for c in after), "not the last one first"
        if child.up and child.alive:
            unasked = child.asked_at is None and child.killed_at is None
            if unasked and not self._pool_is_faster(child):
                self._stop_child(child, self._grace_of(child))
        elif child.starting and not child.start_cancelled:
            self._cancel_start(child)

    def _pool_is_faster(self, child: Child) -> bool:
        """In one turn with a removal the pool gives up: a race which grace the child is given."""
        given = self._asked.get((child.id, child.number))
        mine, pools = self._grace_of(child), self.setup.pool_grace_s
        return given is not None and given == pools != mine

    def _forget(self, child: Child) -> None:
        assert not child.forgotten
        assert not child.alive
        child.forgotten = True
        self._over_with(child)
        if self.dynamic:
            del self.children[child.id]
            self._graces.pop(child.id, None)
            if self.adds.get(child.id, ()) is None:
                self.adds[child.id] = ["ActorGone"]

    def _delay(self, child: Child, action: Delay) -> None:
        backoff = child.traits.backoff
        assert backoff is not None
        lived = self.now - child.up_since if child.up else 0.0
        healthy = lived >= (backoff.initial_s + backoff.max_s) / 2
        child.failures = 1 if healthy else child.failures + 1
        pause = min(backoff.max_s, backoff.initial_s * 2.0 ** (child.failures - 1))
        pause = min(backoff.max_s, pause * (1 + backoff.jitter * child.draw))
        assert (action.failures, action.delay_s) == (child.failures, pause)
        child.not_before = self.now + pause
        child.state = State.BACKOFF
        self.facts.append(("backing off", child.id, self.now, pause, child.failures))

    def _living(self) -> list[Child]:
        return [child for child in self.children.values() if child.alive]


def _plan_slot(child: Child) -> PlanSlot:
    return PlanSlot(
        id=child.id,
        restart=child.traits.restart,
        significant=child.traits.significant,
        backoff=child.traits.backoff,
    )
