"""Races that need one order of tasks out of several: found by `properties/test_supervisor_machine`.

Each runs under every seed of Trio's scheduler that Hypothesis tries, so that each order occurs.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from shove_actors.actors import (
    AutoShutdown,
    ChildSpec,
    Context,
    Crashed,
    DynamicSupervisor,
    Killed,
    Restart,
    Returned,
    StartFailed,
    Stopped,
    Strategy,
    open_actor_system,
)
from shove_actors.actors._plan import begin, decide
from shove_actors.actors._plan_types import (
    ChildDown,
    ChildRejected,
    ChildUp,
    Finish,
    PlanEvent,
    PlanSlot,
    Tick,
)
from shove_actors.testing import Stepper

from .kit import MANY


@settings(max_examples=40)
@given(seed=st.random_module())
def test_removal_between_order_and_start(seed: object) -> None:
    """A child crashes and is removed in the same turn.

    Its restart was ordered, but the task that starts it had not run yet, so the removal found
    nothing to cancel and was lost: `stop_child` then waited for a start that may never end.
    """
    pool = DynamicSupervisor(intensity=MANY)
    incarnations = []

    async def child(ctx: Context[str]) -> None:
        incarnations.append(ctx.incarnation)
        if ctx.incarnation > 1:
            await trio.sleep_forever()  # never says that it is started
        ctx.started()
        async for _ in ctx:
            raise ValueError("boom")

    async def main() -> None:
        async with open_actor_system(children=[pool.spec(id="pool")]):
            await trio.sleep_forever()

    with Stepper(main) as s:
        ref = s.call(pool.start_child, ChildSpec(id="c", start=child))
        ref.tell_nowait("go")
        removal = s.post(pool.stop_child, ref)
        assert removal.done
        assert len(pool) == 0
        assert isinstance(removal.result(), Killed) is (len(incarnations) > 1)


async def test_stop_from_a_child_that_starts(autojump_clock: trio.testing.MockClock) -> None:
    """The block could not be entered, and its context manager said so in words of its own."""

    async def child(ctx: Context[str]) -> None:
        ctx.system.stop()
        ctx.started()

    with pytest.raises(StartFailed, match="stopped before all its children had started"):
        async with open_actor_system(children=[ChildSpec(id="c", start=child)]):
            pytest.fail("entered")


def test_nothing_is_ordered_after_an_automatic_shutdown() -> None:
    """A group goes down, and two of it had ended by themselves, the first of them significant."""
    once = Restart.TRANSIENT
    state = begin(
        [PlanSlot(id="a", restart=once, significant=True), PlanSlot(id="b", restart=once),
         PlanSlot(id="c")],
        strategy=Strategy.ONE_FOR_ALL,
        intensity=MANY,
        auto_shutdown=AutoShutdown.ANY,
    )  # fmt: skip
    boom, stopped, gone = Crashed(error=ValueError("boom")), Stopped(), Returned()
    events: list[PlanEvent] = [
        Tick(), ChildUp(id="a"), ChildUp(id="b"), ChildUp(id="c"),
        ChildDown(id="c", exit=boom), ChildDown(id="b", exit=stopped),
        ChildDown(id="a", exit=stopped), ChildUp(id="a"), ChildUp(id="b"),
        # c is starting again: what comes now has to wait.
        ChildDown(id="a", exit=gone), ChildDown(id="b", exit=gone),
    ]  # fmt: skip
    for event in events:
        state, _ = decide(state, event, 0.0)
    state, actions = decide(state, ChildRejected(id="c", error=ValueError("no")), 0.0)
    assert isinstance(actions[-1], Finish)
    assert state.over
