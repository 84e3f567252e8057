"""Children that come and go at run time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors._errors import UsageError
from shove_actors.actors import (
    ActorGone,
    ActorRef,
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    DynamicSupervisor,
    Exited,
    GraceExpired,
    Intensity,
    Killed,
    MailboxSpec,
    NameTaken,
    OnStop,
    Overrun,
    Restart,
    RestartIntensityExceeded,
    Shutdown,
    StartFailed,
    State,
    Stopped,
    Strategy,
    open_actor_system,
    supervisor,
)
from shove_actors.actors._plan_types import Remove

from .kit import MANY, UNLIMITED, Trace, crasher, echo, leaves, worker


async def test_start_and_stop(autojump_clock: trio.testing.MockClock) -> None:
    pool = DynamicSupervisor()
    async with open_actor_system(
        children=[supervisor(id="group", children=[pool.spec(id="lanes")])]
    ) as system:
        assert system.dynamic("group/lanes") is pool
        ref = await pool.start_child(ChildSpec(id="l1", start=echo))
        assert ref.path == "group/lanes/l1"
        assert await ref.ask("hello") == "hello"
        assert pool.children == (ref,)
        assert system.ref("group/lanes/l1") is ref
        assert await pool.stop_child(ref) == Stopped()
        assert ref.ended
        assert len(pool) == 0
        # Already gone: not an error, by ref or by id.
        assert await pool.stop_child(ref) is None
        assert await pool.stop_child("l1") is None
        again = await pool.start_child(ChildSpec(id="l1", start=echo))
        assert again is not ref
        # The old ref does not stop the new child that has its id.
        assert await pool.stop_child(ref) is None
        assert not again.ended


async def test_check07_41_parallel_stop(autojump_clock: trio.testing.MockClock) -> None:
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


async def test_a_restart_in_the_pool_leaves_the_others_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    pool = DynamicSupervisor(intensity=UNLIMITED)
    backoff = Backoff(initial_s=1, max_s=1)
    async with open_actor_system(children=[pool.spec(id="lanes")]) as system:
        await pool.start_child(crasher(trace, "bad", times=3, after_s=1, backoff=backoff))
        await pool.start_child(worker(trace, "good", backoff=backoff))
        await trio.sleep(20)
        assert trace.times("start", "bad") == [0, 2, 4, 6]
        assert trace.times("start", "good") == [0]
        states = {n.name: n.state for n in system.snapshot().children[0].children}
        assert states == {"bad": State.RUNNING, "good": State.RUNNING}


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


async def test_several_start_at_the_same_time(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(ctx: Context[object]) -> None:
        await trio.sleep(5)
        ctx.started()
        await ctx.stop_requested.wait()

    pool = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        async with trio.open_nursery() as nursery:
            for n in range(10):
                nursery.start_soon(pool.start_child, ChildSpec(id=str(n), start=slow))
        assert trio.current_time() == 5
        assert len(pool) == 10


async def test_failed_start(autojump_clock: trio.testing.MockClock) -> None:
    async def broken(ctx: Context[object]) -> None:
        raise OSError("no")

    pool = DynamicSupervisor(intensity=Intensity(max_restarts=0))
    async with open_actor_system(children=[pool.spec(id="lanes")]) as system:
        with pytest.raises(StartFailed) as caught:
            await pool.start_child(ChildSpec(id="l1", start=broken, name="lane"))
        assert isinstance(caught.value.__cause__, OSError)
        assert len(pool) == 0
        # Neither the id nor the name is taken any more.
        await pool.start_child(ChildSpec(id="l1", start=echo, name="lane"))
        assert system.whereis("lane") is not None


async def test_ids_and_names_are_unique(autojump_clock: trio.testing.MockClock) -> None:
    pool = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        await pool.start_child(ChildSpec(id="l1", start=echo, name="lane"))
        with pytest.raises(NameTaken):
            await pool.start_child(ChildSpec(id="l1", start=echo))
        with pytest.raises(NameTaken):
            await pool.start_child(ChildSpec(id="l2", start=echo, name="lane"))
        assert len(pool) == 1


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


async def test_a_restarted_pool_is_empty(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    pool = DynamicSupervisor(intensity=Intensity(max_restarts=0))
    children = [pool.spec(id="lanes"), worker(trace, "autoscaler")]
    async with open_actor_system(
        children=children, strategy=Strategy.REST_FOR_ONE, listener=trace.listen
    ):
        old = await pool.start_child(worker(trace, "l1"))
        await pool.start_child(crasher(trace, "l2", after_s=1))
        await trio.sleep(2)
        [exited] = trace.of(Exited, "lanes")
        assert isinstance(exited.exit, Crashed)
        assert isinstance(exited.exit.error, RestartIntensityExceeded)
        assert trace.names("start") == ["autoscaler", "l1", "l2", "autoscaler"]
        assert old.ended
        assert len(pool) == 0
        ref: ActorRef[object] = await pool.start_child(worker(trace, "l1"))
        assert not ref.ended


async def test_temporary_children_vanish(autojump_clock: trio.testing.MockClock) -> None:
    pool = DynamicSupervisor(intensity=Intensity(max_restarts=0))
    async with open_actor_system(children=[pool.spec(id="probes")]):
        ref = await pool.start_child(crasher(Trace(), "p1", after_s=1, restart=Restart.TEMPORARY))
        assert isinstance(await ref.watch(), Crashed)
        assert trio.current_time() == 1
        assert len(pool) == 0


async def test_supervisors_as_children(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    groups = DynamicSupervisor()
    lanes = DynamicSupervisor()
    async with open_actor_system(children=[groups.spec(id="groups")]) as system:
        ref = await groups.start_child(
            supervisor(id="g1", children=[worker(trace, "a"), lanes.spec(id="lanes")])
        )
        await system.dynamic("groups/g1/lanes").start_child(worker(trace, "l1"))
        assert trace.names("start") == ["a", "l1"]
        await groups.stop_child(ref)
        assert trace.names("end") == ["l1", "a"]
        assert ref.ended


async def test_one_object_one_place(autojump_clock: trio.testing.MockClock) -> None:
    pool = DynamicSupervisor()
    with pytest.raises(StartFailed) as caught:
        async with open_actor_system(children=[pool.spec(id="a"), pool.spec(id="b")]):
            raise AssertionError("not reached")
    assert isinstance(caught.value.__cause__, UsageError)
    # After its system has ended it may be used again.
    async with open_actor_system(children=[pool.spec(id="a")]):
        await pool.start_child(ChildSpec(id="l1", start=echo))


async def test_unlimited_restarts_need_a_backoff(autojump_clock: trio.testing.MockClock) -> None:
    pool = DynamicSupervisor(intensity=UNLIMITED)
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        with pytest.raises(UsageError, match="backoff"):
            await pool.start_child(ChildSpec(id="l1", start=echo))


async def test_fatal_exception_in_a_pool(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        await trio.sleep(1)
        raise KeyboardInterrupt

    pool = DynamicSupervisor(intensity=MANY)
    group: list[BaseException] = []
    try:
        async with open_actor_system(
            children=[worker(trace, "A"), pool.spec(id="lanes")], intensity=MANY
        ):
            await pool.start_child(worker(trace, "l1", stop_s=1))
            await pool.start_child(ChildSpec(id="l2", start=start))
            await trio.sleep_forever()
    except BaseException as exc:
        group = list(leaves(exc))
    assert [type(e) for e in group] == [KeyboardInterrupt]
    assert trace.at("end") == {"l1": 2, "A": 2}
