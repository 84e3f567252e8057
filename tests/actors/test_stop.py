"""Stopping: order, grace, kill, hard stop, and what crosses the way."""

from __future__ import annotations

import signal
import sys

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    ChildSpec,
    Context,
    Exited,
    GraceExpired,
    Intensity,
    Killed,
    MailboxSpec,
    OnStop,
    Overrun,
    RestartIntensityExceeded,
    Shutdown,
    StopRequested,
    open_actor_system,
    supervisor,
)

from .kit import Trace, run_until_failed, worker

if sys.version_info < (3, 11):
    pass


@pytest.mark.nasty
async def test_check20_overrun(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def stubborn(ctx: Context[object]) -> None:
        ctx.started()
        with trio.CancelScope(shield=True):
            await trio.sleep_until(10)
        trace.add("end", "A")

    spec = ChildSpec(id="A", start=stubborn, shutdown=Shutdown.within(2), overrun_s=3)
    with trio.move_on_at(1):
        async with open_actor_system(children=[spec], listener=trace.listen):
            await trio.sleep_forever()
    assert [e.at for e in trace.of(GraceExpired)] == [3]
    assert [(e.at, e.since_s) for e in trace.of(Overrun)] == [(6, 3), (9, 6)]
    assert trace.at("end") == {"A": 10}
    assert trio.current_time() == 10


async def test_check21_brutal_kill(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        try:
            await trio.sleep_forever()
        finally:
            trace.add(f"stop asked {ctx.stop_requested.is_set()}", "A")

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start, shutdown=Shutdown.KILL)], listener=trace.listen
    ) as system:
        await trio.sleep(1)
    assert trace.entries == [(1, "stop asked False", "A")]
    assert trace.of(StopRequested) == []
    assert [e.exit for e in trace.of(Exited)] == [Killed()]
    assert system.report.killed == ("A",)


@pytest.mark.nasty
async def test_check22_a_crash_while_stopping(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def bad_loser(ctx: Context[object]) -> None:
        trace.add("start", "B")
        ctx.started()
        await ctx.stop_requested.wait()
        trace.add("end", "B")
        raise ValueError("while stopping")

    async with open_actor_system(
        children=[worker(trace, "A"), ChildSpec(id="B", start=bad_loser), worker(trace, "C")]
    ) as system:
        pass
    assert trace.names("end") == ["C", "B", "A"]
    assert trace.names("start") == ["A", "B", "C"]
    assert system.report.failure is None
    [late] = system.report.errors
    assert late.path == "B"
    assert isinstance(late.error, ValueError)
    assert not system.report.clean


@pytest.mark.nasty
async def test_check27_two_interrupts() -> None:
    """Real signals on the real clock: the first stops, the second is the hard stop."""
    trace = Trace()
    began = trio.current_time()

    async def stubborn(ctx: Context[object]) -> None:
        ctx.started()
        await trio.sleep_forever()

    async def interrupt_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        while not trace.of(StopRequested):
            await trio.lowlevel.checkpoint()
        signal.raise_signal(signal.SIGINT)

    children = [ChildSpec(id=n, start=stubborn, shutdown=Shutdown.within(60)) for n in "ABC"]

    async def run() -> None:
        async with open_actor_system(children=children, listener=trace.listen):
            trio.lowlevel.spawn_system_task(interrupt_twice)
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        await run()
    assert trio.current_time() - began < 1
    assert [e.path for e in trace.of(GraceExpired)] == ["C", "B", "A"]
    assert [e.exit for e in trace.of(Exited)] == [Killed()] * 3


@pytest.mark.nasty
async def test_check28_hard_stop_reaches_every_level(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    leaf = worker(trace, "leaf", stop_s=100, shutdown=Shutdown.within(60))
    async with open_actor_system(children=[supervisor(id="group", children=[leaf])]) as system:
        await trio.sleep(1)
        system.stop()
        await trio.sleep(1)
        system.hard_stop()
        await system.wait_stopped()
        assert trio.current_time() == 2
    assert trace.at("end") == {"leaf": 2}
    assert system.report.killed == ("group/leaf",)


async def test_hard_stop_ends_even_an_infinite_grace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    leaf = worker(Trace(), "leaf", stop_s=1e9, shutdown=Shutdown.INFINITY)
    async with open_actor_system(children=[leaf]) as system:
        system.hard_stop()
        await system.wait_stopped()
        assert trio.current_time() == 0
        assert system.report.killed == ("leaf",)


async def test_interrupted_work_is_given_back_uncounted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A handler cut off by the stop gives its work back in a shielded cleanup, uncounted."""
    given_back: list[tuple[str, int]] = []

    async def consumer(ctx: Context[tuple[str, int]]) -> None:
        ctx.started()
        async for work, attempts in ctx:
            finished = False
            try:
                await trio.sleep(100)
                finished = True
            except ValueError:
                given_back.append((work, attempts + 1))
            finally:
                if not finished:
                    with trio.move_on_after(1, shield=True):
                        await trio.sleep(0.5)
                        given_back.append((work, attempts))

    trace = Trace()
    async with open_actor_system(
        children=[ChildSpec(id="A", start=consumer, shutdown=Shutdown.within(2))],
        listener=trace.listen,
    ) as system:
        await system.ref("A").tell(("order", 2))
        await trio.sleep(1)
    assert given_back == [("order", 2)]
    assert trio.current_time() == 3.5
    assert [e.exit for e in trace.of(Exited)] == [Killed()]
    assert system.report.errors == ()


async def test_a_child_that_catches_cancelled_is_hit_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hits: list[float] = []

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        for _ in range(3):
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                hits.append(trio.current_time())

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start, shutdown=Shutdown.within(1))]
    ):
        pass
    assert hits == [1, 1, 1]


async def test_a_tree_that_gives_up_still_drains(autojump_clock: trio.testing.MockClock) -> None:
    handled: list[str] = []

    async def sink(ctx: Context[str]) -> None:
        ctx.started()
        async for message in ctx:
            await trio.sleep(1)
            handled.append(message)

    async def source(ctx: Context[object]) -> None:
        ctx.started()
        for n in range(3):
            ctx.system.ref("sink").tell_nowait(f"m{n}")
        raise ValueError

    failure = await run_until_failed(
        ChildSpec(id="sink", start=sink, mailbox=MailboxSpec(on_stop=OnStop.DRAIN)),
        ChildSpec(id="source", start=source),
        intensity=Intensity(max_restarts=0),
    )
    assert isinstance(failure, RestartIntensityExceeded)
    assert handled == ["m0", "m1", "m2"]
