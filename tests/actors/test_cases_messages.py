"""Cases from the field about messages: asks, mailboxes, back-pressure. Names start with the id."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    ActorGone,
    ChildSpec,
    Context,
    Crashed,
    DeadLetters,
    Exited,
    MailboxFull,
    MailboxSpec,
    MessageLost,
    OnRestart,
    Restart,
    Shutdown,
    open_actor_system,
    supervisor,
)

from .kit import Trace, echo

if sys.version_info < (3, 11):
    pass


@pytest.mark.nasty
async def test_pc110_asking_an_actor_that_dies(autojump_clock: trio.testing.MockClock) -> None:
    async def start(ctx: Context[str]) -> None:
        ctx.started()
        async for _ in ctx:
            await trio.sleep(1)
            raise ValueError("while answering")

    spec = ChildSpec(id="A", start=start, restart=Restart.TEMPORARY)
    async with open_actor_system(children=[spec]) as system:
        with pytest.raises(ActorGone) as caught:
            await system.ref("A").ask("?")
        assert trio.current_time() == 1
        assert str(caught.value.__cause__) == "while answering"


@pytest.mark.parametrize("how", ["stop", "crash keep", "crash clear"])
async def test_pc113_messages_left_in_the_mailbox(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """Three tells and two asks are queued. Stop: all reported, asks end. Crash: by policy."""
    trace, gate = Trace(), trio.Event()
    answers: list[object] = []

    async def start(ctx: Context[str]) -> None:
        ctx.started()
        if ctx.incarnation == 1:
            await gate.wait()
            if how != "stop":
                raise ValueError
            await ctx.stop_requested.wait()
        async for message in ctx:
            trace.add("handled", message)
            ctx.reply("answer")

    async def ask(message: str) -> None:
        try:
            answers.append(await system.ref("A").ask(message))
        except ActorGone as exc:
            answers.append(type(exc))

    policy = OnRestart.CLEAR if how == "crash clear" else OnRestart.KEEP
    spec = ChildSpec(id="A", start=start, mailbox=MailboxSpec(on_restart=policy))
    async with open_actor_system(children=[spec], listener=trace.listen) as system:
        for n in range(3):
            await system.ref("A").tell(f"tell {n}")
        async with trio.open_nursery() as nursery:
            for n in range(2):
                nursery.start_soon(ask, f"ask {n}")
                await trio.testing.wait_all_tasks_blocked()
            gate.set()
            if how == "stop":
                system.stop()
        assert trio.current_time() == 0
    if how == "crash keep":
        assert trace.names("handled") == ["tell 0", "tell 1", "tell 2", "ask 0", "ask 1"]
        assert answers == ["answer", "answer"]
        assert system.dead_letters == 0
    else:
        assert trace.names("handled") == []
        assert answers == [ActorGone, ActorGone]
        assert [e.count for e in trace.of(DeadLetters)] == [5]
        assert system.dead_letters == 5


async def test_pc115_a_blocked_pipeline_holds_back_its_source(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A million messages are on offer; what is taken is what the mailboxes hold, and no more."""

    class Message:
        __slots__ = ("__weakref__", "number")

        def __init__(self, number: int) -> None:
            self.number = number

    alive: weakref.WeakSet[Message] = weakref.WeakSet()
    offered, blocked = 1_000_000, trio.Event()
    pulled = 0
    handled: list[int] = []

    async def source(ctx: Context[object]) -> None:
        nonlocal pulled
        ctx.started()
        for number in range(offered):
            pulled += 1
            message = Message(number)
            alive.add(message)
            await ctx.system.ref("stage").tell(message)

    async def stage(ctx: Context[Message]) -> None:
        ctx.started()
        async for message in ctx:
            await ctx.system.ref("sink").tell(message)

    async def sink(ctx: Context[Message]) -> None:
        ctx.started()
        async for message in ctx:
            handled.append(message.number)
            if len(handled) == stuck_at:
                await blocked.wait()

    stuck_at = 100
    children = [
        ChildSpec(id="sink", start=sink, mailbox=MailboxSpec(capacity=10)),
        ChildSpec(id="stage", start=stage, mailbox=MailboxSpec(capacity=20)),
        ChildSpec(id="source", start=source, shutdown=Shutdown.KILL),
    ]
    async with open_actor_system(children=children) as system:
        await trio.testing.wait_all_tasks_blocked()
        # In hand at each of the three, and both mailboxes; everything before that is handled.
        held = 1 + 10 + 1 + 20 + 1
        assert len(handled) == stuck_at
        assert pulled == stuck_at - 1 + held
        gc.collect()
        assert len(alive) == held
        assert system.ref("stage").statistics().waiting_senders == 1
        assert system.dead_letters == 0
        # Nothing was lost meanwhile, and the order is that of the source.
        stuck_at = 1000
        blocked.set()
        blocked = trio.Event()
        await trio.testing.wait_all_tasks_blocked()
        assert handled == list(range(1000))
        assert pulled == 999 + held


async def test_pc115_a_sender_that_does_not_wait_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Without waiting there is no back-pressure, so what does not fit is refused, not kept."""
    refused = 0
    spec = ChildSpec(id="A", start=echo)
    async with open_actor_system(children=[spec]) as system:
        ref = system.ref("A")
        for number in range(10_000):
            try:
                ref.tell_nowait(number)
            except MailboxFull:
                refused += 1
        assert ref.statistics().depth == ref.statistics().capacity == 64
        # The waiting actor got the first one in hand.
        assert refused == 10_000 - 64 - 1
        await trio.testing.wait_all_tasks_blocked()
        assert ref.statistics().depth == 0


async def test_pc120_failure_of_a_tell_is_visible(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    async with open_actor_system(
        children=[supervisor(id="g", children=[ChildSpec(id="A", start=echo)])],
        listener=trace.listen,
    ) as system:
        await system.ref("g/A").tell("boom")
        await trio.testing.wait_all_tasks_blocked()
        [exited] = trace.of(Exited)
        assert (exited.path, exited.incarnation) == ("g/A", 1)
        assert isinstance(exited.exit, Crashed)
        assert isinstance(exited.exit.error, ValueError)
        assert [e.path for e in trace.of(MessageLost)] == ["g/A"]
