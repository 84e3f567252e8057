"""A supervisor against children that start, fail, crash, return and stop as Hypothesis pleases.

The same rules run in two worlds (`actor-semantics` 6.11). `PlanAlone` is the pure plan with a
model of children (`supervisor_model.py`), whose reports arrive as late as `deliver` lets them.
`PlanAndTrio` is that plan beside a real supervisor under a `Stepper` (`supervisor_world.py`).
After every step both must agree about which incarnations run and what they have been told, the
state and number of starts of each slot, when something happens next, every request, kill, backoff
and overrun with its time, what `start_child` and `stop_child` have come to, late errors, and how
the supervisor ended.

What must hold however things interleave (checked in the model):

* no child is started while its previous incarnation is alive, nor after its slot was forgotten, nor
  when its kind forbids it (a temporary child is started once, a transient one not after a return);
* static: one start or stop at a time; stops go last to first; under rest_for_one and one_for_all
  nobody is started while somebody before him is down, and nobody outlives a restart of one before
  him (one_for_all: of anybody); under one_for_one nobody is stopped;
* no start before the backoff of the last crash is over; each backoff is as long as the rule says;
* the supervisor gives up with the first restart over the budget, and not before; after the final
  action there is silence;
* nothing is forgotten: with all reports delivered and nothing under way, every child is up, has
  ended, or waits for a time that lies ahead (or behind one that does);
* the decision is a pure function: asked twice it answers the same, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from supervisor_child import Child, Manner, Setup, Traits
from supervisor_model import PlanWorld
from supervisor_world import TrioWorld

from shove_actors.actors import AutoShutdown, Backoff, Restart, State, Strategy

_traits = st.builds(
    Traits,
    restart=st.sampled_from(Restart),
    backoff=st.sampled_from(
        [None, Backoff(initial_s=1, max_s=4), Backoff(initial_s=2, max_s=8, jitter=0.5)]
    ),
    significant=st.booleans(),
    manner=st.sampled_from(Manner),
    grace_s=st.sampled_from([2.0, 0.0, math.inf]),
    timeout_s=st.sampled_from([None, 3.0]),
)
#: Which of the children that come into question.
_nth = st.integers(0, 5)
_start = st.sampled_from(["up", "up", "up", "up", "crash", "return"])
_end = st.sampled_from(["crash", "return"])
_grace = st.sampled_from([None, 1.0])
_setup = st.builds(
    Setup,
    strategy=st.sampled_from([*Strategy, None]),
    budget=st.sampled_from([1000, 5, 2, 1, 0]),
    auto=st.sampled_from(AutoShutdown),
    pool_grace_s=_grace,
    children=st.lists(_traits, min_size=2, max_size=5).map(tuple),
)
_steps = st.integers(0, 30)


class SupervisorMachine(RuleBasedStateMachine):
    """The rules. Which worlds they happen in is the business of the subclasses."""

    held = False

    def __init__(self) -> None:
        super().__init__()
        self.plan: PlanWorld  # from `begin` on
        self.real: TrioWorld | None = None
        self.tickets = 0
        self.names = 0
        self.steps_left = 0

    @initialize(seed=st.random_module(), setup=_setup, steps=_steps)
    def begin(self, seed: object, setup: Setup, steps: int) -> None:
        """All children come up at first, and nobody stops it all in the first `steps` steps."""
        self.plan = PlanWorld(setup, held=self.held)
        self.enter(setup)
        self.do(lambda plan: plan.begin(), lambda real: real.begin())
        for number, traits in enumerate(setup.children):
            if self.plan.dynamic:
                self.add(traits=traits)
            if number < steps and self.some(_starting):
                self.hear()
                self.start_ends(nth=0, how="up")
                self.hear()
        self.steps_left = steps

    @precondition(lambda self: self.plan.ended)
    @rule(setup=_setup, steps=_steps)
    def begin_again(self, setup: Setup, steps: int) -> None:
        """The next supervisor, so that an example does not waste its steps on a dead one."""
        self.leave()
        self.begin(seed=None, setup=setup, steps=steps)

    def enter(self, setup: Setup) -> None:
        """Make the real world, if there is one."""

    def leave(self) -> None:
        """End the real world, if there is one."""

    def hear(self) -> None:
        """Deliver what lies about."""

    def teardown(self) -> None:
        self.leave()

    def do(
        self, in_plan: Callable[[PlanWorld], None], in_trio: Callable[[TrioWorld], None]
    ) -> None:
        if self.real is not None:
            known = len(self.real.facts)
            in_trio(self.real)
            facts = self.real.facts[known:]
            self.plan.lead(self.real.take_seen(), facts, self.real.take_begun())
        in_plan(self.plan)
        self.plan.flush()
        self.plan.assert_all_led()
        self.steps_left -= 1

    def some(self, fits: Callable[[Child], bool]) -> list[str]:
        return [child.id for child in self.plan.children.values() if fits(child)]

    def pick(self, nth: int, fits: Callable[[Child], bool]) -> str:
        ids = self.some(fits)
        return ids[nth % len(ids)]

    # ----------------------------------------------------------------------- children

    @precondition(lambda self: self.some(_starting))
    @rule(nth=_nth, how=_start)
    def start_ends(self, nth: int, how: str) -> None:
        id_ = self.pick(nth, _starting)
        self.do(lambda plan: plan.start_ends(id_, how), lambda real: real.tell((id_, how)))

    @precondition(lambda self: self.some(_started))
    @rule(nth=_nth, how=_end)
    def child_ends(self, nth: int, how: str) -> None:
        id_ = self.pick(nth, _started)
        self.do(lambda plan: plan.children_end((id_, how)), lambda real: real.tell((id_, how)))

    @precondition(lambda self: len(self.some(_started)) > 1)
    @rule(nth=_nth, how=_end, other=_nth, other_how=_end)
    def two_end_at_once(self, nth: int, how: str, other: int, other_how: str) -> None:
        one = self.pick(nth, _started)
        two = self.pick(other, lambda child: _started(child) and child.id != one)
        self.do(
            lambda plan: plan.children_end((one, how), (two, other_how)),
            lambda real: real.tell((one, how), (two, other_how)),
        )

    @precondition(lambda self: not self.plan.ended)
    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 3.0, 10.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.do(lambda plan: plan.advance(seconds), lambda real: real.trio.advance(seconds))

    # ------------------------------------------------------------------ a dynamic supervisor

    @precondition(lambda self: self.plan.dynamic and not self.plan.ended and self.free_id())
    @rule(traits=_traits)
    def add(self, traits: Traits) -> None:
        id_ = self.free_id()
        self.names += 1
        self.do(lambda plan: plan.add(id_, traits), lambda real: real.add(id_, traits))

    @precondition(lambda self: self.some(self.waited_for))
    @rule(nth=_nth)
    def give_up_add(self, nth: int) -> None:
        id_ = self.pick(nth, self.waited_for)
        self.do(lambda plan: plan.give_up_add(id_), lambda real: real.give_up_add(id_))

    @precondition(lambda self: self.plan.dynamic and not self.plan.ended and self.plan.children)
    @rule(nth=_nth, grace_s=_grace)
    def remove(self, nth: int, grace_s: float | None) -> None:
        id_ = self.pick(nth, _any)
        ticket = self.tickets = self.tickets + 1
        self.do(
            lambda plan: plan.remove(id_, grace_s, ticket),
            lambda real: real.remove(id_, grace_s, ticket),
        )

    @precondition(lambda self: self.plan.dynamic and self.some(_started))
    @rule(nth=_nth, other=_nth, how=_end)
    def remove_while_one_ends(self, nth: int, other: int, how: str) -> None:
        id_, who = self.pick(nth, _any), self.pick(other, _started)
        ticket = self.tickets = self.tickets + 1

        def in_plan(plan: PlanWorld) -> None:
            plan.remove(id_, None, ticket)
            plan.children_end((who, how))

        self.do(in_plan, lambda real: real.remove_telling(id_, ticket, who, how))

    @precondition(lambda self: self.plan.dynamic and self.some(_started))
    @rule(nth=_nth, how=_end)
    def remove_one_that_ends(self, nth: int, how: str) -> None:
        who = self.some(_any).index(self.pick(nth, _started))
        self.remove_while_one_ends(nth=who, other=nth, how=how)

    def free_id(self) -> str:
        if self.held:
            # A late report about the one before must not be taken for one about the next.
            return f"c{self.names}" if len(self.plan.children) < 6 else ""
        return next((id_ for n in range(6) if (id_ := f"c{n}") not in self.plan.children), "")

    def waited_for(self, child: Child) -> bool:
        return self.plan.adds.get(child.id, ()) is None

    # -------------------------------------------------------------------------- the end

    @precondition(lambda self: not self.plan.stopping and self.steps_left <= 0)
    @rule(how=st.sampled_from(["ask", "cancel"]))
    def stop(self, how: str) -> None:
        self.do(lambda plan: plan.stop(how), lambda real: real.stop(how))

    @precondition(
        lambda self: (
            self.plan.ready
            and not self.plan.ended
            and not self.plan.hard
            and (self.plan.stopping or self.steps_left <= 0)
        )
    )
    @rule()
    def hard_stop(self) -> None:
        self.do(lambda plan: plan.hard_stop(), lambda real: real.hard_stop())

    @invariant()
    def check(self) -> None:
        self.plan.check()


def _any(child: Child) -> bool:
    return True


def _starting(child: Child) -> bool:
    return child.alive and not child.said_started


def _started(child: Child) -> bool:
    return child.alive and child.said_started


class PlanAlone(SupervisorMachine):
    """Reports lie about until they are delivered."""

    held = True

    @precondition(lambda self: self.plan.queue)
    @rule(reports=st.integers(1, 4))
    def deliver(self, reports: int) -> None:
        for _ in range(min(reports, len(self.plan.queue))):
            self.plan.deliver()

    def hear(self) -> None:
        while self.plan.queue:
            self.plan.deliver()


class PlanAndTrio(SupervisorMachine):
    """Beside a real supervisor."""

    def enter(self, setup: Setup) -> None:
        self.real = TrioWorld(setup)

    def leave(self) -> None:
        real, self.real = self.real, None
        if real is not None:
            real.close()

    @invariant()
    def check(self) -> None:
        super().check()
        plan, real = self.plan, self.real
        assert real is not None
        living = {child.id: child.stage for child in plan.children.values() if child.alive}
        _same("who runs", living, {id_: puppet.stage for id_, puppet in real.alive.items()})
        # As sets: a stop that is carried on at the very instant of an overrun reports it twice.
        _same("what happened", sorted(set(plan.facts)), sorted(set(real.facts)))
        _same("time", plan.now, real.trio.now)
        self.deadlines_agree(plan.next_deadline(), real.trio.next_deadline())
        _same("ready", plan.ready, real.entered)
        _same("outcome", plan.outcome, real.outcome)
        if real.system is not None:
            _same("late errors", sorted(plan.late), sorted(real.late()))
            # Once each; a slot that ended while the system still ran is not in the report.
            strange = set(real.killed()) - set(plan.killed)
            assert not strange, f"killed: Trio has {strange}, which the plan does not kill"
            if not plan.ended:
                slots = {child.id: (child.state, child.number) for child in plan.children.values()}
                _same("slots", slots, real.states())
            elif not plan.dynamic:
                assert all(state is State.ENDED for state, _ in real.states().values())
        self.requests_agree(plan, real)

    def deadlines_agree(self, plan: float | None, trio: float | None) -> None:
        if self.plan.dynamic and self.plan.stopping:
            # A pool that stops leaves the timers of those who have ended: it only looks once more.
            assert plan is None or (trio is not None and trio <= plan)
            return
        _same("next deadline", plan, trio)

    def requests_agree(self, plan: PlanWorld, real: TrioWorld) -> None:
        for id_, step in real.adds.items():
            # Out of time and removed in one turn: which of the two it is told is a race.
            _same(f"start_child {id_}", _untimed(plan.adds[id_]), _untimed(real.result_of(step)))
        for ticket, removal in real.removes.items():
            child, exit_ = plan.removes[ticket]
            came = type(removal.result()).__name__ if removal.done else None
            _same(f"stop_child {child.id}", exit_, came)


def _untimed(result: list[str] | None) -> list[str] | None:
    return None if result is None else [word for word in result if word != "TooSlowError"]


def _same(what: str, plan: object, trio: object) -> None:
    assert plan == trio, f"{what}: the plan has {plan}, Trio has {trio}"


TestPlanAlone = PlanAlone.TestCase
TestPlanAndTrio = PlanAndTrio.TestCase
