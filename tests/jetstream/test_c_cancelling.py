"""Cancelling loses nothing and leaves nothing: C33."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio

from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Message, pub

from .reading import Fresh, fill, js_of, number_of, stream_of

COUNT = 400


async def publish_slowly(connection: object, subject: bytes) -> None:
    from shove_actors.jetstream import Connection

    assert isinstance(connection, Connection)
    for number in range(COUNT):
        connection.write(pub(subject, b"", b"%d" % number))
        if number % 4 == 0:
            await trio.sleep(0.001)


@pytest.mark.parametrize("how", ["messages", "fetch", "ordered", "push"])
async def test_c33_a_cancel_every_half_millisecond(
    server: ServerProcess, fresh_queue: Fresh, how: str
) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream, AsyncExitStack() as stack:
        receive: Callable[[], Awaitable[Message]]
        if how == "push":
            push = await stream.create_push_consumer(durable_name="p", deliver_subject=f"to.{name}")
            receive = (await stack.enter_async_context(push.messages())).receive
        elif how == "ordered":
            ordered = await stack.enter_async_context(stream.ordered_consumer())
            receive = (await stack.enter_async_context(ordered.messages(max_messages=20))).receive
        else:
            consumer = await stream.create_consumer(durable_name="d")
            if how == "fetch":
                batch = await stack.enter_async_context(consumer.fetch(COUNT))
                receive = batch.receive
            else:
                iterator = consumer.messages(max_messages=20)
                receive = (await stack.enter_async_context(iterator)).receive
        found: list[int] = []
        cancelled = 0
        async with trio.open_nursery() as nursery:
            subject = f"{name}.a".encode()
            nursery.start_soon(publish_slowly, js_of(stream).connection, subject)
            with trio.fail_after(30):
                while len(found) < COUNT:
                    with trio.move_on_after(0.0005) as scope:
                        message = await receive()
                        found.append(number_of(message))
                    cancelled += scope.cancelled_caught
        assert found == list(range(COUNT))
        assert cancelled > 10


async def test_c33_nothing_is_left(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Leaving by a cancellation: no task, no subscription and no listener stays."""
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        connection = js_of(stream).connection
        consumer = await stream.create_consumer(durable_name="d")
        push = await stream.create_push_consumer(durable_name="p", deliver_subject=f"to.{name}")
        await fill(stream, 50)

        async def handle(message: Message) -> None:
            await trio.sleep_forever()

        async def everything() -> None:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(consumer.messages())
                await stack.enter_async_context(consumer.consume(handle))
                await stack.enter_async_context(consumer.fetch(1000))
                await stack.enter_async_context(push.consume(handle))
                ordered = await stack.enter_async_context(stream.ordered_consumer())
                await stack.enter_async_context(ordered.messages())
                await trio.sleep_forever()

        listeners = len(connection._listeners._listeners)
        tasks = trio.lowlevel.current_statistics().tasks_living
        loop = connection._loop
        assert loop is not None
        asyncio_tasks = len(asyncio.all_tasks(loop))
        for _ in range(3):
            with trio.move_on_after(0.2) as scope:
                await everything()
            assert scope.cancelled_caught
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert len(asyncio.all_tasks(loop)) == asyncio_tasks
        assert len(connection._subscriptions) - len(connection.inboxes) == 1  # the reply inbox
        assert len(connection._listeners._listeners) == listeners
        assert len(connection.replies) == 0
        names = {found async for found in stream.consumer_names()}
        assert names == {"d", "p"}
