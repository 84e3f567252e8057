"""`Consumer.messages`: the pull engine behind an iterator that is also a receive channel."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from shove_actors._errors import FetchTimeout, IteratorClosed
from shove_actors._groups import unwrapped

from ._block import block
from ._message import Message
from ._options import check_seconds
from ._source import Source


class MessageIterator:
    """Messages as they come, asked for ahead of time. Made by `Consumer.messages`.

        async with consumer.messages(max_messages=100) as messages:
            async for message in messages:
                await message.ack()

    Several tasks may read from one; each message goes to one of them. Cancelling a read loses
    nothing. `async for` ends after `stop`, `drain` or `stop_after`; a terminal error (the consumer
    was deleted, the connection closed) is raised once everything buffered before it was read.
    """

    def __init__(self, source: Source, *, eager: bool = True) -> None:
        self._source = source
        self._asleep = not eager

    def __repr__(self) -> str:
        return f"<MessageIterator of {self._source.name}>"

    def __aiter__(self) -> MessageIterator:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except (trio.EndOfChannel, IteratorClosed):
            raise StopAsyncIteration from None

    async def receive(self) -> Message:
        """The next message, however long it takes.

        Raises `trio.EndOfChannel` after the last one (`drain`, `stop_after`), `IteratorClosed`
        after `stop` or outside the block, and what ended the reading otherwise:
        `ConsumerDeleted`, `ConsumerNotFound`, `NotPullConsumer`, `BadRequest`,
        `RequestLimitExceeded`, `ConnectionClosed`, `PermissionDenied`.
        """
        if self._asleep:
            self._wake()
        message = await self._source.receive()
        self._source.done(message)
        return message

    def receive_nowait(self) -> Message:
        """As `receive`, but raises `trio.WouldBlock` when none is buffered."""
        if self._asleep:
            self._wake()
        message = self._source.receive_nowait()
        self._source.done(message)
        return message

    async def next(self, max_wait: float | None = None) -> Message:
        """As `receive`, for at most `max_wait` seconds; then `FetchTimeout`."""
        if max_wait is None:
            return await self.receive()
        check_seconds("max_wait", max_wait)
        with trio.move_on_after(max_wait):
            return await self.receive()
        raise FetchTimeout(f"no message from {self._source.name} within {max_wait:g} s")

    def stop(self) -> None:
        """End now. What is buffered is dropped, and delivered again after `ack_wait` (at once
        with `nak_on_stop`). Returns at once; may be repeated."""
        self._source.stop()

    async def drain(self) -> None:
        """Ask for no more; what has been sent already can still be read, then comes the end.

        Returns when the server sends no more. May be repeated."""
        await self._source.drain()

    async def aclose(self) -> None:
        """`stop`, and wait until the server has been told: at most two seconds."""
        await self._source.close()

    @property
    def buffered(self) -> int:
        """How many messages wait here to be read."""
        return self._source.buffered

    @property
    def pending(self) -> int:
        """How many are buffered or asked for."""
        return self._source.pending

    @property
    def pulls(self) -> int:
        """How many requests were sent."""
        return self._source.pulls

    @property
    def notices(self) -> tuple[Exception, ...]:
        """The latest notices (at most 100), oldest first: what went wrong and was mended."""
        return self._source.recent

    def _wake(self) -> None:
        self._asleep = False
        self._source.open()


@block(MessageIterator, "messages(...)")
async def reading(source: Source, *, eager: bool) -> AsyncIterator[MessageIterator]:
    """The block around an iterator."""
    await source.ready()
    with unwrapped(layers=1):
        async with trio.open_nursery() as nursery:
            source.start(nursery)
            if eager:
                source.open()
            try:
                yield MessageIterator(source, eager=eager)
            finally:
                await source.close()
                nursery.cancel_scope.cancel()
