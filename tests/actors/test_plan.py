"""The decision table, step by step. The machine in `properties/` plays it at random."""

from __future__ import annotations

import pytest

from shove_actors.actors import (
    AutoShutdown,
    Backoff,
    Crashed,
    Intensity,
    Restart,
    Returned,
    Stopped,
    Strategy,
)
from shove_actors.actors._plan import PlanState, begin, decide, restarts
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

BOOM = Crashed(error=ValueError("boom"))


class Player:
    """Feeds events to the plan at one moment in time and keeps its answers."""

    def __init__(
        self,
        strategy: Strategy | None,
        *slots: PlanSlot,
        budget: int = 10,
        auto: AutoShutdown = AutoShutdown.NEVER,
    ) -> None:
        self.state: PlanState = begin(
            slots,
            strategy=strategy,
            intensity=Intensity(max_restarts=budget, period_s=60),
            auto_shutdown=auto,
        )

    def feed(self, *events: PlanEvent, now: float = 0.0) -> list[PlanAction]:
        answers: list[PlanAction] = []
        for event in events:
            self.state, actions = decide(self.state, event, now)
            answers += actions
        return answers

    def all_up(self) -> None:
        self.feed(Tick())
        for id_ in tuple(self.state.slots):
            self.feed(ChildUp(id=id_))
        assert self.state.ready

    def phases(self) -> list[Phase]:
        return [slot.phase for slot in self.state.slots.values()]


def _abc(**options: object) -> list[PlanSlot]:
    return [PlanSlot(id=id_, **options) for id_ in "ABC"]


def test_children_start_one_by_one() -> None:
    player = Player(Strategy.ONE_FOR_ONE, *_abc())
    assert player.feed(Tick()) == [StartChild(id="A")]
    assert player.feed(ChildUp(id="A")) == [StartChild(id="B")]
    assert player.feed(ChildUp(id="B")) == [StartChild(id="C")]
    assert player.feed(ChildUp(id="C")) == [Ready()]


def test_a_crash_during_the_first_start_waits_its_turn() -> None:
    player = Player(Strategy.ONE_FOR_ONE, *_abc())
    player.feed(Tick(), ChildUp(id="A"))
    assert player.feed(ChildDown(id="A", exit=BOOM)) == []
    assert player.feed(ChildUp(id="B")) == [StartChild(id="C")]
    assert player.feed(ChildUp(id="C")) == [Ready(), StartChild(id="A")]


def test_first_start_fails() -> None:
    player = Player(Strategy.ONE_FOR_ONE, *_abc())
    error = ValueError("no")
    player.feed(Tick(), ChildUp(id="A"))
    assert player.feed(ChildRejected(id="B", error=error)) == [FailStart(id="B", error=error)]
    assert player.feed(ChildDown(id="A", exit=BOOM)) == []


def test_those_dragged_down_stop_last_first_and_start_first_first() -> None:
    player = Player(Strategy.ONE_FOR_ALL, *_abc())
    player.all_up()
    assert player.feed(ChildDown(id="B", exit=BOOM)) == [StopChild(id="C")]
    assert player.feed(ChildDown(id="C", exit=Stopped())) == [StopChild(id="A")]
    assert player.feed(ChildDown(id="A", exit=Stopped())) == [StartChild(id="A")]
    assert player.feed(ChildUp(id="A")) == [StartChild(id="B")]
    assert player.feed(ChildUp(id="B")) == [StartChild(id="C")]
    assert player.feed(ChildUp(id="C")) == []
    assert len(player.state.window.times) == 1


def test_two_deferred_crashes_are_one_group_restart() -> None:
    """B and C die while A is being restarted; B's restart takes C with it, and C counts once.

    The report of C's death must not be looked at again when C is already up anew.
    """
    player = Player(Strategy.REST_FOR_ONE, *(PlanSlot(id=id_) for id_ in "ABCD"))
    player.all_up()
    player.feed(ChildDown(id="D", exit=BOOM))
    assert player.feed(ChildDown(id="B", exit=BOOM), ChildDown(id="C", exit=BOOM)) == []
    # D is up again: B's crash takes D down; C is down already, and nothing asks it to stop.
    assert player.feed(ChildUp(id="D")) == [StopChild(id="D")]
    assert player.feed(ChildDown(id="D", exit=Stopped())) == [StartChild(id="B")]
    assert player.feed(ChildUp(id="B")) == [StartChild(id="C")]
    assert player.feed(ChildUp(id="C")) == [StartChild(id="D")]
    assert player.feed(ChildUp(id="D")) == []
    assert player.phases() == [Phase.UP] * 4
    assert len(player.state.window.times) == 2


