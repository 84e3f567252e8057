"""Order, restart kinds, strategies, group restarts."""

from __future__ import annotations

import logging
import sys

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    ActorGone,
    ChildSpec,
    Context,
    Crashed,
    Exited,
    Intensity,
    MailboxSpec,
    OnStop,
    Restart,
    RestartIntensityExceeded,
    Returned,
    StartFailed,
    State,
    Stopped,
    Strategy,
    open_actor_system,
    supervisor,
)

from .kit import MANY, Trace, crasher, echo, leaves, run_until_failed, worker

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

if sys.version_info < (3, 11):
    pass


async def test_check01_order_of_start_and_stop(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    async with open_actor_system(children=[worker(trace, n) for n in "ABC"]) as system:
        assert trace.names("start") == ["A", "B", "C"]
        system.stop()
        await system.wait_stopped()
    assert trace.names("end") == ["C", "B", "A"]


@pytest.mark.nasty
async def test_check02_cancelled_from_outside(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    children = [worker(trace, n, stop_s=1) for n in "ABC"]
    with trio.move_on_at(10) as scope:
        async with open_actor_system(children=children, listener=trace.listen) as system:
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trace.at("end") == {"C": 11, "B": 12, "A": 13}
    assert trio.current_time() == 13
    assert [e.exit for e in trace.of(Exited)] == [Stopped()] * 3
    assert system.report.clean
    assert system.report.killed == ()


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
async def test_check08_restart_kinds(
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
async def test_check09_strategies(
    autojump_clock: trio.testing.MockClock, strategy: Strategy, starts: dict[str, int]
) -> None:
    """One crash costs one restart of the budget, however many go down: 1 is enough, 0 is not."""
    trace = Trace()

    def children(trace: Trace) -> list[ChildSpec]:
        b = crasher(trace, "B", times=1, after_s=1)
        return [worker(trace, "A"), b, worker(trace, "C")]

    async with open_actor_system(
        children=children(trace),
        strategy=strategy,
        intensity=Intensity(max_restarts=1, period_s=60),
    ) as system:
        await trio.sleep(2)
        assert {n: trace.names("start").count(n) for n in "ABC"} == starts
        assert [node.state for node in system.snapshot().children] == [State.RUNNING] * 3
    none = Intensity(max_restarts=0, period_s=60)
    failure = await run_until_failed(*children(Trace()), strategy=strategy, intensity=none)
    assert isinstance(failure, RestartIntensityExceeded)
    # Those dragged down end in reverse order, and start again in order, at the same instant.
    again = [n for n in "ABC" if starts[n] == 2]
    assert trace.names("start")[3:] == again
    dragged = [n for n in "CBA" if starts[n] == 2 and n != "B"]
    assert trace.names("end")[: 1 + len(dragged)] == ["B", *dragged]
    assert trace.times("start")[3:] == [1.0] * len(again)


async def test_check10_temporary_sibling_in_a_group_restart(
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
        assert trace.at("end")["A"] == 1
        assert ref.ended
        assert await ref.watch() == Stopped()
        with pytest.raises(ActorGone):
            ref.tell_nowait("hello")


@pytest.mark.parametrize("budget", [1, 2])
async def test_check11_sibling_fails_to_start_in_a_group_restart(
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
        assert trace.names("start") == ["A", "B", "C", "B", "C"]
        assert trace.names("end") == ["B", "B", "A"]
        return
    async with open_actor_system(
        children=children, intensity=intensity, strategy=Strategy.REST_FOR_ONE
    ) as system:
        await trio.sleep(2)
        assert trace.names("start") == ["A", "B", "C", "B", "C", "C"]
        assert [node.state for node in system.snapshot().children] == [State.RUNNING] * 3


@pytest.mark.nasty
async def test_check36_incarnations_never_overlap(
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
    assert [(t, w) for t, w, _ in trace.entries] == [
        (0, "start"),
        (4, "unwound"),
        (4, "start"),
        (13, "unwound"),
    ]


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


@pytest.mark.parametrize("how", ["stop", "fatal"])
async def test_a_nested_supervisor_that_ends_for_good_lets_its_children_drain(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """Its children do not come back either, whether it was asked to stop or cannot go on."""
    handled: list[str] = []
    raised: list[type[BaseException]] = []

    async def sink(ctx: Context[str]) -> None:
        ctx.started()
        async for message in ctx:
            await trio.sleep(1)
            handled.append(message)

    async def source(ctx: Context[object]) -> None:
        ctx.started()
        await trio.sleep(1)
        for n in range(3):
            ctx.system.ref("group/sink").tell_nowait(f"m{n}")
        if how == "fatal":
            raise KeyboardInterrupt
        ctx.system.stop()

    children = [
        ChildSpec(id="sink", start=sink, mailbox=MailboxSpec(on_stop=OnStop.DRAIN)),
        ChildSpec(id="source", start=source),
    ]
    group = supervisor(id="group", children=children)
    try:
        async with open_actor_system(children=[group]) as system:
            await system.wait_stopped()
    except BaseExceptionGroup as exc:
        raised = [type(e) for e in leaves(exc)]
    assert raised == ([KeyboardInterrupt] if how == "fatal" else [])
    assert handled == ["m0", "m1", "m2"]
    assert trio.current_time() == 4
    assert system.dead_letters == 0


async def test_a_temporary_sibling_drains_before_a_group_restart_ends_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It does not come back, so its messages are handled now or never; the group waits for it."""
    trace = Trace()
    handled: list[str] = []

    async def sink(ctx: Context[str]) -> None:
        ctx.started()
        async for message in ctx:
            await trio.sleep(1)
            handled.append(message)

    mailbox = MailboxSpec(on_stop=OnStop.DRAIN)
    children = [
        ChildSpec(id="A", start=sink, restart=Restart.TEMPORARY, mailbox=mailbox),
        crasher(trace, "B", times=1, after_s=1),
    ]
    async with open_actor_system(children=children, strategy=Strategy.ONE_FOR_ALL) as system:
        for n in range(3):
            system.ref("A").tell_nowait(f"m{n}")
        await trio.sleep(10)
        assert handled == ["m0", "m1", "m2"]
        assert trace.times("start", "B") == [0, 3]
        assert system.dead_letters == 0
