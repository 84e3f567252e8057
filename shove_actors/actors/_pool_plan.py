"""The plan of a pool, at a cost per event that does not grow with the pool.

`decide` is pure, so it copies the slots it is given: for a pool of n children, n steps for each of
at least n events. A pool of 4,000 took 27 s to fill that way, one of 10,000 minutes.

*Why it may be split.* Under a dynamic plan (`strategy=None`) no rule reads two slots at once: no
sibling is dragged down, nobody waits for another's start or stop, and no exit is deferred. All
that its children share is the window of restarts, `ready` and `over`. So `decide` is asked about
the one child an event names, with the shared part handed from call to call; the rules stay in
`_plan.py`, in one copy.

*The invariant.* Fed with the same events, `PoolPlan` orders at each step what `decide` over all
slots orders (in another order among children, which a pool does not promise), and ends with the
same slots, window and `wake_at`. The subtle part is time. The whole plan finds out what is due by
looking at everybody; here a heap knows who waits until when. An entry is not taken out when its
child goes, which would cost a search; it counts only if that child is DOWN *and waits for exactly
that time*, looked up when the entry comes to the top. Without the second half, a child removed
during its backoff, added again under its id and crashed again would wake the pool at its old time
(for nothing: `decide` looks at the time too), and leave one timer more each time. Proof:
`test_race_split_plan_is_the_whole_plan` (random events against `decide` over all slots) and
`test_race_old_timer_of_a_child_added_again`.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from types import MappingProxyType

from ._intensity import Intensity
from ._plan import PlanState, begin, decide
from ._plan_types import Add, Phase, PlanAction, PlanEvent, PlanSlot, Tick


class PoolPlan:
    """What `decide` decides for a dynamic supervisor, one child at a time. Not a value: it moves.

    `shared` is the state without any slots; its `wake_at` is that of the whole pool.
    """

    def __init__(self, intensity: Intensity) -> None:
        self.shared: PlanState = begin((), strategy=None, intensity=intensity)
        self._slots: dict[str, PlanSlot] = {}
        self._timers: list[tuple[float, str]] = []

    @property
    def slots(self) -> Mapping[str, PlanSlot]:
        """All children's slots, oldest first."""
        return MappingProxyType(self._slots)

    def decide(self, event: PlanEvent, now: float) -> tuple[PlanAction, ...]:
        """What to do about `event`, and about every child whose time has come."""
        id_ = None
        if isinstance(event, Add):
            id_ = event.slot.id
        elif not isinstance(event, Tick):
            id_ = event.id
        state, actions = self._decide_one(self.shared, id_, event, now)
        while not state.over:
            wake_at = self._wake_at()
            if wake_at is None or wake_at > now:
                break
            state, more = self._decide_one(state, heappop(self._timers)[1], Tick(), now)
            actions += more
        self.shared = _with(state, {}, None if state.over else self._wake_at())
        return actions

    def _decide_one(
        self, state: PlanState, id_: str | None, event: PlanEvent, now: float
    ) -> tuple[PlanState, tuple[PlanAction, ...]]:
        before = None if id_ is None else self._slots.get(id_)
        part = {} if before is None else {before.id: before}
        state, actions = decide(_with(state, part), event, now)
        if id_ is not None:
            slot = state.slots.get(id_)
            if slot is None:
                self._slots.pop(id_, None)
            else:
                self._slots[id_] = slot
                if slot.phase is Phase.DOWN and slot is not before:
                    heappush(self._timers, (slot.not_before, id_))
        return state, actions

    def _wake_at(self) -> float | None:
        """When the first child is due; drops timers that mean nothing any more."""
        timers = self._timers
        while timers:
            at, id_ = timers[0]
            slot = self._slots.get(id_)
            if slot is not None and slot.phase is Phase.DOWN and slot.not_before == at:
                return at
            heappop(timers)
        return None


def _with(state: PlanState, slots: dict[str, PlanSlot], wake_at: float | None = None) -> PlanState:
    # Written out: `replace` looks up every field by name, and this runs for each event.
    return PlanState(
        slots=slots,
        strategy=None,
        window=state.window,
        ready=state.ready,
        over=state.over,
        wake_at=wake_at,
    )