def test_a_deferred_return_of_a_transient_sibling_stays_a_return() -> None:
    player = Player(
        Strategy.REST_FOR_ONE,
        PlanSlot(id="A"),
        PlanSlot(id="B", restart=Restart.TRANSIENT),
        PlanSlot(id="C"),
    )
    player.all_up()
    player.feed(ChildDown(id="C", exit=BOOM))
    player.feed(ChildDown(id="A", exit=BOOM), ChildDown(id="B", exit=Returned()))
    assert player.feed(ChildUp(id="C")) == [Forget(id="B"), StopChild(id="C")]
    assert player.feed(ChildDown(id="C", exit=Stopped())) == [StartChild(id="A")]
    assert player.feed(ChildUp(id="A")) == [StartChild(id="C")]


def test_the_budget_is_the_supervisors() -> None:
    player = Player(Strategy.ONE_FOR_ONE, *_abc(), budget=2)
    player.all_up()
    assert player.feed(ChildDown(id="A", exit=BOOM)) == [StartChild(id="A")]
    player.feed(ChildUp(id="A"))
    assert player.feed(ChildDown(id="B", exit=BOOM)) == [StartChild(id="B")]
    player.feed(ChildUp(id="B"))
    assert player.feed(ChildDown(id="C", exit=BOOM)) == [GiveUp(id="C", exit=BOOM)]
    assert player.state.over


def test_dynamic_children_are_independent() -> None:
    player = Player(None)
    assert player.feed(Tick()) == [Ready()]
    actions = player.feed(Add(slot=PlanSlot(id="A")), Add(slot=PlanSlot(id="B")))
    assert actions == [StartChild(id="A"), StartChild(id="B")]
    player.feed(ChildUp(id="A"))
    assert player.feed(Remove(id="A")) == [StopChild(id="A")]
    error = ValueError("no")
    assert player.feed(ChildRejected(id="B", error=error)) == [
        Refuse(id="B", error=error),
        Forget(id="B"),
    ]
    assert player.feed(ChildDown(id="A", exit=Stopped())) == [Forget(id="A")]
    assert player.state.slots == {}


def test_removed_while_it_gets_up() -> None:
    """The removal is looked at before the report that the child is up."""
    player = Player(None)
    player.feed(Tick(), Add(slot=PlanSlot(id="A")))
    assert player.feed(Remove(id="A"), Remove(id="A")) == [StopChild(id="A")]
    assert player.feed(ChildUp(id="A")) == [StopChild(id="A")]
    assert player.feed(ChildDown(id="A", exit=Stopped())) == [Forget(id="A")]


def test_who_is_restarted() -> None:
    table = {
        (Restart.PERMANENT, BOOM): True,
        (Restart.PERMANENT, Returned()): True,
        (Restart.TRANSIENT, BOOM): True,
        (Restart.TRANSIENT, Returned()): False,
        (Restart.TEMPORARY, BOOM): False,
        (Restart.TEMPORARY, Returned()): False,
    }
    assert {key: restarts(*key) for key in table} == table


def test_a_group_restart_leaves_those_alone_who_have_ended() -> None:
    player = Player(
        Strategy.ONE_FOR_ALL,
        PlanSlot(id="A", restart=Restart.TRANSIENT),
        PlanSlot(id="B"),
    )
    player.all_up()
    assert player.feed(ChildDown(id="A", exit=Returned())) == [Forget(id="A")]
    assert player.feed(ChildDown(id="B", exit=BOOM)) == [StartChild(id="B")]
    assert player.feed(ChildUp(id="B")) == []
    assert player.phases() == [Phase.ENDED, Phase.UP]


