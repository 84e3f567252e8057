"""Mailboxes: bounds, order, restarts, the end."""

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
    DeadLetters,
    MailboxFull,
    MailboxSpec,
    MessageLost,
    OnRestart,
    OnStop,
    Restart,
    Shutdown,
    State,
    open_actor_system,
)

from .kit import MANY, Trace


def _handler(
    trace: Trace, *, gate: trio.Event | None = None, each_s: float = 0.0, **spec: object
) -> ChildSpec:
    async def start(ctx: Context[str]) -> None:
        ctx.started()
        if gate is not None and ctx.incarnation == 1:
            await gate.wait()
        async for message in ctx:
            trace.add("handled", message)
            await trio.sleep(each_s)
            if message == "boom":
                raise ValueError

    return ChildSpec(id="A", start=start, **spec)


@pytest.mark.parametrize("policy", OnRestart)
async def test_check29_mailbox_over_a_restart(
    autojump_clock: trio.testing.MockClock, policy: OnRestart
) -> None:
    trace, gate = Trace(), trio.Event()
    spec = _handler(trace, gate=gate, mailbox=MailboxSpec(on_restart=policy))
    async with open_actor_system(children=[spec], listener=trace.listen) as system:
        for message in ("boom", "m2", "m3"):
            await system.ref("A").tell(message)
        gate.set()
        await trio.sleep(1)
        assert system.snapshot().children[0].restarts == 1
        kept = ["m2", "m3"] if policy is OnRestart.KEEP else []
        assert trace.names("handled") == ["boom", *kept]
        assert system.messages_lost == 1
        assert len(trace.of(MessageLost)) == 1
        assert [e.count for e in trace.of(DeadLetters)] == ([] if kept else [2])
        assert system.dead_letters == (0 if kept else 2)


async def test_clear_lets_blocked_senders_in(autojump_clock: trio.testing.MockClock) -> None:
    """Cleared is what had been accepted; a sender that still waited gets the freed room."""
    trace, gate = Trace(), trio.Event()
    mailbox = MailboxSpec(capacity=2, on_restart=OnRestart.CLEAR)
    async with open_actor_system(children=[_handler(trace, gate=gate, mailbox=mailbox)]) as system:
        ref = system.ref("A")
        await ref.tell("boom")
        await ref.tell("m2")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.tell, "m3")
            await trio.testing.wait_all_tasks_blocked()
            # Taking "boom" lets m3 in: it is then accepted, and goes with m2.
            nursery.start_soon(ref.tell, "m4")
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        await trio.sleep(1)
        assert trace.names("handled") == ["boom", "m4"]


@pytest.mark.nasty
async def test_check30_full(autojump_clock: trio.testing.MockClock) -> None:
    trace, gate = Trace(), trio.Event()
    spec = _handler(trace, gate=gate, mailbox=MailboxSpec(capacity=2))
    async with open_actor_system(children=[spec]) as system:
        ref = system.ref("A")
        ref.tell_nowait("m1")
        ref.tell_nowait("m2")
        with pytest.raises(MailboxFull, match="holds its 2"):
            ref.tell_nowait("m3")
        with trio.move_on_at(1) as scope:
            await ref.tell("m4")
        assert scope.cancelled_caught
        statistics = ref.statistics()
        assert (statistics.depth, statistics.capacity, statistics.closed) == (2, 2, False)
        gate.set()
        await ref.tell("m5")
        await trio.sleep(1)
        assert trace.names("handled") == ["m1", "m2", "m5"]


@pytest.mark.nasty
async def test_check31_sender_blocked_over_a_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace, gate = Trace(), trio.Event()
    spec = _handler(
        trace,
        gate=gate,
        each_s=1,
        mailbox=MailboxSpec(capacity=1),
        backoff=Backoff(initial_s=5, max_s=5),
    )
    async with open_actor_system(children=[spec], intensity=MANY) as system:
        ref = system.ref("A")
        ref.tell_nowait("boom")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.tell, "m2")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ref.tell, "m3")
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
            await trio.sleep(3)
            assert system.snapshot().children[0].state is State.BACKOFF
            assert ref.statistics().waiting_senders == 1
        # Room came with the restart: crash at 1, pause of 5.
        assert trio.current_time() == 6
        await trio.sleep(5)
        assert trace.names("handled") == ["boom", "m2", "m3"]
        assert system.snapshot().children[0].restarts == 1


