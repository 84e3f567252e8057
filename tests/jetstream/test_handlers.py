"""Handlers of `consume`: what can be one, and what a handler may do to its own loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from shove_actors._errors import InvalidOption, UsageError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Message, connect, legacy

from .kit import SOON_S, fast
from .reading import Fresh, fill, number_of, stream_of


def plain(message: Message) -> None:
    """Forgot `async`."""


async def generator(message: Message) -> AsyncIterator[int]:
    """Forgot that nobody iterates over it."""
    yield 1


class Plain:
    def method(self, message: Message) -> None:
        """Forgot `async`, too."""


@pytest.mark.parametrize(
    "handler",
    [5, None, plain, generator, Plain().method, Plain, functools.partial(plain), b"x"],
    ids=["int", "None", "def", "generator", "method", "class", "partial", "bytes"],
)
async def test_a_handler_that_is_not_asynchronous(
    server: ServerProcess, fresh_queue: Fresh, handler: Any
) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        push = await stream.create_push_consumer(durable_name="p", deliver_subject=f"to.{name}")
        async with stream.ordered_consumer() as ordered:
            for reader in (consumer, push, ordered):
                with pytest.raises(InvalidOption, match=r"handler is .*async def handler"):
                    reader.consume(handler)  # type: ignore[attr-defined]


async def test_a_handler_may_be_whatever_gives_something_to_await(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    found: list[int] = []

    class Good:
        async def __call__(self, message: Message) -> None:
            found.append(number_of(message))

        async def method(self, message: Message, extra: int = 0) -> None:
            found.append(number_of(message))

    good = Good()

    @functools.wraps(good.method)
    def wrapped(message: Message) -> Awaitable[None]:
        return good.method(message)

    handlers: list[Any] = [
        good,
        good.method,
        functools.partial(good.method, extra=1),
        lambda message: good.method(message),
        wrapped,
    ]
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, len(handlers) + 1)
        for handler in handlers:
            async with consumer.consume(handler, stop_after=1) as loop:
                await loop.wait_closed()

        async def consume() -> None:
            async with consumer.consume(lambda message: None, stop_after=1):  # type: ignore[arg-type, return-value]
                await trio.sleep_forever()

        # What cannot be seen at the call shows with the first message.
        with pytest.raises(InvalidOption, match=r"handler returned NoneType.*async def"):
            await consume()
    assert found == list(range(len(handlers)))


@pytest.mark.parametrize("kind", ["pull", "push", "ordered"])
async def test_c18_ending_it_from_inside(
    server: ServerProcess, fresh_queue: Fresh, kind: str
) -> None:
    """A handler cannot wait for its own end; it can ask for it."""
    name = fresh_queue()
    async with stream_of(server.url, name) as stream, AsyncExitStack() as stack:
        await fill(stream, 3)
        reader: Any
        if kind == "pull":
            reader = await stream.create_consumer(durable_name="d")
        elif kind == "push":
            reader = await stream.create_push_consumer(durable_name="d", deliver_subject="to.it")
        else:
            reader = await stack.enter_async_context(stream.ordered_consumer())
        found: list[int] = []

        async def handle(message: Message) -> None:
            found.append(number_of(message))
            with pytest.raises(UsageError, match=r"wait_closed\(\) inside a handler"):
                await loop.wait_closed()
            async with trio.open_nursery() as nursery:  # a task of the handler's waits as well
                nursery.start_soon(refused)
            await loop.drain()

        async def refused() -> None:
            with pytest.raises(UsageError, match="inside a handler"):
                await loop.wait_closed()

        with trio.fail_after(SOON_S):
            async with reader.consume(handle) as loop:
                await loop.wait_closed()
        # All three were here when the first handler asked for the end.
        assert found == [0, 1, 2]

        async def stopping(message: Message) -> None:
            found.append(number_of(message))
            loop.stop()

        if kind != "ordered":
            return
        await fill(stream, 2, start=3)
        with trio.fail_after(SOON_S):
            async with reader.consume(stopping) as loop:
                await loop.wait_closed()
        assert found == [0, 1, 2, 3]


async def test_c32_a_legacy_callback_cannot_wait_for_itself(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    name = fresh_queue()
    async with connect(fast(server.url)) as new:
        js = legacy.JetStreamContext(new)
        await js.add_stream(name=name, subjects=[name])
        said: list[str] = []
        heard = trio.Event()

        async def callback(message: Message) -> None:
            with pytest.raises(UsageError) as caught:
                await subscription.drain()
            said.append(str(caught.value))
            await subscription.unsubscribe()
            heard.set()

        with trio.fail_after(SOON_S):
            async with js.subscribe(name, callback) as subscription:
                await js.publish(name, b"x")
                await heard.wait()
        assert "drain() inside a handler" in said[0]