def test_who_is_down_already_waits_for_the_longer_of_two_pauses() -> None:
    """B is in a pause until 10 when A crashes at 1 with a pause of 3; then at 5 with one of 20."""
    player = Player(
        Strategy.REST_FOR_ONE,
        PlanSlot(id="A", backoff=Backoff(initial_s=3, max_s=20, reset_after_s=100)),
        PlanSlot(id="B", backoff=Backoff(initial_s=10, max_s=10)),
    )
    player.all_up()
    assert player.feed(ChildDown(id="B", exit=BOOM)) == [Delay(id="B", delay_s=10, failures=1)]
    assert player.state.wake_at == 10
    down = ChildDown(id="A", exit=BOOM)
    assert player.feed(down, now=1) == [Delay(id="A", delay_s=3, failures=1)]
    assert player.state.wake_at == 4
    assert player.feed(Tick(), now=4) == [StartChild(id="A")]
    assert player.state.wake_at is None
    assert player.feed(ChildUp(id="A"), now=4) == []
    assert player.state.wake_at == 10
    assert player.feed(down, now=5) == [Delay(id="A", delay_s=6, failures=2)]
    assert player.feed(Tick(), now=11) == [StartChild(id="A")]
    assert player.feed(ChildUp(id="A"), now=11) == [StartChild(id="B")]


def test_the_right_one_of_several_deferred_ends_is_taken() -> None:
    """C and B died while D was restarted. A, dying as well, drags down each by its own report."""
    player = Player(
        Strategy.REST_FOR_ONE,
        PlanSlot(id="A"),
        PlanSlot(id="B", restart=Restart.TRANSIENT),
        PlanSlot(id="C", restart=Restart.TRANSIENT),
        PlanSlot(id="D"),
    )
    player.all_up()
    assert player.feed(ChildDown(id="D", exit=BOOM)) == [StartChild(id="D")]
    player.feed(ChildDown(id="A", exit=BOOM))
    player.feed(ChildDown(id="C", exit=BOOM), ChildDown(id="B", exit=Returned()))
    assert player.feed(ChildUp(id="D")) == [Forget(id="B"), StopChild(id="D")]
    assert player.feed(ChildDown(id="D", exit=Stopped())) == [StartChild(id="A")]
    assert player.feed(ChildUp(id="A")) == [StartChild(id="C")]
    assert player.feed(ChildUp(id="C")) == [StartChild(id="D")]
    assert player.feed(ChildUp(id="D")) == []
    assert len(player.state.window.times) == 2


def test_events_of_who_is_not_there_are_nothing() -> None:
    for strategy in (None, Strategy.ONE_FOR_ONE):
        player = Player(strategy)
        player.feed(Tick())
        before = player.state
        for event in (
            ChildUp(id="X"),
            ChildDown(id="X", exit=BOOM),
            ChildRejected(id="X", error=ValueError()),
            Remove(id="X"),
        ):
            assert player.feed(event) == []
        assert player.state == before


def test_a_crash_in_a_pool_waits_for_nobody() -> None:
    player = Player(None)
    player.feed(Tick(), Add(slot=PlanSlot(id="A")), ChildUp(id="A"))
    assert player.feed(Add(slot=PlanSlot(id="B"))) == [StartChild(id="B")]
    assert player.feed(ChildDown(id="A", exit=BOOM)) == [StartChild(id="A")]


def test_removed_while_starting() -> None:
    """Its starter is told only if one waits, which is so for the first start."""
    player = Player(None)
    error = ValueError("stopped")
    player.feed(Tick(), Add(slot=PlanSlot(id="A")), Remove(id="A"))
    assert player.feed(ChildRejected(id="A", error=error)) == [
        Refuse(id="A", error=error),
        Forget(id="A"),
    ]
    player.feed(Add(slot=PlanSlot(id="B")), ChildUp(id="B"), ChildDown(id="B", exit=BOOM))
    assert player.feed(Remove(id="B")) == [StopChild(id="B")]
    assert player.feed(ChildRejected(id="B", error=error)) == [Forget(id="B")]


