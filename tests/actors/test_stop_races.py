"""A stop that meets something else: a crash, a restart, a start, another stop."""

from __future__ import annotations

import sys

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    BackingOff,
    Backoff,
    ChildSpec,
    Context,
    Ended,
    Exited,
    GraceExpired,
    LifecycleEvent,
    Overrun,
    Restart,
    Returned,
    Shutdown,
    Started,
    State,
    Stopped,
    StopRequested,
    Strategy,
    open_actor_system,
)

from .kit import Trace, crasher, worker

if sys.version_info < (3, 11):
    pass


async def test_stop_during_group_restart(autojump_clock: trio.testing.MockClock) -> None:
    """B has crashed and C is being stopped (10 s) when the whole system is asked to stop.

    C keeps its one grace, counted from when it was first asked; nothing is started again.
    """
    trace = Trace()
    children = [
        worker(trace, "A"),
        crasher(trace, "B", after_s=1),
        worker(trace, "C", stop_s=100, shutdown=Shutdown.within(10)),
    ]
    async with open_actor_system(
        children=children, strategy=Strategy.REST_FOR_ONE, listener=trace.listen
    ) as system:
        await trio.sleep(5)
        system.stop()
        await system.wait_stopped()
        assert trio.current_time() == 11
    assert trace.names("start") == ["A", "B", "C"]
    assert trace.names("end") == ["B", "C", "A"]
    assert system.report.killed == ("C",)


async def test_unseen_crash_is_in_the_report(autojump_clock: trio.testing.MockClock) -> None:
    """A crashes in the same turn in which the system is asked to stop: nobody reacts to it."""
    go = trio.Event()

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        await go.wait()
        raise ValueError("unseen")

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        await trio.testing.wait_all_tasks_blocked()
        go.set()
        system.stop()
    assert [type(late.error) for late in system.report.errors] == [ValueError]


async def test_unseen_crash_during_a_group_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A crashes while C is being stopped; before anybody looks, the whole system is stopped."""
    trace = Trace()
    children = [
        crasher(trace, "A", after_s=2),
        crasher(trace, "B", after_s=1),
        worker(trace, "C", stop_s=10, shutdown=Shutdown.within(20)),
    ]
    async with open_actor_system(children=children, strategy=Strategy.REST_FOR_ONE) as system:
        await trio.sleep(5)
    assert [(late.path, str(late.error)) for late in system.report.errors] == [("A", "A 1")]
    assert trace.names("start") == ["A", "B", "C"]


async def test_stop_between_order_and_start(autojump_clock: trio.testing.MockClock) -> None:
    """A listener stops the system in the very step in which a restart is ordered.

    The start has been handed to a task that has not run yet. It must not start the child once
    the ordered stop has gone past it: nobody would ever stop that child.
    """
    trace = Trace()
    children = [
        worker(trace, "A", restart=Restart.TEMPORARY),
        crasher(trace, "B", times=1, after_s=1),
    ]

    def stop_at_the_end_of_a(event: LifecycleEvent) -> None:
        if isinstance(event, Ended) and event.path == "A":
            system.stop()

    async with open_actor_system(
        children=children, strategy=Strategy.ONE_FOR_ALL, listener=stop_at_the_end_of_a
    ) as system:
        await system.wait_stopped()
    assert trace.names("start") == ["A", "B"]


async def test_overrun_is_reported_once_when_a_stop_overtakes_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()

    async def stubborn(ctx: Context[object]) -> None:
        ctx.started()
        with trio.CancelScope(shield=True):
            await trio.sleep_until(20)

    children = [
        crasher(trace, "B", after_s=1),
        ChildSpec(id="C", start=stubborn, shutdown=Shutdown.within(2), overrun_s=5),
    ]
    async with open_actor_system(
        children=children, strategy=Strategy.REST_FOR_ONE, listener=trace.listen
    ):
        await trio.sleep(4)
    assert [e.at for e in trace.of(GraceExpired)] == [3]
    assert [e.at for e in trace.of(Overrun)] == [8, 13, 18]


async def test_a_child_that_is_starting_is_cancelled_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Even if others, started before it was restarted, take their time to stop."""
    trace = Trace()

    async def slow_again(ctx: Context[object]) -> None:
        try:
            if ctx.incarnation > 1:
                await trio.sleep_forever()
            ctx.started()
            await trio.sleep(1)
            raise ValueError
        finally:
            trace.add("end", "A")

    children = [ChildSpec(id="A", start=slow_again), worker(trace, "B", stop_s=3)]
    async with open_actor_system(children=children):
        await trio.sleep(2)
    assert trace.times("end", "A") == [1, 2]
    assert trace.times("end", "B") == [5]


