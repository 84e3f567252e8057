"""One context in the hands of two tasks, and cancellations in the hands of the wrong one."""

from __future__ import annotations

import sys

import pytest
import trio
import trio.lowlevel
import trio.testing

from shove_actors._errors import UsageError
from shove_actors.actors import (
    ActorGone,
    AutoShutdown,
    ChildSpec,
    Context,
    Crashed,
    DynamicSupervisor,
    Exited,
    MailboxSpec,
    OnStop,
    Restart,
    Shutdown,
    open_actor_system,
    supervisor,
)

from .kit import Trace, leaves, worker

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


@pytest.mark.parametrize("how", ["loop", "receive", "nowait"])
async def test_race_two_tasks_receive(autojump_clock: trio.testing.MockClock, how: str) -> None:
    """The second task is refused at once, before it could take a message."""
    trace = Trace()

    async def server(ctx: Context[object]) -> None:
        ctx.started()

        async def loop() -> None:
            async for _ in ctx:
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop)
            await trio.testing.wait_all_tasks_blocked()
            if how == "loop":
                await loop()
            elif how == "receive":
                await ctx.receive()
            else:
                ctx.receive_nowait()

    children = [ChildSpec(id="x", start=server, restart=Restart.TEMPORARY)]
    async with open_actor_system(children=children, listener=trace.listen) as system:
        exit_ = await system.ref("x").watch()
    assert isinstance(exit_, Crashed)
    [error] = leaves(exit_.error)
    assert isinstance(error, UsageError)
    assert "receives in two tasks" in str(error)
    assert "memory channel" in str(error)


@pytest.mark.parametrize("how", ["loop", "receive", "nowait"])
async def test_race_another_task_receives_during_an_ask(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """A task works on an ask when another receives: the asker must still get its own answer."""
    refused: list[str] = []

    async def server(ctx: Context[object]) -> None:
        ctx.started()

        async def take() -> None:
            try:
                if how == "loop":
                    async for _ in ctx:
                        pass
                elif how == "receive":
                    await ctx.receive()
                else:
                    ctx.receive_nowait()
            except UsageError as error:
                refused.append(str(error))

        question = await ctx.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
        ctx.reply(f"answer to {question}")
        # Answered, the message is out of hand: another task may go on receiving.
        async for _ in ctx:
            pass

    async with open_actor_system(children=[ChildSpec(id="x", start=server)]) as system:
        assert await system.ref("x").ask("one") == "answer to one"
    assert len(refused) == 1


async def test_receiving_may_move_to_another_task(autojump_clock: trio.testing.MockClock) -> None:
    """One after the other, with nothing in hand, is no race; a cancelled receive is over."""

    async def server(ctx: Context[object]) -> None:
        ctx.started()

        async def answer() -> None:
            async for message in ctx:
                ctx.reply(message)

        with trio.move_on_after(1):
            await ctx.receive()
        ctx.reply(await ctx.receive())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)

    async with open_actor_system(children=[ChildSpec(id="x", start=server)]) as system:
        await trio.sleep(2)
        assert await system.ref("x").ask(1) == 1
        assert await system.ref("x").ask(2) == 2


async def test_an_automatic_shutdown_drains(autojump_clock: trio.testing.MockClock) -> None:
    """The group ends for good, so what waits is handled first."""
    got: list[object] = []

    async def job(ctx: Context[object]) -> None:
        ctx.started()
        await trio.sleep(1)

    async def sink(ctx: Context[object]) -> None:
        ctx.started()
        async for message in ctx:
            await trio.sleep(0.2)
            got.append(message)

    drain = MailboxSpec(on_stop=OnStop.DRAIN)
    group = supervisor(
        id="g",
        restart=Restart.TRANSIENT,
        auto_shutdown=AutoShutdown.ANY,
        children=[
            ChildSpec(id="sink", start=sink, mailbox=drain),
            ChildSpec(id="job", start=job, restart=Restart.TEMPORARY, significant=True),
        ],
    )
    async with open_actor_system(children=[group]) as system:
        ref = system.ref("g/sink")
        await trio.sleep(0.9)
        for n in range(3):
            ref.tell_nowait(n)
        await trio.sleep(2)
        assert ref.ended
    assert got == [0, 1, 2]
    assert system.dead_letters == 0


