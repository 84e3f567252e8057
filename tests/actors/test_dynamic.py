"""Children that come and go at run time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors._errors import UsageError
from shove_actors.actors import (
    ActorRef,
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    DynamicSupervisor,
    Exited,
    Intensity,
    NameTaken,
    Restart,
    RestartIntensityExceeded,
    StartFailed,
    State,
    Stopped,
    Strategy,
    open_actor_system,
    supervisor,
)

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
    other = DynamicSupervisor()
    async with open_actor_system(children=[pool.spec(id="a"), other.spec(id="b")]):
        with pytest.raises(StartFailed) as caught:
            await other.start_child(pool.spec(id="again"))
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


async def test_a_pool_that_does_not_run(autojump_clock: trio.testing.MockClock) -> None:
    """Before and after its system it is empty, and there is nothing to stop."""
    pool = DynamicSupervisor()

    async def is_empty() -> None:
        assert pool.children == ()
        assert len(pool) == 0
        assert repr(pool) == "<DynamicSupervisor of 0>"
        with trio.testing.assert_checkpoints():
            assert await pool.stop_child("l1") is None

    await is_empty()
    async with open_actor_system(children=[pool.spec(id="lanes")]):
        ref = await pool.start_child(ChildSpec(id="l1", start=echo))
    await is_empty()
    with trio.testing.assert_checkpoints():
        assert await pool.stop_child(ref) is None
