"""The root: entering, leaving, failing, looking at it."""

from __future__ import annotations

import sys

import pytest
import trio
import trio.testing

from shove_actors._errors import UsageError
from shove_actors.actors import (
    ActorGone,
    ChildSpec,
    DynamicSupervisor,
    Kind,
    NameTaken,
    Restart,
    RestartIntensityExceeded,
    State,
    open_actor_system,
    supervisor,
)

from .kit import Trace, crasher, echo, leaves, run_until_failed, worker

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup


async def test_no_task_is_left(autojump_clock: trio.testing.MockClock) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    for _ in range(3):
        async with open_actor_system(children=[worker(Trace(), n, stop_s=1) for n in "ABC"]):
            assert trio.lowlevel.current_statistics().tasks_living > before
        assert trio.lowlevel.current_statistics().tasks_living == before


async def test_the_blocks_own_error_is_raised_as_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with open_actor_system(children=[worker(trace, "A")]):
            raise error
    assert caught.value is error
    assert trace.names("end") == ["A"]


async def test_a_failing_tree_cancels_the_block(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_actor_system(children=[crasher(Trace(), "A", after_s=1)]) as system:
            await trio.sleep_forever()
    assert isinstance(caught.value, ExceptionGroup)
    [failure] = caught.value.exceptions
    assert isinstance(failure, RestartIntensityExceeded)
    assert "'A'" in str(failure)
    assert "'system'" in str(failure)
    assert system.report.failure is failure
    assert not system.report.clean


async def test_both_errors_are_raised(autojump_clock: trio.testing.MockClock) -> None:
    async def run() -> None:
        async with open_actor_system(children=[crasher(Trace(), "A", after_s=1)]):
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("mine")

    with pytest.raises(BaseExceptionGroup) as caught:
        await run()
    assert {type(e) for e in leaves(caught.value)} == {RestartIntensityExceeded, OSError}


async def test_tree_fails_while_the_block_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The outer cancellation still arrives where it belongs, and the failure is not lost."""

    async def run() -> None:
        async with open_actor_system(children=[crasher(Trace(), "A", after_s=2)]):
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep_until(10)

    with pytest.raises(BaseExceptionGroup) as caught:
        with trio.move_on_at(1):
            await run()
    assert [type(e) for e in leaves(caught.value)] == [RestartIntensityExceeded]


async def test_stop_and_wait_are_repeatable(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system(children=[worker(Trace(), "A")]) as system:
        system.stop()
        system.stop()
        system.hard_stop()
        first = await system.wait_stopped()
        assert await system.wait_stopped() == first
        system.stop()
    assert first.clean
    system.hard_stop()


async def test_a_child_may_stop_the_system(autojump_clock: trio.testing.MockClock) -> None:
    from shove_actors.actors import Context

    async def suicidal(ctx: Context[object]) -> None:
        ctx.started()
        await trio.sleep(3)
        ctx.system.stop()
        await ctx.stop_requested.wait()

    async with open_actor_system(children=[ChildSpec(id="A", start=suicidal)]) as system:
        assert (await system.wait_stopped()).clean
        assert trio.current_time() == 3


async def test_paths(autojump_clock: trio.testing.MockClock) -> None:
    pool = DynamicSupervisor()
    children = [
        ChildSpec(id="A", start=echo),
        supervisor(id="g", children=[ChildSpec(id="B", start=echo), pool.spec(id="p")]),
    ]
    async with open_actor_system(children=children) as system:
        assert system.ref("g/B").path == "g/B"
        assert repr(system.ref("g/B")) == "<ActorRef 'g/B'>"
        for path in ("x", "g/x", "A/x", "", "g", "g/p"):
            with pytest.raises(UsageError):
                system.ref(path)
        for path in ("A", "g"):
            with pytest.raises(UsageError, match="not a dynamic supervisor"):
                system.dynamic(path)


async def test_names(autojump_clock: trio.testing.MockClock) -> None:
    children = [
        ChildSpec(id="A", start=echo, name="alpha"),
        crasher(Trace(), "B", after_s=1, restart=Restart.TEMPORARY, name="beta"),
    ]
    async with open_actor_system(children=children) as system:
        a, b = system.ref("A"), system.ref("B")
        assert system.whereis("alpha") is a
        # A name survives restarts.
        await a.tell("boom")
        assert await a.ask("x") == "x"
        assert system.whereis("alpha") is a
        with pytest.raises(NameTaken):
            system.register("alpha", b)
        system.register("also beta", b)
        await b.watch()
        assert system.whereis("beta") is None
        assert system.whereis("also beta") is None
        with pytest.raises(ActorGone):
            system.register("gamma", b)
        system.register("beta", a)
        system.unregister("beta")
        system.unregister("beta")
        assert system.whereis("beta") is None


async def test_a_name_used_twice_in_a_tree(autojump_clock: trio.testing.MockClock) -> None:
    children = [ChildSpec(id=n, start=echo, name="same") for n in "AB"]
    with pytest.raises(NameTaken):
        async with open_actor_system(children=children):
            raise AssertionError("not reached")


async def test_snapshot(autojump_clock: trio.testing.MockClock) -> None:
    from shove_actors.actors import Context, MailboxSpec

    async def idle(ctx: Context[object]) -> None:
        ctx.started()
        await ctx.stop_requested.wait()

    pool = DynamicSupervisor()
    children = [
        ChildSpec(id="A", start=idle, mailbox=MailboxSpec(capacity=5)),
        supervisor(id="g", children=[crasher(Trace(), "B", times=1, after_s=1)]),
        pool.spec(id="p"),
    ]
    async with open_actor_system(name="demo", children=children) as system:
        await system.ref("A").tell("m")
        await pool.start_child(ChildSpec(id="l1", start=echo))
        await trio.sleep(2)
        root = system.snapshot()
        assert [(n.path, n.kind, n.state, n.restarts) for n in root.walk()] == [
            ("", Kind.SUPERVISOR, State.RUNNING, 0),
            ("A", Kind.WORKER, State.RUNNING, 0),
            ("g", Kind.SUPERVISOR, State.RUNNING, 0),
            ("g/B", Kind.WORKER, State.RUNNING, 1),
            ("p", Kind.DYNAMIC, State.RUNNING, 0),
            ("p/l1", Kind.WORKER, State.RUNNING, 0),
        ]
        assert root.name == "demo"
        a = root.find("A")
        assert a is not None
        assert (a.mailbox_depth, a.mailbox_capacity) == (1, 5)
        assert root.find("nowhere") is None
        assert root.count() == {State.RUNNING: 3}
    assert system.snapshot().count() == {State.ENDED: 2}


async def test_two_systems_share_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system(children=[ChildSpec(id="A", start=echo, name="n")]) as one:
        async with open_actor_system(children=[ChildSpec(id="A", start=echo, name="n")]) as two:
            assert one.whereis("n") is not two.whereis("n")
        assert await one.ref("A").ask("x") == "x"


async def test_failure_without_an_error(autojump_clock: trio.testing.MockClock) -> None:
    """A permanent child that keeps returning is a failure too: escalated, with no cause."""
    from shove_actors.actors import Context

    async def returns(ctx: Context[object]) -> None:
        ctx.started()

    failure = await run_until_failed(ChildSpec(id="A", start=returns))
    assert isinstance(failure, RestartIntensityExceeded)
    assert failure.__cause__ is None
    assert "returned" in str(failure)


async def test_reprs_name_places_and_nothing_else(autojump_clock: trio.testing.MockClock) -> None:
    pool = DynamicSupervisor()
    children = [ChildSpec(id="A", start=echo), pool.spec(id="p")]
    async with open_actor_system(name="demo", children=children) as system:
        assert repr(system) == "<ActorSystem 'demo'>"
        assert system.name == "demo"
        await pool.start_child(ChildSpec(id="l1", start=echo))
        assert repr(pool) == "<DynamicSupervisor of 1>"
        ref = system.ref("A")
    assert repr(ref) == "<ActorRef 'A' ended>"
