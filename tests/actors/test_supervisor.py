"""Strategies, budgets, group restarts, automatic shutdown."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    ActorGone,
    AutoShutdown,
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    Ended,
    Escalated,
    Exited,
    GraceExpired,
    Intensity,
    LifecycleEvent,
    MailboxSpec,
    OnStop,
    Overrun,
    Restart,
    RestartIntensityExceeded,
    Returned,
    Shutdown,
    StartFailed,
    State,
    Stopped,
    Strategy,
    open_actor_system,
    supervisor,
)

from .kit import MANY, Trace, crasher, echo, run_until_failed, worker


async def test_check07_01_order_of_start_and_stop(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    async with open_actor_system(children=[worker(trace, n) for n in "ABC"]) as system:
        assert trace.names("start") == ["A", "B", "C"]
        system.stop()
        await system.wait_stopped()
    assert trace.names("end") == ["C", "B", "A"]


async def test_check07_02_cancelled_from_outside(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    with trio.move_on_at(10) as scope:
        async with open_actor_system(children=[worker(trace, n, stop_s=1) for n in "ABC"]):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trace.at("end") == {"C": 11, "B": 12, "A": 13}


async def test_the_block_unwinds_before_the_tree_stops(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers: list[object] = []
    with trio.move_on_at(1):
        async with open_actor_system(children=[ChildSpec(id="a", start=echo)]) as system:
            try:
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(5, shield=True):
                    answers.append(await system.ref("a").ask("still there?"))
    assert answers == ["still there?"]


@pytest.mark.parametrize(
    ("restart", "crash", "starts"),
    [
        (Restart.PERMANENT, False, 2),
        (Restart.PERMANENT, True, 2),
        (Restart.TRANSIENT, False, 1),
        (Restart.TRANSIENT, True, 2),
        (Restart.TEMPORARY, False, 1),
        (Restart.TEMPORARY, True, 1),
    ],
)
async def test_check07_08_restart_kinds(
    autojump_clock: trio.testing.MockClock, restart: Restart, crash: bool, starts: int
) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "A")
        ctx.started()
        if ctx.incarnation == 1:
            if crash:
                raise ValueError
            return
        await ctx.stop_requested.wait()

    children = [ChildSpec(id="A", start=start, restart=restart)]
    async with open_actor_system(children=children, listener=trace.listen) as system:
        await trio.sleep(1)
        assert len(trace.names("start")) == starts
        assert system.ref("A").ended is (starts == 1)
        first = trace.of(Exited)[0]
        assert isinstance(first.exit, Crashed if crash else Returned)
        expected = logging.ERROR if crash else logging.INFO
        if restart is Restart.PERMANENT and not crash:
            expected = logging.WARNING
        assert first.level == expected


@pytest.mark.parametrize(
    ("strategy", "starts"),
    [
        (Strategy.ONE_FOR_ONE, {"A": 1, "B": 2, "C": 1}),
        (Strategy.REST_FOR_ONE, {"A": 1, "B": 2, "C": 2}),
        (Strategy.ONE_FOR_ALL, {"A": 2, "B": 2, "C": 2}),
    ],
)
async def test_check07_09_strategies(
    autojump_clock: trio.testing.MockClock, strategy: Strategy, starts: dict[str, int]
) -> None:
    """One crash costs one restart of the budget (which is 1 here), however many go down."""
    trace = Trace()
    children = [
        worker(trace, "A"),
        crasher(trace, "B", times=1, after_s=1),
        worker(trace, "C"),
    ]
    async with open_actor_system(
        children=children, strategy=strategy, intensity=Intensity(max_restarts=1, period_s=60)
    ) as system:
        await trio.sleep(2)
        assert {n: trace.names("start").count(n) for n in "ABC"} == starts
        assert [node.state for node in system.snapshot().children] == [State.RUNNING] * 3
        assert len(system._supervisor._plan.window.times) == 1
    # Those dragged down end in reverse order, and all start again in order.
    if strategy is Strategy.ONE_FOR_ALL:
        assert trace.names("end")[:3] == ["B", "C", "A"]
        assert trace.names("start")[3:] == ["A", "B", "C"]


async def test_check07_10_temporary_sibling_in_a_group_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    children = [
        worker(trace, "A", restart=Restart.TEMPORARY),
        crasher(trace, "B", times=1, after_s=1),
    ]
    async with open_actor_system(children=children, strategy=Strategy.ONE_FOR_ALL) as system:
        ref = system.ref("A")
        await trio.sleep(2)
        assert trace.names("start") == ["A", "B", "B"]
        assert await ref.watch() == Stopped()
        with pytest.raises(ActorGone):
            ref.tell_nowait("hello")


@pytest.mark.parametrize("budget", [1, 2])
async def test_check07_11_sibling_fails_to_start_in_a_group_restart(
    autojump_clock: trio.testing.MockClock, budget: int
) -> None:
    trace = Trace()

    async def moody(ctx: Context[object]) -> None:
        trace.add("start", "C")
        if ctx.incarnation == 2:
            raise OSError("not now")
        ctx.started()
        await ctx.stop_requested.wait()

    children = [
        worker(trace, "A"),
        crasher(trace, "B", times=1, after_s=1),
        ChildSpec(id="C", start=moody),
    ]
    intensity = Intensity(max_restarts=budget, period_s=60)
    if budget == 1:
        failure = await run_until_failed(
            *children, intensity=intensity, strategy=Strategy.REST_FOR_ONE
        )
        assert isinstance(failure, RestartIntensityExceeded)
        assert isinstance(failure.__cause__, StartFailed)
        assert isinstance(failure.__cause__.__cause__, OSError)
        return
    async with open_actor_system(
        children=children, intensity=intensity, strategy=Strategy.REST_FOR_ONE
    ) as system:
        await trio.sleep(2)
        assert trace.names("start") == ["A", "B", "C", "B", "C", "C"]
        assert len(system._supervisor._plan.window.times) == 2


async def test_check07_12_restart_storm(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    failure = await run_until_failed(
        *(crasher(trace, f"c{i}") for i in range(10)),
        intensity=Intensity(max_restarts=3, period_s=5),
        listener=trace.listen,
    )
    assert len(trace.names("start")) == 13
    assert isinstance(failure, RestartIntensityExceeded)
    assert isinstance(failure.__cause__, ValueError)
    [escalated] = trace.of(Escalated)
    assert escalated.child == str(failure.__cause__).split()[0]


async def test_check07_13_the_boundary_of_the_period_counts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    intensity = Intensity(max_restarts=1, period_s=5)
    failure = await run_until_failed(crasher(Trace(), "A", after_s=5.0), intensity=intensity)
    assert isinstance(failure, RestartIntensityExceeded)
    assert trio.current_time() == 10

    trace = Trace()
    async with open_actor_system(
        children=[crasher(trace, "A", after_s=5.001)], intensity=intensity
    ):
        await trio.sleep(1000)
    assert len(trace.names("start")) > 190


async def test_check07_14_nested_budgets_multiply(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    one = Intensity(max_restarts=1, period_s=60)
    third = supervisor(id="three", children=[crasher(trace, "leaf")], intensity=one)
    second = supervisor(id="two", children=[third], intensity=one)
    failure: BaseException | None = await run_until_failed(second, intensity=one)
    assert len(trace.names("start")) == 8
    for _ in range(3):
        assert isinstance(failure, RestartIntensityExceeded)
        failure = failure.__cause__
    assert isinstance(failure, ValueError)


async def test_check07_18_stop_during_a_backoff(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    with trio.move_on_at(2):
        async with open_actor_system(
            children=[crasher(trace, "A", backoff=Backoff(initial_s=60, max_s=60))]
        ):
            await trio.sleep_forever()
    assert trio.current_time() == 2
    assert trace.times("start") == [0]


async def test_check07_19_backoff_does_not_hold_up_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    children = [
        crasher(trace, "A", times=1, backoff=Backoff(initial_s=60, max_s=60)),
        crasher(trace, "B", times=1, after_s=1, backoff=Backoff(initial_s=1, max_s=1)),
    ]
    async with open_actor_system(children=children, intensity=MANY) as system:
        await trio.sleep(30)
        assert system.snapshot().children[0].state is State.BACKOFF
        await trio.sleep(70)
    assert trace.times("start", "B") == [0, 2]
    assert trace.times("start", "A") == [0, 60]


async def test_followers_wait_behind_a_leader_in_backoff(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    children = [
        worker(trace, "A"),
        crasher(trace, "B", times=1, after_s=1, backoff=Backoff(initial_s=10, max_s=10)),
        worker(trace, "C", stop_s=2),
    ]
    async with open_actor_system(children=children, strategy=Strategy.REST_FOR_ONE, intensity=MANY):
        await trio.sleep(20)
    assert trace.times("end", "C")[0] == 3
    assert trace.times("start", "B") == [0, 11]
    assert trace.times("start", "C") == [0, 11]
    assert trace.times("start", "A") == [0]


async def test_check07_22_a_crash_while_stopping(autojump_clock: trio.testing.MockClock) -> None:
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
    [late] = system.report.errors
    assert late.path == "B"
    assert isinstance(late.error, ValueError)
    assert not system.report.clean


async def test_check07_36_incarnations_never_overlap(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()

    async def grandchild() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)
            trace.add("unwound", "A")

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "A")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(grandchild)
            ctx.started()
            await trio.sleep(1)
            if ctx.incarnation == 1:
                raise ValueError
            await ctx.stop_requested.wait()
            nursery.cancel_scope.cancel()

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]):
        await trio.sleep(10)
    assert [(t, w) for t, w, _ in trace.entries[:3]] == [(0, "start"), (4, "unwound"), (4, "start")]


@pytest.mark.parametrize("rule", [AutoShutdown.ANY, AutoShutdown.ALL])
async def test_check07_40_automatic_shutdown(
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


async def test_one_for_all_waits_for_the_backoff_as_a_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    backoff = Backoff(initial_s=10, max_s=10)
    children = [worker(trace, "A"), crasher(trace, "B", times=1, after_s=1, backoff=backoff)]
    async with open_actor_system(children=children, strategy=Strategy.ONE_FOR_ALL):
        await trio.sleep(20)
    assert trace.times("start") == [0, 0, 11, 11]


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


async def test_children_of_a_supervisor_that_is_gone_are_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    group = supervisor(
        id="group",
        children=[worker(Trace(), "A"), crasher(Trace(), "B", after_s=1)],
        intensity=Intensity(max_restarts=0),
        restart=Restart.TEMPORARY,
    )
    async with open_actor_system(children=[group]) as system:
        ref = system.ref("group/A")
        await ref.watch()
        assert trio.current_time() == 1
        with pytest.raises(ActorGone):
            await ref.ask("anybody?")


async def test_two_crashes_at_once_are_one_restart_each(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Under one_for_all a sibling that died at the same moment is part of the one restart."""
    trace = Trace()
    children = [crasher(trace, n, times=1, after_s=1) for n in "AB"]
    async with open_actor_system(
        children=children,
        strategy=Strategy.ONE_FOR_ALL,
        intensity=Intensity(max_restarts=1, period_s=60),
    ) as system:
        await trio.sleep(5)
        assert trace.names("start") == ["A", "B", "A", "B"]
        assert [node.state for node in system.snapshot().children] == [State.RUNNING] * 2


async def test_refs_survive_a_restart_of_their_supervisor(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def start(ctx: Context[str]) -> None:
        ctx.started()
        async for message in ctx:
            if message == "boom":
                raise ValueError
            ctx.reply(ctx.incarnation)

    nested = supervisor(
        id="group",
        children=[ChildSpec(id="A", start=start)],
        intensity=Intensity(max_restarts=0),
    )
    async with open_actor_system(children=[nested], intensity=MANY) as system:
        ref = system.ref("group/A")
        assert await ref.ask("which?") == 1
        await ref.tell("boom")
        assert await ref.ask("which?") == 2
        assert system.snapshot().children[0].restarts == 1


async def test_empty_tree(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system(children=[]) as system:
        assert system.snapshot().children == ()
    assert system.report.clean
