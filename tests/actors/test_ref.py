"""Asks, watching, and who is told what when an actor ends."""

from __future__ import annotations

from dataclasses import dataclass

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
    MailboxSpec,
    OnRestart,
    ReplyPort,
    Request,
    Restart,
    open_actor_system,
    supervisor,
)

from .kit import MANY, Trace, crasher, echo, worker


@dataclass(frozen=True)
class Length(Request[int]):
    text: str


async def test_ask(autojump_clock: trio.testing.MockClock) -> None:
    async def start(ctx: Context[Length]) -> None:
        ctx.started()
        async for message in ctx:
            assert ctx.reply(len(message.text))

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        ref: ActorRef[Length] = system.ref("A")
        answer = await ref.ask(Length("four"), timeout=1)
        assert answer + 1 == 5


@pytest.mark.nasty
async def test_check32_server_crashes_with_an_ask_in_hand(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_actor_system(children=[ChildSpec(id="A", start=echo)]) as system:
        ref = system.ref("A")
        with pytest.raises(ActorGone) as caught:
            await ref.ask("boom")
        assert trio.current_time() == 0
        assert isinstance(caught.value.__cause__, ValueError)
        assert await ref.ask("again") == "again"


@pytest.mark.nasty
async def test_check33_asker_leaves(autojump_clock: trio.testing.MockClock) -> None:
    """One ask times out in hand, one is cancelled in hand, one while it is still queued."""
    seen: list[tuple[str, bool, bool]] = []

    async def slow(ctx: Context[str]) -> None:
        ctx.started()
        async for message in ctx:
            port = ctx.reply_port
            assert port is not None
            abandoned = port.abandoned
            if not abandoned:
                await trio.sleep(10)
            seen.append((message, abandoned, ctx.reply("late")))

    async with open_actor_system(children=[ChildSpec(id="A", start=slow)]) as system:
        ref = system.ref("A")
        async with trio.open_nursery() as nursery:

            async def time_out() -> None:
                with pytest.raises(trio.TooSlowError):
                    await ref.ask("in hand", timeout=2)
                assert trio.current_time() == 2

            async def cancelled() -> None:
                with trio.move_on_at(3):
                    await ref.ask("queued")
                assert trio.current_time() == 3

            nursery.start_soon(time_out)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(cancelled)
        await trio.sleep_until(10.5)
        with trio.move_on_at(12):
            await ref.ask("in hand, cancelled")
        assert trio.current_time() == 12
        await trio.sleep_until(30)
        assert system.snapshot().children[0].restarts == 0
    assert seen == [
        ("in hand", False, False),
        ("queued", True, False),
        ("in hand, cancelled", False, False),
    ]


async def test_the_timeout_covers_waiting_for_room(autojump_clock: trio.testing.MockClock) -> None:
    async def stuck(ctx: Context[str]) -> None:
        ctx.started()
        await ctx.stop_requested.wait()

    spec = ChildSpec(id="A", start=stuck, mailbox=MailboxSpec(capacity=1))
    async with open_actor_system(children=[spec]) as system:
        ref = system.ref("A")
        ref.tell_nowait("fills it")
        with pytest.raises(trio.TooSlowError):
            await ref.ask("no room", timeout=4)
        assert trio.current_time() == 4
        assert ref.statistics().depth == 1


async def test_an_ask_put_aside_unanswered_ends(autojump_clock: trio.testing.MockClock) -> None:
    async def deaf(ctx: Context[str]) -> None:
        ctx.started()
        async for _ in ctx:
            pass

    async with open_actor_system(children=[ChildSpec(id="A", start=deaf)]) as system:
        with pytest.raises(ActorGone):
            await system.ref("A").ask("anybody?")


async def test_detached_ports_are_answered_later_or_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def batching(ctx: Context[str]) -> None:
        ctx.started()
        ports: list[ReplyPort] = []
        async for message in ctx:
            if message == "boom":
                raise ValueError
            port = ctx.detach_port()
            assert port is not None
            ports.append(port)
            if message == "flush":
                for n, waiting in enumerate(ports):
                    assert waiting.reply(n)
                ports.clear()

    answers: dict[str, object] = {}

    async def ask(message: str) -> None:
        try:
            answers[message] = await ref.ask(message)
        except ActorGone as exc:
            answers[message] = exc.__cause__

    async with open_actor_system(children=[ChildSpec(id="A", start=batching)]) as system:
        ref = system.ref("A")
        async with trio.open_nursery() as nursery:
            for message in ("m1", "m2", "flush"):
                nursery.start_soon(ask, message)
                await trio.testing.wait_all_tasks_blocked()
        assert answers == {"m1": 0, "m2": 1, "flush": 2}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "m3")
            await trio.testing.wait_all_tasks_blocked()
            await ref.tell("boom")
        assert isinstance(answers["m3"], ValueError)


async def test_an_error_as_the_answer(autojump_clock: trio.testing.MockClock) -> None:
    async def start(ctx: Context[str]) -> None:
        ctx.started()
        async for _ in ctx:
            assert ctx.reply_port is not None
            ctx.reply_port.fail(OSError("no such thing"))

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        with pytest.raises(OSError, match="no such thing"):
            await system.ref("A").ask("?")
        assert system.snapshot().children[0].restarts == 0


async def test_answering_twice_is_a_usage_error(autojump_clock: trio.testing.MockClock) -> None:
    async def start(ctx: Context[str]) -> None:
        ctx.started()
        async for _ in ctx:
            ctx.reply(1)
            with pytest.raises(UsageError, match="once"):
                ctx.reply(2)

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        assert await system.ref("A").ask("?") == 1
        await trio.testing.wait_all_tasks_blocked()
    assert system.report.clean


