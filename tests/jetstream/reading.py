"""What the tests of consumers share: a stream with messages in it, and a record of notices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from shove_actors.jetstream import Consumer, JetStream, Message, Stream, connect, pub

from .kit import SOON_S, fast

Fresh = Callable[[], str]


@asynccontextmanager
async def stream_of(url: str, name: str, **settings: Any) -> AsyncIterator[Stream]:
    """A connection, and a stream `name` on `name.*`."""
    async with connect(fast(url)) as js:
        yield await js.create_stream(name=name, subjects=[f"{name}.*"], **settings)


def js_of(stream: Stream) -> JetStream:
    return stream._js


async def fill(stream: Stream, count: int, *, start: int = 0, size: int = 0) -> None:
    """`count` numbered messages, in order; returns when they are stored."""
    connection = js_of(stream).connection
    subject = f"{stream.name}.a".encode()
    for number in range(start, start + count - 1):
        connection.write(pub(subject, b"", b"%d" % number + bytes(size)))
    if count:
        last = b"%d" % (start + count - 1) + bytes(size)
        answer = await connection.request(subject.decode(), last)
        assert answer.status is None, answer.status


def number_of(message: Message) -> int:
    return int(message.data.rstrip(b"\0"))


class Notices:
    """An `on_error` that can be waited for."""

    def __init__(self) -> None:
        self.all: list[Exception] = []
        self._more = trio.Event()

    def __call__(self, error: Exception) -> None:
        self.all.append(error)
        self._more.set()

    async def wait(self, kind: type[Exception]) -> Exception:
        with trio.fail_after(SOON_S):
            while True:
                for error in self.all:
                    if isinstance(error, kind):
                        return error
                self._more = trio.Event()
                await self._more.wait()


async def ack_all(consumer: Consumer, count: int) -> list[int]:
    """Reads and acknowledges so many; their numbers."""
    found: list[int] = []
    async with consumer.messages(stop_after=count) as messages:
        async for message in messages:
            found.append(number_of(message))
            await message.ack()
    return found


async def until_waiting(consumer: Consumer, count: int) -> None:
    """Until the server has so many requests for this consumer."""
    with trio.fail_after(SOON_S):
        while (await consumer.info()).num_waiting != count:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def store_when_ready(js: JetStream, subject: str, data: bytes) -> None:
    """After a restart: the server listens before JetStream is ready."""
    with trio.fail_after(SOON_S):
        while (await js.connection.request(subject, data)).status is not None:  # noqa: ASYNC110
            await trio.sleep(0.02)