@pytest.mark.nasty
async def test_check34_sender_gone(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def sender(ctx: Context[object]) -> None:
        ctx.started()
        ctx.system.ref("A").tell_nowait("m1")

    children = [
        _handler(trace),
        ChildSpec(id="B", start=sender, restart=Restart.TEMPORARY),
    ]
    async with open_actor_system(children=children) as system:
        await trio.sleep(1)
        assert system.ref("B").ended
        await system.ref("A").tell("m2")
        await trio.sleep(1)
    assert trace.names("handled") == ["m1", "m2"]


@pytest.mark.nasty
async def test_check34_receiver_gone(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    async with open_actor_system(children=[_handler(trace, restart=Restart.TEMPORARY)]) as system:
        ref = system.ref("A")
        await ref.tell("boom")
        await ref.watch()
        with pytest.raises(ActorGone) as caught:
            ref.tell_nowait("m2")
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(ActorGone):
            await ref.tell("m2")
        with pytest.raises(ActorGone):
            await ref.ask("m2")
        assert trio.current_time() == 0


async def test_sender_waiting_for_room_when_the_slot_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gate = trio.Event()
    spec = _handler(Trace(), gate=gate, mailbox=MailboxSpec(capacity=1), restart=Restart.TEMPORARY)
    errors: list[ActorGone] = []

    async def send(message: str) -> None:
        try:
            await system.ref("A").tell(message)
        except ActorGone as exc:
            errors.append(exc)

    async with open_actor_system(children=[spec]) as system:
        await system.ref("A").tell("boom")
        async with trio.open_nursery() as nursery:
            for message in ("m2", "m3"):
                nursery.start_soon(send, message)
                await trio.testing.wait_all_tasks_blocked()
            gate.set()
        # One was let in when "boom" was taken; the other was refused, not lost.
        assert len(errors) == 1
        assert system.dead_letters == 1


@pytest.mark.nasty
async def test_check35_drain(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    spec = _handler(
        trace,
        each_s=1,
        mailbox=MailboxSpec(on_stop=OnStop.DRAIN),
        shutdown=Shutdown.within(60),
    )
    async with open_actor_system(children=[spec], listener=trace.listen) as system:
        ref = system.ref("A")
        for message in ("m1", "m2", "m3"):
            ref.tell_nowait(message)
        system.stop()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ActorGone):
            ref.tell_nowait("m4")
        await system.wait_stopped()
        assert trio.current_time() == 3
    assert trace.names("handled") == ["m1", "m2", "m3"]
    assert system.dead_letters == 0


async def test_stop_now_reports_what_was_waiting(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    async with open_actor_system(
        children=[_handler(trace, each_s=1)], listener=trace.listen
    ) as system:
        for message in ("m1", "m2", "m3"):
            system.ref("A").tell_nowait(message)
        await trio.testing.wait_all_tasks_blocked()
    assert trace.names("handled") == ["m1"]
    assert [e.count for e in trace.of(DeadLetters)] == [2]


async def test_receive_nowait(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[str]) -> None:
        ctx.started()
        with pytest.raises(trio.WouldBlock):
            ctx.receive_nowait()
        trace.add("got", await ctx.receive())
        trace.add("got", ctx.receive_nowait())
        await ctx.stop_requested.wait()
        with pytest.raises(trio.EndOfChannel):
            ctx.receive_nowait()
        with pytest.raises(trio.EndOfChannel):
            await ctx.receive()

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        await trio.testing.wait_all_tasks_blocked()
        system.ref("A").tell_nowait("m1")
        system.ref("A").tell_nowait("m2")
        await trio.testing.wait_all_tasks_blocked()
    assert trace.names("got") == ["m1", "m2"]
    assert system.report.clean


def test_a_mailbox_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="capacity"):
        MailboxSpec(capacity=0)


async def test_asks_are_answered_however_they_are_received(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def start(ctx: Context[str]) -> None:
        ctx.started()
        first = await ctx.receive()
        assert ctx.reply(f"{first} by receive")
        await trio.testing.wait_all_tasks_blocked()
        second = ctx.receive_nowait()
        assert ctx.reply(f"{second} by receive_nowait")
        await ctx.stop_requested.wait()

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        assert await system.ref("A").ask("m1") == "m1 by receive"
        assert await system.ref("A").ask("m2") == "m2 by receive_nowait"
    assert system.report.clean