@pytest.mark.parametrize("policy", OnRestart)
async def test_queued_asks_over_a_restart(
    autojump_clock: trio.testing.MockClock, policy: OnRestart
) -> None:
    gate = trio.Event()

    async def start(ctx: Context[str]) -> None:
        ctx.started()
        await gate.wait()
        async for message in ctx:
            if message == "boom":
                raise ValueError
            ctx.reply(ctx.incarnation)

    outcome: list[object] = []

    async def ask() -> None:
        try:
            outcome.append(await system.ref("A").ask("queued"))
        except ActorGone as exc:
            outcome.append(exc.__cause__)

    spec = ChildSpec(id="A", start=start, mailbox=MailboxSpec(on_restart=policy))
    async with open_actor_system(children=[spec]) as system:
        await system.ref("A").tell("boom")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
    if policy is OnRestart.KEEP:
        assert outcome == [2]
    else:
        assert isinstance(outcome[0], ValueError)


@pytest.mark.nasty
async def test_check43_watch(autojump_clock: trio.testing.MockClock) -> None:
    living = worker(Trace(), "living")
    restarting = crasher(
        Trace(), "restarting", backoff=Backoff(initial_s=1, max_s=1), restart=Restart.TRANSIENT
    )
    ended = crasher(Trace(), "ended", restart=Restart.TEMPORARY)
    async with open_actor_system(children=[living, restarting, ended], intensity=MANY) as system:
        await trio.sleep(1)
        for name in ("living", "restarting"):
            with trio.move_on_after(50) as scope:
                await system.ref(name).watch()
            assert scope.cancelled_caught
        before = trio.current_time()
        exit_ = await system.ref("ended").watch()
        assert isinstance(exit_, Crashed)
        assert trio.current_time() == before


@pytest.mark.nasty
async def test_check45_self_ask(autojump_clock: trio.testing.MockClock) -> None:
    caught: list[UsageError] = []

    async def start(ctx: Context[str]) -> None:
        ctx.started()
        async for _ in ctx:
            with pytest.raises(UsageError, match="asks itself") as info:
                await ctx.self_ref.ask("me")
            caught.append(info.value)

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        await system.ref("A").tell("go")
        await trio.testing.wait_all_tasks_blocked()
        assert len(caught) == 1
        assert trio.current_time() == 0


async def test_a_subtask_may_ask_its_own_actor(autojump_clock: trio.testing.MockClock) -> None:
    """Only the task that would have to answer is refused; its siblings do not block it."""
    answers: list[object] = []

    async def start(ctx: Context[str]) -> None:
        async def sub() -> None:
            answers.append(await ctx.self_ref.ask("ping", timeout=5))

        async with trio.open_nursery() as nursery:
            ctx.started()
            nursery.start_soon(sub)
            async for message in ctx:
                ctx.reply(message)

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]):
        await trio.sleep(1)
    assert answers == ["ping"]


async def test_a_supervisor_takes_no_messages(autojump_clock: trio.testing.MockClock) -> None:
    group = supervisor(id="group", children=[worker(Trace(), "A")], name="the group")
    async with open_actor_system(children=[group]) as system:
        with pytest.raises(UsageError, match="supervisor"):
            system.ref("group")
        ref = system.whereis("the group")
        assert ref is not None
        with pytest.raises(UsageError, match="supervisor"):
            ref.tell_nowait("hello")


async def test_a_negative_timeout_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system(children=[ChildSpec(id="A", start=echo)]) as system:
        for timeout in (-1, float("nan")):
            with pytest.raises(UsageError, match="timeout"):
                await system.ref("A").ask("?", timeout=timeout)


async def test_tell_and_ask_are_checkpoints(autojump_clock: trio.testing.MockClock) -> None:
    async with open_actor_system(children=[ChildSpec(id="A", start=echo)]) as system:
        with trio.testing.assert_checkpoints():
            await system.ref("A").tell("m")
        with trio.testing.assert_checkpoints():
            await system.ref("A").ask("m")
        with trio.testing.assert_no_checkpoints():
            system.ref("A").tell_nowait("m")


async def test_there_is_nothing_to_detach_of_a_tell_nor_of_who_has_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ports: dict[str, ReplyPort | None] = {}

    async def start(ctx: Context[str]) -> None:
        ctx.started()
        async for message in ctx:
            if message == "asked":
                await trio.sleep(2)
            ports[message] = ctx.detach_port()
            assert ctx.reply_port is None
            assert not ctx.reply("nobody in hand")

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        ref = system.ref("A")
        await ref.tell("told")
        with pytest.raises(trio.TooSlowError):
            await ref.ask("asked", timeout=1)
        await trio.sleep(5)
        assert ports["told"] is None
        left = ports["asked"]
        assert left is not None
        assert (left.abandoned, left.open, left.reply("too late")) == (True, False, False)
    assert system.report.clean


@pytest.mark.parametrize("kind", [trio.BrokenResourceError, trio.ClosedResourceError])
async def test_an_answer_that_looks_like_a_closed_mailbox(
    autojump_clock: trio.testing.MockClock, kind: type[Exception]
) -> None:
    """What the actor answered with is raised as it is: the actor is not gone at all."""
    error = kind("of the actor's own connection")

    async def start(ctx: Context[str]) -> None:
        ctx.started()
        async for _ in ctx:
            port = ctx.reply_port
            assert port is not None
            assert port.fail(error)

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        with pytest.raises(kind) as caught:
            await system.ref("A").ask("?")
        assert caught.value is error
