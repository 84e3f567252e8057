"""A supervisor that ends when its significant children have."""

from __future__ import annotations

import sys

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    AutoShutdown,
    ChildSpec,
    Context,
    Exited,
    Restart,
    Returned,
    Strategy,
    open_actor_system,
    supervisor,
)

from .kit import Trace, crasher, worker

if sys.version_info < (3, 11):
    pass


@pytest.mark.parametrize("rule", [AutoShutdown.ANY, AutoShutdown.ALL])
async def test_check40_automatic_shutdown(
    autojump_clock: trio.testing.MockClock, rule: AutoShutdown
) -> None:
    trace = Trace()

    def job(name: str, length_s: float) -> ChildSpec:
        async def start(ctx: Context[object]) -> None:
            trace.add("start", name)
            ctx.started()
            with trio.move_on_after(length_s):
                await ctx.stop_requested.wait()
            trace.add("end", name)

        return ChildSpec(id=name, start=start, restart=Restart.TRANSIENT, significant=True)

    async with open_actor_system(
        children=[worker(trace, "A"), job("B", 3), job("C", 5)], auto_shutdown=rule
    ) as system:
        report = await system.wait_stopped()
        assert report.clean
        assert trio.current_time() == (3 if rule is AutoShutdown.ANY else 5)
    assert trace.names("start") == ["A", "B", "C"]
    assert trace.names("end")[-1] == "A"


async def test_automatic_shutdown_of_a_nested_supervisor_is_a_return(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def job(ctx: Context[object]) -> None:
        ctx.started()
        await trio.sleep(3)

    nested = supervisor(
        id="drain",
        children=[
            worker(Trace(), "A"),
            ChildSpec(id="B", start=job, restart=Restart.TRANSIENT, significant=True),
        ],
        auto_shutdown=AutoShutdown.ANY,
        restart=Restart.TRANSIENT,
    )
    trace = Trace()
    async with open_actor_system(children=[nested], listener=trace.listen):
        await trio.sleep(10)
        [exited] = trace.of(Exited, "drain")
        assert exited.exit == Returned()
        assert exited.at == 3


async def test_a_stop_the_supervisor_caused_triggers_no_automatic_shutdown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    children = [
        crasher(trace, "A", times=1, after_s=1),
        worker(trace, "B", restart=Restart.TRANSIENT, significant=True),
    ]
    async with open_actor_system(
        children=children, strategy=Strategy.ONE_FOR_ALL, auto_shutdown=AutoShutdown.ANY
    ):
        await trio.sleep(5)
        assert trace.names("start") == ["A", "B", "A", "B"]
