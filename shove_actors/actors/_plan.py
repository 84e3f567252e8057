"""What a supervisor decides: a pure function of (state, event, now). No trio, no clock, no dice.

The supervisor's loop feeds one event at a time into `decide` and carries the actions out. Random
draws for jitter travel inside events, so the same events always give the same decisions.

Each slot is in one phase:

    NEW ──start──> STARTING ──> UP ──crash──> DOWN (until not_before) ──start──> STARTING ...
                                 │                ▲
                                 └─> DOOMED ─> STOPPING   (a sibling's crash, or a removal)
                                 └─> ENDED                (for good)

A *static* plan does one thing at a time, in this order of preference: finish what is under way,
stop the doomed (last first), start what is due (first first), and only then look at the next
exit. Exits that come meanwhile wait in `deferred`. That order is OTP's, and two rules depend on
it: a budget counts restarts one by one (ten children that crash at start under a budget of three
make exactly thirteen starts, check 12), and a child that dies while its group is being restarted
is part of that restart, not another one.

Waiting for a backoff is not "under way": exits, removals and other slots' timers are served.
Under rest_for_one and one_for_all a slot starts only when all before it are up or have ended, so
followers wait behind a leader in backoff without a timer of their own.

A *dynamic* plan (`strategy=None`) has independent children: every stop and every due start is
ordered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ._exit import Crashed, Exit, Returned, Stopped
from ._intensity import Intensity, RestartWindow
from ._plan_types import (
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
from ._spec import AutoShutdown, Restart, Strategy


@dataclass(frozen=True, kw_only=True)
class PlanState:
    """Everything a supervisor remembers for its decisions. `slots` is never changed in place."""

    slots: dict[str, PlanSlot]
    strategy: Strategy | None
    window: RestartWindow
    auto_shutdown: AutoShutdown = AutoShutdown.NEVER
    ready: bool = False
    over: bool = False
    deferred: tuple[ChildDown, ...] = ()
    wake_at: float | None = field(default=None)
    """When the next `Tick` is due (None: no slot waits for time)."""


def begin(
    slots: Sequence[PlanSlot],
    *,
    strategy: Strategy | None,
    intensity: Intensity,
    auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
) -> PlanState:
    """The state before the first `Tick`. `strategy=None` is a dynamic supervisor."""
    return PlanState(
        slots={slot.id: slot for slot in slots},
        strategy=strategy,
        window=RestartWindow(intensity=intensity),
        auto_shutdown=auto_shutdown,
    )


def decide(
    state: PlanState, event: PlanEvent, now: float
) -> tuple[PlanState, tuple[PlanAction, ...]]:
    """The next state and what to do, in order. After a final action nothing more comes."""
    if state.over:
        return state, ()
    step = _Step(state, now)
    step.apply(event)
    step.advance()
    return step.result()


def restarts(restart: Restart, exit_: Exit) -> bool:
    """Whether a child of this kind is started again after an exit nobody asked for."""
    if restart is Restart.PERMANENT:
        return True
    return restart is Restart.TRANSIENT and not isinstance(exit_, (Returned, Stopped))


class _Step:
    """One call of `decide`: a working copy of the state and the actions so far."""

    def __init__(self, state: PlanState, now: float) -> None:
        self._state = state
        self._now = now
        self._slots = dict(state.slots)
        self._window = state.window
        self._ready = state.ready
        self._over = False
        self._deferred = list(state.deferred)
        self._actions: list[PlanAction] = []

    def result(self) -> tuple[PlanState, tuple[PlanAction, ...]]:
        state = replace(
            self._state,
            slots=self._slots,
            window=self._window,
            ready=self._ready,
            over=self._over,
            deferred=tuple(self._deferred),
            wake_at=None if self._over else self._wake_at(),
        )
        return state, tuple(self._actions)

    # -------------------------------------------------------------------------- events

    def apply(self, event: PlanEvent) -> None:
        if isinstance(event, Tick):
            return
        if isinstance(event, Add):
            self._slots[event.slot.id] = event.slot
            return
        slot = self._slots.get(event.id)
        if slot is None:
            return
        if isinstance(event, Remove):
            self._remove(slot)
        elif isinstance(event, ChildUp):
            self._set(
                slot,
                phase=Phase.DOOMED if slot.leaving else Phase.UP,
                fresh=False,
                up_since=self._now,
            )
        elif isinstance(event, ChildRejected):
            self._rejected(slot, event)
        elif slot.phase in (Phase.DOOMED, Phase.STOPPING):
            self._stopped(slot)
        elif self._dynamic or self._idle:
            self._down(slot, event)
        else:
            self._deferred.append(event)

    def _remove(self, slot: PlanSlot) -> None:
        if slot.phase in (Phase.NEW, Phase.DOWN):
            self._end(slot)
            return
        if slot.phase is Phase.STARTING and not slot.leaving:
            self._actions.append(StopChild(id=slot.id))
        phase = Phase.DOOMED if slot.phase is Phase.UP else slot.phase
        self._set(slot, phase=phase, leaving=True)

    def _rejected(self, slot: PlanSlot, event: ChildRejected) -> None:
        if slot.leaving:
            if slot.fresh:
                self._actions.append(Refuse(id=slot.id, error=event.error))
            self._end(slot)
        elif not slot.fresh:
            self._crash(slot, Crashed(error=event.error), lived_s=0.0, draw=event.draw)
        elif self._dynamic:
            self._actions.append(Refuse(id=slot.id, error=event.error))
            self._end(slot)
        else:
            self._final(FailStart(id=slot.id, error=event.error))

    def _down(self, slot: PlanSlot, event: ChildDown) -> None:
        if restarts(slot.restart, event.exit):
            self._crash(slot, event.exit, lived_s=self._now - slot.up_since, draw=event.draw)
        else:
            self._ended_by_itself(slot)

    def _stopped(self, slot: PlanSlot) -> None:
        if slot.leaving:
            self._end(slot)
        else:
            self._set(slot, phase=Phase.DOWN)

    # ---------------------------------------------------------------------- decisions

    def _crash(self, slot: PlanSlot, exit_: Exit, *, lived_s: float, draw: float) -> None:
        self._window = self._window.record(self._now)
        if self._window.exceeded:
            self._set(slot, phase=Phase.DOWN)
            self._final(GiveUp(id=slot.id, exit=exit_))
            return
        failures, delay_s = slot.failures + 1, 0.0
        if slot.backoff is not None:
            if lived_s >= slot.backoff.quiet_s:
                failures = 1
            delay_s = slot.backoff.delay_s(failures, draw)
        not_before = self._now + delay_s
        self._set(slot, phase=Phase.DOWN, failures=failures, not_before=not_before)
        if delay_s:
            self._actions.append(Delay(id=slot.id, delay_s=delay_s, failures=failures))
        for other in self._group_of(slot):
            if self._over:
                # One of them, significant, had ended by itself: the rest is the ordered stop's.
                return
            self._drag_down(other, not_before)

    def _group_of(self, slot: PlanSlot) -> list[PlanSlot]:
        """The others that go down with `slot`, in start order."""
        if self._state.strategy is Strategy.ONE_FOR_ALL:
            return [other for other in self._slots.values() if other.id != slot.id]
        if self._state.strategy is Strategy.REST_FOR_ONE:
            ids = list(self._slots)
            return [self._slots[id_] for id_ in ids[ids.index(slot.id) + 1 :]]
        return []

    def _drag_down(self, slot: PlanSlot, not_before: float) -> None:
        if slot.phase is Phase.ENDED:
            return
        slot = self._set(slot, not_before=max(slot.not_before, not_before))
        if slot.phase is not Phase.UP:
            return
        # It may have died by itself a moment ago: then it is down already, and not counted.
        for event in self._deferred:
            if event.id == slot.id:
                self._deferred.remove(event)
                if restarts(slot.restart, event.exit):
                    self._set(slot, phase=Phase.DOWN)
                else:
                    self._ended_by_itself(slot)
                return
        self._set(slot, phase=Phase.DOOMED, leaving=slot.restart is Restart.TEMPORARY)

    def _ended_by_itself(self, slot: PlanSlot) -> None:
        self._end(slot)
        rule = self._state.auto_shutdown
        if not slot.significant or rule is AutoShutdown.NEVER or self._over:
            return
        left = any(s.significant and s.phase is not Phase.ENDED for s in self._slots.values())
        if rule is AutoShutdown.ANY or not left:
            self._final(Finish())

    def _end(self, slot: PlanSlot) -> None:
        if self._dynamic:
            del self._slots[slot.id]
        else:
            self._set(slot, phase=Phase.ENDED)
        self._actions.append(Forget(id=slot.id))

    def _final(self, action: PlanAction) -> None:
        self._over = True
        self._actions.append(action)

    # ----------------------------------------------------------------------- progress

    def advance(self) -> None:
        """Order whatever can be ordered now."""
        if self._dynamic:
            self._advance_all()
            return
        while not self._over and not self._under_way:
            doomed = next(
                (s for s in reversed(self._slots.values()) if s.phase is Phase.DOOMED), None
            )
            if doomed is not None:
                self._set(doomed, phase=Phase.STOPPING)
                self._actions.append(StopChild(id=doomed.id))
                return
            due = self._next_due()
            if due is not None:
                self._set(due, phase=Phase.STARTING)
                self._actions.append(StartChild(id=due.id))
                return
            self._be_ready()
            if not self._deferred:
                return
            event = self._deferred.pop(0)
            self._down(self._slots[event.id], event)

    def _advance_all(self) -> None:
        self._be_ready()
        for slot in tuple(self._slots.values()):
            if self._over:
                return
            if slot.phase is Phase.DOOMED:
                self._set(slot, phase=Phase.STOPPING)
                self._actions.append(StopChild(id=slot.id))
            elif slot.phase in (Phase.NEW, Phase.DOWN) and slot.not_before <= self._now:
                self._set(slot, phase=Phase.STARTING)
                self._actions.append(StartChild(id=slot.id))

    def _be_ready(self) -> None:
        if not self._ready and (
            self._dynamic or all(s.phase is not Phase.NEW for s in self._slots.values())
        ):
            self._ready = True
            self._actions.append(Ready())

    @property
    def _dynamic(self) -> bool:
        return self._state.strategy is None

    @property
    def _under_way(self) -> bool:
        return any(s.phase in (Phase.STARTING, Phase.STOPPING) for s in self._slots.values())

    @property
    def _idle(self) -> bool:
        return (
            self._ready
            and not self._under_way
            and not self._deferred
            and all(s.phase is not Phase.DOOMED for s in self._slots.values())
            and self._next_due() is None
        )

    def _next_due(self) -> PlanSlot | None:
        for slot in self._slots.values():
            if slot.phase in (Phase.NEW, Phase.DOWN):
                if slot.not_before <= self._now:
                    return slot
                if self._state.strategy is not Strategy.ONE_FOR_ONE:
                    return None
        return None

    def _wake_at(self) -> float | None:
        if not self._dynamic and self._under_way:
            # Its end is an event, and what became due meanwhile is started then.
            return None
        waiting = (s.not_before for s in self._slots.values() if s.phase is Phase.DOWN)
        if self._dynamic or self._state.strategy is Strategy.ONE_FOR_ONE:
            return min(waiting, default=None)
        return next(waiting, None)

    def _set(self, slot: PlanSlot, **changes: object) -> PlanSlot:
        changed = replace(slot, **changes)  # type: ignore[arg-type]
        self._slots[slot.id] = changed
        return changed
