"""`Consumer.consume`: the pull engine behind a callback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from shove_actors._errors import IteratorClosed
from shove_actors._groups import unwrapped

from ._message import Message
from ._source import Source

#: Called for one message at a time, in order.
Handler = Callable[[Message], Awaitable[object]]


class Consuming:
    """A consume loop. Made by `consume`; leaving its block is `stop`."""

    def __init__(self, source: Source, handler: Handler) -> None:
        self._source = source
        self._handler = handler
        self._closed = trio.Event()
        #: Messages whose handler has returned.
        self.handled = 0

    def stop(self) -> None:
        """The handler at work finishes, nothing else is handed over. Returns at once."""
        self._source.stop()

    async def drain(self) -> None:
        """Ask for no more, and handle what has been sent already. See `wait_closed`."""
        await self._source.drain()

    async def wait_closed(self) -> None:
        """Until the last handler has returned: after `stop`, `drain` or `stop_after`."""
        await self._closed.wait()

    @property
    def notices(self) -> tuple[Exception, ...]:
        """The latest notices (at most 100), oldest first: what went wrong and was mended."""
        return self._source.recent

    async def _run(self) -> None:
        receive, done, handler = self._source.receive, self._source.done, self._handler
        try:
            while True:
                try:
                    message = await receive()
                except (trio.EndOfChannel, IteratorClosed):
                    return
                await handler(message)
                self.handled += 1
                done(message)
        finally:
            self._closed.set()


@asynccontextmanager
async def consuming(source: Source, handler: Handler) -> AsyncIterator[Consuming]:
    """The block around a consume loop."""
    await source.ready()
    with unwrapped(layers=2):
        async with trio.open_nursery() as nursery:
            source.start(nursery)
            loop = Consuming(source, handler)
            try:
                # The inner one ends with the loop: after `stop`, when its handler has finished.
                async with trio.open_nursery() as handlers:
                    source.open()
                    handlers.start_soon(loop._run)
                    yield loop
                    source.stop()
            finally:
                await source.close()
                nursery.cancel_scope.cancel()
