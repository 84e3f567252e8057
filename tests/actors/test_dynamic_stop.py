"""Stopping children of a pool, and the pool."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors._errors import UsageError
from shove_actors.actors import (
    ActorGone,
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    DynamicSupervisor,
    Exited,
    GraceExpired,
    Killed,
    LifecycleEvent,
    MailboxSpec,
    NameTaken,
    OnStop,
    Overrun,
    Shutdown,
    StartFailed,
    StartRejected,
    Stopped,
    open_actor_system,
    supervisor,
)
from shove_actors.actors._plan_types import Remove

from .kit import MANY, UNLIMITED, Trace, crasher, echo, worker


@pytest.mark.nasty
async def test_check41_parallel_stop(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    pool = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="lanes")]) as system:
        for n in range(50):
            await pool.start_child(worker(trace, str(n), stop_s=100, shutdown=Shutdown.within(10)))
        system.stop()
        await system.wait_stopped()
        assert trio.current_time() == 10
    assert trace.times("end") == [10] * 50
    assert len(system.report.killed) == 50


async def test_one_deadline_for_the_pool(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    pool = DynamicSupervisor(stop_grace_s=3)
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        for n in range(3):
            await pool.start_child(
                worker(trace, str(n), stop_s=n * 2, shutdown=Shutdown.within(100))
            )
    assert trace.at("end") == {"0": 0, "1": 2, "2": 3}


async def test_a_slow_stop_holds_up_nobody(autojump_clock: trio.testing.MockClock) -> None:
    """While one child takes 50 s to stop, others crash, restart, start and stop."""
    trace = Trace()
    pool = DynamicSupervisor(intensity=MANY)
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        slow = await pool.start_child(
            worker(trace, "slow", stop_s=50, shutdown=Shutdown.within(60))
        )
        await pool.start_child(crasher(trace, "bad", times=1, after_s=1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.stop_child, slow)
            await trio.sleep(2)
            assert trace.times("start", "bad") == [0, 1]
            other = await pool.start_child(worker(trace, "other"))
            await pool.stop_child(other)
            assert trio.current_time() == 2
        assert trio.current_time() == 50


async def test_cancelled_start_leaves_no_orphan(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def slow(ctx: Context[object]) -> None:
        try:
            await trio.sleep(5)
            ctx.started()
            await ctx.stop_requested.wait()
        finally:
            trace.add("end", "l1")

    pool = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        with trio.move_on_after(1):
            await pool.start_child(ChildSpec(id="l1", start=slow))
        await trio.testing.wait_all_tasks_blocked()
        assert trace.at("end") == {"l1": 1}
        assert len(pool) == 0


async def test_stop_child_during_its_backoff(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    pool = DynamicSupervisor(intensity=UNLIMITED)
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        ref = await pool.start_child(
            crasher(trace, "bad", after_s=1, backoff=Backoff(initial_s=60, max_s=60))
        )
        await trio.sleep(5)
        exit_ = await pool.stop_child(ref)
        assert isinstance(exit_, Crashed)
        assert trio.current_time() == 5
        await trio.sleep(100)
        assert trace.times("start") == [0]


async def test_two_orders_to_stop_are_one_stop(autojump_clock: trio.testing.MockClock) -> None:
    """The removal is read just after the child got up, and the report that it is up after that.

    The plan orders a stop for each; the second must not start another stop beside the first.
    """
    trace = Trace()
    pool = DynamicSupervisor()

    async def stubborn(ctx: Context[object]) -> None:
        assert pool._running is not None
        pool._running._post_if_open(Remove(id="l1"))
        ctx.started()
        with trio.CancelScope(shield=True):
            await trio.sleep_until(20)

    spec = ChildSpec(id="l1", start=stubborn, shutdown=Shutdown.within(2), overrun_s=5)
    async with open_actor_system(children=[pool.spec(id="lanes")], listener=trace.listen):
        ref = await pool.start_child(spec)
        assert await ref.watch() == Killed()
    assert [e.exit for e in trace.of(Exited)] == [Killed(), Stopped()]
    assert [e.at for e in trace.of(GraceExpired)] == [2]
    assert [e.at for e in trace.of(Overrun)] == [7, 12, 17]


@pytest.mark.parametrize("turns", range(6))
async def test_stop_child_while_it_gets_up(
    autojump_clock: trio.testing.MockClock, turns: int
) -> None:
    """The stop arrives at every possible turn of the start: the child is gone all the same."""
    trace = Trace()
    pool = DynamicSupervisor(intensity=MANY)
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        async with trio.open_nursery() as nursery:

            async def start() -> None:
                try:
                    await pool.start_child(worker(trace, "l1"))
                except (ActorGone, StartFailed):
                    pass

            nursery.start_soon(start)
            await trio.lowlevel.checkpoint()
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            await pool.stop_child("l1")
        await trio.testing.wait_all_tasks_blocked()
        # The stop may have come before there was anything to stop.
        if len(pool) == 0:
            assert len(trace.names("start")) == len(trace.names("end")) <= 1
        else:
            assert trace.names("end") == []


async def test_stop_child_with_another_grace(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    pool = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        ref = await pool.start_child(worker(trace, "l1", stop_s=50, shutdown=Shutdown.within(100)))
        assert await pool.stop_child(ref, grace_s=2) == Killed()
        assert trio.current_time() == 2
        ref = await pool.start_child(worker(trace, "l2", stop_s=50))
        assert await pool.stop_child("l2", grace_s=0) == Killed()
        assert trio.current_time() == 2
        with pytest.raises(UsageError):
            await pool.stop_child("l2", grace_s=-1)


async def test_stop_child_goes_on_when_its_caller_leaves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    pool = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        ref = await pool.start_child(worker(trace, "l1", stop_s=3))
        with trio.move_on_after(1):
            await pool.stop_child(ref)
        await ref.watch()
        assert trio.current_time() == 3


async def test_stop_child_drains(autojump_clock: trio.testing.MockClock) -> None:
    handled: list[str] = []

    async def start(ctx: Context[str]) -> None:
        ctx.started()
        async for message in ctx:
            await trio.sleep(1)
            handled.append(message)

    pool = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        ref = await pool.start_child(
            ChildSpec(id="l1", start=start, mailbox=MailboxSpec(on_stop=OnStop.DRAIN))
        )
        for message in ("m1", "m2", "m3"):
            ref.tell_nowait(message)
        await pool.stop_child(ref)
        assert handled == ["m1", "m2", "m3"]


async def test_refuses_children_once_stopping(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    pool = DynamicSupervisor()
    with pytest.raises(ActorGone):
        await pool.start_child(worker(trace, "too early"))
    async with open_actor_system(children=[pool.spec(id="lanes")]) as system:
        await pool.start_child(worker(trace, "l1", stop_s=3))
        system.stop()
        with pytest.raises(ActorGone):
            await pool.start_child(worker(trace, "too late"))
    with pytest.raises(ActorGone):
        await pool.start_child(worker(trace, "much too late"))
    assert trace.names("start") == ["l1"]


async def test_starters_are_told_when_the_pool_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def endless(ctx: Context[object]) -> None:
        await trio.sleep_forever()

    pool = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="lanes")]) as system:
        async with trio.open_nursery() as nursery:

            async def start() -> None:
                with pytest.raises(ActorGone):
                    await pool.start_child(ChildSpec(id="l1", start=endless))

            nursery.start_soon(start)
            await trio.testing.wait_all_tasks_blocked()
            system.stop()
        assert trio.current_time() == 0


async def test_stop_child_while_the_pool_stops(autojump_clock: trio.testing.MockClock) -> None:
    """It waits for the end that is under way, with the grace that is under way."""
    pool = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="lanes")]) as system:
        ref = await pool.start_child(worker(Trace(), "l1", stop_s=3))
        system.stop()
        await trio.sleep(1)
        assert await pool.stop_child(ref) == Stopped()
        assert trio.current_time() == 3
    assert system.report.killed == ()


@pytest.mark.nasty
async def test_a_starter_that_leaves_late_takes_nobody_elses_child_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A start fails, and its starter is cancelled in the turn in which the pool looks at that.

    If the pool is first, the starter's child is gone already. Were it removed "again", that would
    hit the next one of its id, which a third task may have started in that same turn. Who comes
    first is the scheduler's choice, so many pools are tried.
    """

    async def broken(ctx: Context[object]) -> None:
        await trio.sleep(1)
        raise OSError("no")

    for _ in range(40):
        pool = DynamicSupervisor()
        impatient, go = trio.CancelScope(), trio.Event()

        def leave(
            event: LifecycleEvent,
            impatient: trio.CancelScope = impatient,
            go: trio.Event = go,
        ) -> None:
            if isinstance(event, StartRejected):
                impatient.cancel()
                go.set()

        async with open_actor_system(children=[pool.spec(id="p")], listener=leave) as system:
            async with trio.open_nursery() as nursery:

                async def start(
                    pool: DynamicSupervisor = pool, impatient: trio.CancelScope = impatient
                ) -> None:
                    with impatient:
                        await pool.start_child(ChildSpec(id="l1", start=broken))

                nursery.start_soon(start)
                await go.wait()
                while True:
                    try:
                        ref = await pool.start_child(ChildSpec(id="l1", start=echo))
                        break
                    except NameTaken:
                        await trio.lowlevel.checkpoint()
            assert impatient.cancelled_caught
            await trio.testing.wait_all_tasks_blocked()
            assert await ref.ask("still there?") == "still there?"
        assert system.report.clean


async def test_a_supervisor_that_is_still_starting_is_cancelled_with_its_pool(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its first child is up and takes its time to stop; the second never gets up."""
    trace = Trace()

    async def endless(ctx: Context[object]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            trace.add("end", "B")

    pool = DynamicSupervisor()
    group = supervisor(
        id="g",
        children=[worker(trace, "A", stop_s=12, overrun_s=5), ChildSpec(id="B", start=endless)],
    )
    async with open_actor_system(children=[pool.spec(id="p")], listener=trace.listen) as system:
        async with trio.open_nursery() as nursery:

            async def start() -> None:
                with pytest.raises(ActorGone):
                    await pool.start_child(group)

            nursery.start_soon(start)
            await trio.sleep(1)
            system.stop()
    # A supervisor is never overdue: its children have graces of their own (A's is 5 s).
    assert trace.at("end") == {"B": 1, "A": 6}
    assert [e.path for e in trace.of(GraceExpired)] == ["p/g/A"]
    assert trace.of(Overrun) == []
    assert system.report.killed == ("p/g/A",)
