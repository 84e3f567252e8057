"""`Consumer.consume`: the pull engine behind a callback."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator

import trio

from shove_actors._errors import IteratorClosed, UsageError
from shove_actors._groups import unwrapped

from ._block import block
from ._handlers import Handler as Handler
from ._handlers import check_handler as check_handler
from ._handlers import not_awaitable
from ._source import Source


class Consuming:
    """A consume loop. Made by `consume`; leaving its block is `stop`."""

    def __init__(self, source: Source, handler: Handler) -> None:
        self._source = source
        self._handler = handler
        self._closed = trio.Event()
        self._task: trio.lowlevel.Task | None = None
        #: Messages whose handler has returned.
        self.handled = 0

    def stop(self) -> None:
        """The handler at work finishes, nothing else is handed over. Returns at once."""
        self._source.stop()

    async def drain(self) -> None:
        """Ask for no more, and handle what has been sent already. See `wait_closed`."""
        await self._source.drain()

    async def wait_closed(self) -> None:
        """Until the last handler has returned: after `stop`, `drain` or `stop_after`.

        Raises `UsageError` inside a handler of this loop, which would wait for itself.
        """
        refuse_inside(self, "wait_closed()")
        await self._closed.wait()

    @property
    def notices(self) -> tuple[Exception, ...]:
        """The latest notices (at most 100), oldest first: what went wrong and was mended."""
        return self._source.recent

    async def _run(self) -> None:
        self._task = trio.lowlevel.current_task()
        receive, done, handler = self._source.receive, self._source.done, self._handler
        try:
            while True:
                try:
                    message = await receive()
                except (trio.EndOfChannel, IteratorClosed):
                    return
                answer = handler(message)
                if not hasattr(answer, "__await__") and not inspect.isawaitable(answer):
                    raise not_awaitable(answer)
                await answer
                self.handled += 1
                done(message)
        finally:
            self._task = None
            self._closed.set()


def refuse_inside(loop: Consuming, what: str) -> None:
    """Raises `UsageError` in a handler of that loop, and in tasks that a handler has started:
    `what` waits until the handler has returned."""
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    while task is not None and loop._task is not None:
        if task is loop._task:
            raise UsageError(
                f"{what} inside a handler would wait for that handler, for ever; call stop() "
                f"there, and {what} outside"
            )
        nursery = task.parent_nursery
        task = nursery.parent_task if nursery is not None else None


@block(Consuming, "consume(...)")
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
