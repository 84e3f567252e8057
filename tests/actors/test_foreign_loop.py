"""An asyncio loop inside an actor: its failures stay there, its slowness is bounded by nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    ChildSpec,
    Context,
    Crashed,
    Exited,
    Killed,
    Overrun,
    Shutdown,
    State,
    open_actor_system,
)

from .kit import Trace, leaves, worker

trio_asyncio: Any = pytest.importorskip("trio_asyncio")


@pytest.mark.nasty
async def test_check37_background_error_restarts_the_owner_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()

    async def bridge(ctx: Context[object]) -> None:
        trace.add("start", "bridge")
        async with trio_asyncio.open_loop() as loop:
            ctx.started()
            if ctx.incarnation == 1:
                loop.call_exception_handler(
                    {"message": "background task failed", "exception": OSError("lost")}
                )
            await ctx.stop_requested.wait()

    children = [worker(trace, "A"), ChildSpec(id="bridge", start=bridge), worker(trace, "C")]
    async with open_actor_system(children=children, listener=trace.listen) as system:
        await trio.sleep(1)
        assert trace.names("start") == ["A", "bridge", "C", "bridge"]
        [exited] = trace.of(Exited)
        assert isinstance(exited.exit, Crashed)
        assert [type(e) for e in leaves(exited.exit.error)] == [OSError]
    assert system.report.clean


@pytest.mark.nasty
async def test_check38_asyncio_swallows_the_cancellation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The call outlasts its cancellation by 5 s and returns: the value arrives, late."""

    async def stubborn() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return "value"

    results: list[tuple[float, object]] = []
    trace = Trace()

    async def bridge(ctx: Context[object]) -> None:
        async with trio_asyncio.open_loop():
            ctx.started()
            value = await trio_asyncio.aio_as_trio(stubborn)()
            results.append((trio.current_time(), value))

    spec = ChildSpec(id="bridge", start=bridge, shutdown=Shutdown.KILL, overrun_s=2)
    async with open_actor_system(children=[spec], listener=trace.listen) as system:
        await trio.sleep_until(1)
        assert system.snapshot().children[0].state is State.RUNNING
    assert results == [(6, "value")]
    assert [e.at for e in trace.of(Overrun)] == [3, 5]
    assert [(e.at, e.exit) for e in trace.of(Exited)] == [(6, Killed())]


@pytest.mark.nasty
async def test_check38_cancelled_caught_is_false(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return "value"

    async with trio_asyncio.open_loop():
        with trio.move_on_at(1) as scope:
            value = await trio_asyncio.aio_as_trio(stubborn)()
            assert trio.current_time() == 6
        assert value == "value"
        assert not scope.cancelled_caught
