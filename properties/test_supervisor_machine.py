"""The supervisor's plan against a world that answers late, out of turn and with crashes.

The machine plays everything around `decide`: children that start, refuse to, crash, return and
stop when it pleases Hypothesis, a queue of reports not yet delivered, and a clock. What must hold
however they interleave:

* no child is started while its previous incarnation is alive, nor after its slot was forgotten;
* a temporary child is started once;
* static: one start or stop at a time; under rest_for_one and one_for_all nobody is started while
  somebody before him is down;
* no start before the backoff of the last crash is over;
* restarts within any period never exceed the budget, and after the final action there is silence;
* nothing is forgotten: with all reports delivered and nothing under way, every child is up, has
  ended, or waits for a time that lies ahead (or behind one that does);
* the decision is a pure function: asked twice it answers the same, and changes nothing.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from shove_actors.actors import (
    AutoShutdown,
    Backoff,
    Crashed,
    Exit,
    Intensity,
    Restart,
    Returned,
    Stopped,
    Strategy,
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

PERIOD_S = 10
FINAL = (GiveUp, FailStart, Finish)

_kinds = st.sampled_from(Restart)
_backoffs = st.sampled_from(
    [None, Backoff(initial_s=1, max_s=4), Backoff(initial_s=2, max_s=8, jitter=0.5)]
)
_draws = st.sampled_from([0.0, 0.5, 0.99])


class SupervisorMachine(RuleBasedStateMachine):
    """One supervisor, driven by its plan alone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.world: dict[str, str] = {}
        self.queue: deque[PlanEvent] = deque()
        self.starts: dict[str, int] = {}
        self.forgotten: set[str] = set()
        self.kinds: dict[str, Restart] = {}
        self.not_before: dict[str, float] = {}
        self.removed: set[str] = set()
        self.restarts: list[float] = []
        self.final: PlanAction | None = None
        self.ready = False
        self.next_id = 0

    @initialize(
        slots=st.lists(st.tuples(_kinds, _backoffs, st.booleans()), max_size=5),
        strategy=st.sampled_from([*Strategy, None]),
        budget=st.sampled_from([0, 1, 2, 5, 1000]),
        rule_=st.sampled_from(AutoShutdown),
    )
    def begin(
        self,
        slots: list[tuple[Restart, Backoff | None, bool]],
        strategy: Strategy | None,
        budget: int,
        rule_: AutoShutdown,
    ) -> None:
        self.dynamic = strategy is None
        self.strategy = strategy
        self.budget = budget
        self.auto = AutoShutdown.NEVER if self.dynamic else rule_
        plan_slots = []
        for restart, backoff, significant in [] if self.dynamic else slots:
            plan_slots.append(
                PlanSlot(
                    id=self._new_id(restart),
                    restart=restart,
                    backoff=backoff,
                    significant=significant
                    and restart is not Restart.PERMANENT
                    and self.auto is not AutoShutdown.NEVER,
                )
            )
        self.state: PlanState = begin(
            plan_slots,
            strategy=strategy,
            intensity=Intensity(max_restarts=budget, period_s=PERIOD_S),
            auto_shutdown=self.auto,
        )
        self._decide(Tick())

    def _new_id(self, restart: Restart) -> str:
        id_ = f"c{self.next_id}"
        self.next_id += 1
        self.world[id_] = "off"
        self.starts[id_] = 0
        self.kinds[id_] = restart
        return id_

    # What the world does.

    @precondition(lambda self: any(s == "starting" for s in self.world.values()))
    @rule(data=st.data(), works=st.booleans(), draw=_draws)
    def start_ends(self, data: st.DataObject, works: bool, draw: float) -> None:
        id_ = self._pick(data, "starting")
        self.world[id_] = "up" if works else "off"
        if works:
            self.queue.append(ChildUp(id=id_))
        else:
            self.queue.append(ChildRejected(id=id_, error=ValueError("no"), draw=draw))

    @precondition(lambda self: any(s in ("up", "stopping") for s in self.world.values()))
    @rule(data=st.data(), crash=st.booleans(), draw=_draws)
    def child_ends_by_itself(self, data: st.DataObject, crash: bool, draw: float) -> None:
        id_ = self._pick(data, "up", "stopping")
        exit_: Exit = Crashed(error=ValueError("boom")) if crash else Returned()
        self.world[id_] = "off"
        self.queue.append(ChildDown(id=id_, exit=exit_, draw=draw))

    @precondition(lambda self: any(s == "stopping" for s in self.world.values()))
    @rule(data=st.data())
    def child_stops(self, data: st.DataObject) -> None:
        id_ = self._pick(data, "stopping")
        self.world[id_] = "off"
        self.queue.append(ChildDown(id=id_, exit=Stopped()))

    @rule(step=st.sampled_from([0.5, 1.0, 3.0, 11.0]))
    def time_passes(self, step: float) -> None:
        # As the loop does: never past a timer without a tick at the timer.
        target = self.now + step
        while self.state.wake_at is not None and self.state.wake_at <= target and not self.queue:
            self.now = max(self.now, self.state.wake_at)
            self._decide(Tick())
        self.now = target

    @precondition(lambda self: self.queue)
    @rule()
    def deliver(self) -> None:
        event = self.queue.popleft()
        if isinstance(event, Remove) and event.id in self.state.slots:
            self.removed.add(event.id)
        self._decide(event)

    @precondition(lambda self: self.dynamic and len(self.state.slots) < 6)
    @rule(restart=_kinds, backoff=_backoffs)
    def add(self, restart: Restart, backoff: Backoff | None) -> None:
        id_ = self._new_id(restart)
        self.queue.append(Add(slot=PlanSlot(id=id_, restart=restart, backoff=backoff)))

    @precondition(lambda self: self.dynamic and self.world)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.queue.append(Remove(id=data.draw(st.sampled_from(sorted(self.world)))))

    def _pick(self, data: st.DataObject, *states: str) -> str:
        return data.draw(st.sampled_from([i for i, s in self.world.items() if s in states]))

    # What the plan answers.

    def _decide(self, event: PlanEvent) -> None:
        before = deepcopy(self.state.slots)
        state, actions = decide(self.state, event, self.now)
        assert self.state.slots == before, "decide changed its input"
        assert decide(self.state, event, self.now) == (state, actions), "decide is not pure"
        counted = len(state.window.times) and state.window.times != self.state.window.times
        self.state = state
        if counted:
            self.restarts.append(self.now)
        for action in actions:
            assert self.final is None, "an action after the final one"
            self._carry_out(action)

    def _carry_out(self, action: PlanAction) -> None:
        if isinstance(action, FINAL):
            self.final = action
        elif isinstance(action, Ready):
            assert not self.ready
            self.ready = True
            assert self.dynamic or all(n > 0 for n in self.starts.values())
        elif isinstance(action, StartChild):
            self._start(action.id)
        elif isinstance(action, StopChild):
            # It may have ended already, its report still in the queue; or be starting still.
            if self.world[action.id] == "up":
                self.world[action.id] = "stopping"
            elif self.world[action.id] == "starting":
                self.world[action.id] = "off"
                self.queue.append(ChildRejected(id=action.id, error=ValueError("cancelled")))
        elif isinstance(action, Forget):
            assert action.id not in self.forgotten
            assert self.world[action.id] == "off"
            self.forgotten.add(action.id)
        elif isinstance(action, Delay):
            assert action.delay_s > 0
            self.not_before[action.id] = self.now + action.delay_s
        else:
            assert isinstance(action, Refuse)
            assert self.dynamic

    def _start(self, id_: str) -> None:
        assert self.world[id_] == "off", "two incarnations at once"
        assert id_ not in self.forgotten
        assert id_ not in self.removed
        assert self.now >= self.not_before.get(id_, 0.0), "started before its backoff was over"
        if self.kinds[id_] is Restart.TEMPORARY:
            assert self.starts[id_] == 0
        if not self.dynamic:
            assert all(s not in ("starting", "stopping") for s in self.world.values())
        if self.strategy in (Strategy.REST_FOR_ONE, Strategy.ONE_FOR_ALL):
            for other, slot in self.state.slots.items():
                if other == id_:
                    break
                assert slot.phase in (Phase.UP, Phase.ENDED)
        self.starts[id_] += 1
        self.world[id_] = "starting"

    # What must always hold.

    @invariant()
    def budget_is_kept(self) -> None:
        recent = [t for t in self.restarts if t >= self.now - PERIOD_S]
        assert len(recent) <= self.budget + (1 if isinstance(self.final, GiveUp) else 0)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        if not hasattr(self, "state") or self.queue or self.final is not None:
            return
        if any(s in ("starting", "stopping") for s in self.world.values()):
            return
        assert not self.state.deferred
        wake_at = self.state.wake_at
        for slot in self.state.slots.values():
            if slot.phase in (Phase.UP, Phase.ENDED):
                assert (self.world[slot.id] == "up") is (slot.phase is Phase.UP)
                continue
            assert slot.phase is Phase.DOWN
            assert wake_at is not None, "down, with nothing to wait for"
            if self.strategy not in (Strategy.REST_FOR_ONE, Strategy.ONE_FOR_ALL):
                assert slot.not_before >= wake_at


TestSupervisorMachine = SupervisorMachine.TestCase