@pytest.mark.parametrize(("reset_after_s", "pauses"), [(0.5, [1, 2, 4]), (0.0, [1, 1, 1])])
def test_a_failed_start_has_lived_no_time_at_all(reset_after_s: float, pauses: list[int]) -> None:
    player = Player(
        Strategy.ONE_FOR_ONE,
        PlanSlot(id="A", backoff=Backoff(initial_s=1, max_s=60, reset_after_s=reset_after_s)),
    )
    player.all_up()
    actions = player.feed(ChildDown(id="A", exit=BOOM))
    for now in (10, 20):
        assert player.feed(Tick(), now=now) == [StartChild(id="A")]
        actions += player.feed(ChildRejected(id="A", error=ValueError()), now=now)
    assert [a.delay_s for a in actions if isinstance(a, Delay)] == pauses


def test_a_deferred_end_outside_the_group_is_looked_at_later() -> None:
    """C, A and D die while E is restarted. C's crash takes D with it; A's is one of its own."""
    player = Player(Strategy.REST_FOR_ONE, *(PlanSlot(id=id_) for id_ in "ABCDE"))
    player.all_up()
    player.feed(ChildDown(id="E", exit=BOOM))
    player.feed(*(ChildDown(id=id_, exit=BOOM) for id_ in "CAD"))
    assert player.feed(ChildUp(id="E")) == [StopChild(id="E")]
    assert [event.id for event in player.state.deferred] == ["A"]
    player.feed(ChildDown(id="E", exit=Stopped()))
    player.feed(ChildUp(id="C"), ChildUp(id="D"))
    # A's turn comes when the group is up again, and takes all others down once more.
    assert player.feed(ChildUp(id="E")) == [StopChild(id="E")]
    assert player.phases()[0] is Phase.DOWN
    assert len(player.state.window.times) == 3


def _job(id_: str, significant: bool = True) -> PlanSlot:
    return PlanSlot(id=id_, restart=Restart.TRANSIENT, significant=significant)


def test_automatic_shutdown_is_ordered_once() -> None:
    """Both significant children turn out to have returned when A's crash drags them down."""
    for auto in (AutoShutdown.ANY, AutoShutdown.ALL):
        slots = (PlanSlot(id="A"), _job("B"), _job("C"), PlanSlot(id="D"))
        player = Player(Strategy.REST_FOR_ONE, *slots, auto=auto)
        player.all_up()
        player.feed(ChildDown(id="D", exit=BOOM), ChildDown(id="A", exit=BOOM))
        player.feed(*(ChildDown(id=id_, exit=Returned()) for id_ in "BC"))
        actions = player.feed(ChildUp(id="D"))
        assert [a for a in actions if not isinstance(a, Forget)] == [Finish()]
        assert player.feed(Tick()) == []


def test_who_is_not_significant_ends_alone() -> None:
    for auto in AutoShutdown:
        player = Player(Strategy.ONE_FOR_ONE, _job("A", significant=False), _job("B"), auto=auto)
        player.all_up()
        assert player.feed(ChildDown(id="A", exit=Returned())) == [Forget(id="A")]
        finish = [] if auto is AutoShutdown.NEVER else [Finish()]
        assert player.feed(ChildDown(id="B", exit=Returned())) == [Forget(id="B"), *finish]


@pytest.mark.parametrize("strategy", [None, Strategy.ONE_FOR_ONE])
def test_the_first_timer_is_the_earliest_not_the_first_childs(strategy: Strategy | None) -> None:
    player = Player(strategy)
    player.feed(Tick())
    pauses = {"A": 10.0, "B": 2.0, "C": 5.0}
    slots = [PlanSlot(id=n, backoff=Backoff(initial_s=s, max_s=s)) for n, s in pauses.items()]
    if strategy is None:
        player.feed(*(Add(slot=slot) for slot in slots), *(ChildUp(id=n) for n in pauses))
    else:
        player = Player(strategy, *slots)
        player.all_up()
    player.feed(*(ChildDown(id=n, exit=BOOM) for n in pauses))
    assert player.state.wake_at == 2
    assert player.feed(Tick(), now=2) == [StartChild(id="B")]
    player.feed(ChildUp(id="B"), now=2)
    assert player.state.wake_at == 5