@pytest.mark.nasty
async def test_who_ended_before_the_stop_began_is_not_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A's crash dooms B; B ends by itself between the order to stop it and its first step.

    Whether B is quicker is the scheduler's choice, so many trees are tried. An end that is asked
    about afterwards would leave the slot STOPPING for good, and tell a story that did not happen.
    """
    for _ in range(30):
        trace, go = Trace(), trio.Event()

        async def quick(ctx: Context[object], go: trio.Event = go) -> None:
            ctx.started()
            if ctx.incarnation == 1:
                await go.wait()
                return
            await ctx.stop_requested.wait()

        def listen(event: LifecycleEvent, trace: Trace = trace, go: trio.Event = go) -> None:
            trace.listen(event)
            if isinstance(event, BackingOff):
                go.set()

        backoff = Backoff(initial_s=1, max_s=1)
        children = [
            crasher(Trace(), "A", times=1, after_s=1, backoff=backoff),
            ChildSpec(id="B", start=quick, restart=Restart.TRANSIENT),
        ]
        async with open_actor_system(
            children=children, strategy=Strategy.REST_FOR_ONE, listener=listen
        ) as system:
            await trio.sleep(5)
            story = [type(e) for e in trace.of(LifecycleEvent, "B")]
            asked = [Started, StopRequested, Exited, Started]
            assert story in ([Started, Exited, Started], asked)
            assert system.snapshot().children[1].state is State.RUNNING
            assert [e.exit for e in trace.of(Exited, "B")] == [
                Stopped() if story == asked else Returned()
            ]


async def test_overruns_go_on_when_a_stop_overtakes_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The second stop takes over at t=10, after the report of t=8: that one is not made again."""
    trace = Trace()

    async def stubborn(ctx: Context[object]) -> None:
        ctx.started()
        with trio.CancelScope(shield=True):
            await trio.sleep_until(20)

    children = [
        crasher(Trace(), "B", after_s=1),
        ChildSpec(id="C", start=stubborn, shutdown=Shutdown.within(2), overrun_s=5),
    ]
    async with open_actor_system(
        children=children, strategy=Strategy.REST_FOR_ONE, listener=trace.listen
    ) as system:
        await trio.sleep(10)
    assert [e.at for e in trace.of(GraceExpired)] == [3]
    assert [(e.at, e.since_s) for e in trace.of(Overrun)] == [(8, 5), (13, 10), (18, 15)]
    assert system.report.killed == ("C",)


@pytest.mark.parametrize("seen", [Started, Exited])
async def test_what_is_unseen_and_no_crash_is_not_reported(
    autojump_clock: trio.testing.MockClock, seen: type[LifecycleEvent]
) -> None:
    """The system is stopped in the very step in which a child gets up again, or returns."""

    async def returns(ctx: Context[object]) -> None:
        ctx.started()
        with trio.move_on_after(1):
            await ctx.stop_requested.wait()

    def stop(event: LifecycleEvent) -> None:
        if isinstance(event, seen) and event.at == 1:
            system.stop()

    async with open_actor_system(children=[ChildSpec(id="A", start=returns)]) as system:
        system.add_listener(stop)
        await system.wait_stopped()
        assert trio.current_time() == 1
    assert system.report.clean
    assert system.report.errors == ()


async def test_a_crash_is_in_the_report_once(autojump_clock: trio.testing.MockClock) -> None:
    """It ends while the stop is on its way: unseen by the loop, and noted as late by itself."""
    trace = Trace()

    def stop(event: LifecycleEvent) -> None:
        if isinstance(event, Exited):
            system.stop()

    async with open_actor_system(children=[crasher(trace, "A", after_s=1)]) as system:
        system.add_listener(stop)
        await system.wait_stopped()
    assert [(late.path, str(late.error)) for late in system.report.errors] == [("A", "A 1")]
