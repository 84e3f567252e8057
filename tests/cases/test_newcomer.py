"""What goes wrong in the first ten minutes: each mistake is answered with what to do."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import pytest
import trio
import trio.testing

from shove_actors import (
    ConnectionError,
    EncodeError,
    HandlerError,
    JetStreamNotEnabled,
    MemoryConfig,
    NatsConfig,
    Outcome,
    Topic,
    TopicNotDeclared,
    TopologyBuilder,
    UsageError,
    embedded_server,
    open_broker,
)
from tests.support import wait_until


def greetings(queue: str = "greetings") -> Topic[str]:
    return Topic(str, TopologyBuilder(queue).dlq().build())


async def handle(name: str) -> Outcome:
    return Outcome.ACK


async def test_the_server_does_not_run() -> None:
    what = r"cannot connect to nats://127\.0\.0\.1:1: .*nobody listens there: start `nats-server"
    with pytest.raises(ConnectionError, match=what):
        async with open_broker(NatsConfig("nats://127.0.0.1:1", connect_timeout=0.5)):
            pytest.fail("connected to nobody")


async def test_jetstream_is_off() -> None:
    async with embedded_server(jetstream=False) as server:
        async with open_broker(NatsConfig(server.url)) as broker:
            with pytest.raises(JetStreamNotEnabled, match="start nats-server with the -js flag"):
                await broker.declare(greetings())


async def test_the_topic_is_not_declared(autojump_clock: trio.testing.MockClock) -> None:
    async with open_broker(MemoryConfig()) as broker:
        with pytest.raises(TopicNotDeclared, match=r"broker\.declare"):
            await broker.publisher().publish(greetings(), "world")
        group = broker.consumer_group()
        group.register(greetings(), handle)
        with pytest.raises(TopicNotDeclared, match=r"broker\.declare"):
            await group.serve()


async def test_a_message_of_another_type(autojump_clock: trio.testing.MockClock) -> None:
    async with open_broker(MemoryConfig()) as broker:
        await broker.declare(greetings())
        with pytest.raises(EncodeError, match="topic 'greetings' takes str, not int: publish str"):
            await broker.publisher().publish(greetings(), 3)  # type: ignore[misc]


async def test_a_name_in_place_of_the_topic(autojump_clock: trio.testing.MockClock) -> None:
    async with open_broker(MemoryConfig()) as broker:
        group = broker.consumer_group()
        for call in (group.register, group.register_dlq):
            what = f"^{call.__name__} takes a topic and then its handler; the first is str$"
            with pytest.raises(UsageError, match=what):
                call("greetings", handle)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="publish takes a topic and then the message"):
            await broker.publisher().publish("greetings", "world")  # type: ignore[arg-type]


async def test_the_handler_was_called(autojump_clock: trio.testing.MockClock) -> None:
    async with open_broker(MemoryConfig()) as broker:
        with pytest.raises(HandlerError, match="give the function itself, handle without paren"):
            broker.consumer_group().register(greetings(), handle("world"))


async def test_the_handler_does_not_answer(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    called = trio.Event()

    async def forgetful(name: str) -> None:
        called.set()

    async with open_broker(MemoryConfig()) as broker:
        await broker.declare(greetings())
        await broker.publisher().publish(greetings(), "world")
        group = broker.consumer_group()
        group.register(greetings(), forgetful)
        await group.run_until(called.wait)
    (record,) = (r for r in caplog.records if r.__dict__["shove_event"] == "handler_invalid")
    assert "returned NoneType" in record.getMessage()
    assert record.getMessage().endswith("Return Outcome.ACK when the message is done")


async def test_await_was_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    async with open_broker(MemoryConfig()) as broker:
        await broker.declare(greetings())
        with pytest.warns(RuntimeWarning, match=r"coroutine 'Publisher.publish' was never awaited"):
            broker.publisher().publish(greetings(), "world")  # type: ignore[unused-coroutine]


async def test_a_group_is_never_run(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_broker(MemoryConfig()) as broker:
        await broker.declare(greetings(), greetings("farewells"))
        broker.consumer_group()  # nothing is registered: nothing to say
        run = broker.consumer_group()
        run.register(greetings(), handle)
        async with trio.open_nursery() as nursery:
            await nursery.start(run.serve)
            run.stop()
        broker.consumer_group().register(greetings("farewells"), handle)
    (record,) = (r for r in caplog.records if r.__dict__["shove_event"] == "group_never_run")
    assert "of ['farewells']> was never run" in record.getMessage()
    assert "await group.run_until()" in record.getMessage()


async def test_a_handler_blocks_the_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    handled = trio.Event()

    async def block(name: str) -> Outcome:
        time.sleep(1.1)  # noqa: ASYNC251 - the mistake
        handled.set()
        return Outcome.ACK

    async with open_broker(MemoryConfig()) as broker:
        await broker.declare(greetings())
        await broker.publisher().publish(greetings(), "world")
        group = broker.consumer_group()
        group.register(greetings(), block)
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            await handled.wait()
            await wait_until(lambda: "event loop was blocked" in caplog.text, 5)
            group.stop()
    (record,) = (r for r in caplog.records if r.__dict__["shove_event"] == "loop_blocked")
    assert record.levelno == logging.WARNING
    assert 1.0 < record.__dict__["shove_seconds"] < 30
    assert "plain function" in record.getMessage()


ASYNCIO = """
import asyncio
from shove_actors import MemoryConfig, UsageError, embedded_server, jetstream, open_broker

async def main():
    for opened in (open_broker(MemoryConfig()), embedded_server(), jetstream.connect()):
        try:
            async with opened:
                print("opened")
        except UsageError as exc:
            print(exc)

{first}
asyncio.run(main())
"""


@pytest.mark.parametrize("first", ["", "import trio_asyncio"])
def test_asyncio_run(first: str) -> None:
    program = ASYNCIO.format(first=first)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    said = "runs in Trio, and this is asyncio: start the program with trio.run(main)"
    lines = done.stdout.splitlines()
    for line, what in zip(
        lines, ["open_broker", "embedded_server", "jetstream.connect"], strict=True
    ):
        assert line.startswith(f"{what} {said}")