@pytest.mark.parametrize(
    ("pool_s", "own_s", "end"), [(1, 60, 2), (60, 3, 3), (1, None, 2), (60, None, 10)]
)
async def test_race_pool_deadline_and_stop_child(
    autojump_clock: trio.testing.MockClock, pool_s: float, own_s: float | None, end: float
) -> None:
    """`stop_child` began at t=0; the pool's own stop, at t=1, ends at the sooner deadline."""
    trace = Trace()
    pool = DynamicSupervisor(stop_grace_s=pool_s)

    async def stop() -> None:
        await pool.stop_child("x", grace_s=own_s)

    async with trio.open_nursery() as nursery:
        async with open_actor_system(children=[pool.spec(id="p")]):
            await pool.start_child(worker(trace, "x", stop_s=100, shutdown=Shutdown.within(10)))
            nursery.start_soon(stop)
            await trio.sleep(1)
    assert trace.at("end") == {"x": end}


async def test_race_pool_stop_before_the_removal_is_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Both are ordered in one turn; the child has not been asked yet when the pool stops."""
    trace = Trace()
    pool = DynamicSupervisor(stop_grace_s=2)
    async with trio.open_nursery() as nursery:
        async with open_actor_system(children=[pool.spec(id="p")]) as system:
            for name in "ab":
                await pool.start_child(worker(trace, name, stop_s=100))
            system.stop()
            for name, grace_s in (("a", 60), ("b", 1)):

                async def stop(name: str = name, grace_s: float = grace_s) -> None:
                    await pool.stop_child(name, grace_s=grace_s)

                nursery.start_soon(stop)
            await trio.lowlevel.checkpoint()
    assert trace.at("end")["a"] == 2
    assert trace.at("end")["b"] in (1, 2)


async def stolen() -> trio.Cancelled:
    """A `Cancelled` of a scope that is over."""
    saved: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep(1)
        except trio.Cancelled as error:
            saved.append(error)
            raise
    return saved[0]


@pytest.mark.parametrize("what", ["cancelled", "text", "class"])
async def test_port_fail_refuses_what_is_no_exception(
    autojump_clock: trio.testing.MockClock, what: str
) -> None:
    """It is the answering actor's bug, so it crashes; the asker is told that it has gone."""

    async def server(ctx: Context[object]) -> None:
        ctx.started()
        async for _ in ctx:
            answers = {"cancelled": await stolen(), "text": "no", "class": ValueError}
            port = ctx.reply_port
            assert port is not None
            port.fail(answers[what])  # type: ignore[arg-type]

    children = [ChildSpec(id="x", start=server, restart=Restart.TEMPORARY)]
    async with open_actor_system(children=children) as system:
        with pytest.raises(ActorGone) as caught:
            await system.ref("x").ask(1)
    assert isinstance(caught.value.__cause__, UsageError)
    assert "port.fail got" in str(caught.value.__cause__)


@pytest.mark.parametrize("together", [False, True])
async def test_race_foreign_cancelled_is_a_crash(
    autojump_clock: trio.testing.MockClock, together: bool
) -> None:
    """Nobody cancelled the child: it is started again, and the rest of the tree is unaffected."""
    trace = Trace()

    async def thief(ctx: Context[object]) -> None:
        cancelled = await stolen()
        ctx.started()
        if ctx.incarnation == 1:
            await trio.sleep(1)
            if together:
                raise BaseExceptionGroup("both", [cancelled, ValueError("own")])
            raise cancelled
        await ctx.stop_requested.wait()

    children = [ChildSpec(id="thief", start=thief), worker(trace, "other")]
    async with open_actor_system(children=children, listener=trace.listen) as system:
        await trio.sleep(5)
        assert not system.stopping
        [event] = trace.of(Exited)
        assert event.path == "thief"
        assert isinstance(event.exit, Crashed)
        [error] = leaves(event.exit.error)
        assert isinstance(error, ValueError if together else UsageError)
    assert trace.times("end", "other") == [5]
