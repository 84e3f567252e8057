"""A bucket's changes as an iterator that is also a receive channel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

from shove_actors._errors import JetStreamError

from ._ordered_push import OrderedPush, OrderedRequest, ordered_push

if TYPE_CHECKING:
    from ._context import JetStream
    from ._ordered_buffer import Pushed
    from ._store_errors import Translate

T = TypeVar("T")


class Watcher(trio.abc.ReceiveChannel["T | None"]):
    """Changes in order: what is there first, then None once, then what happens from now on.

        async with kv.watch("orders.>") as watcher:
            for entry in await watcher.initial():
                ...
            async for entry in watcher:
                ...

    None says "that was the initial state". It comes exactly once, also when there was nothing, and
    never with `updates_only`. Restarts of the server and lost connections are bridged: nothing is
    missing afterwards and nothing comes twice.

    The iteration ends after `stop` or `aclose`. Reading raises `ConnectionClosed` when the
    connection is closed, and `BucketNotFound` when the bucket is gone. A cancelled read loses
    nothing; what is buffered in this process is bounded by the server's flow control.
    """

    def __init__(
        self, push: OrderedPush, read: Callable[[Pushed], T | None], translate: Translate
    ) -> None:
        self._push = push
        self._translate = translate
        self._buffer = push.buffer
        self._read = read
        #: The initial state has been taken.
        self._caught_up = not push.buffer.has_mark

    async def receive(self) -> T | None:
        """The next change, or None behind the initial state. Raises `trio.EndOfChannel`."""
        while True:
            try:
                message = await self._buffer.receive()
            except JetStreamError as exc:
                self._translate(exc)
                raise
            if message is None:
                self._caught_up = True
                return None
            item = self._read(message)
            if item is not None:
                return item

    def receive_nowait(self) -> T | None:
        """As `receive`. Raises `trio.WouldBlock` when nothing has arrived."""
        while True:
            try:
                message = self._buffer.receive_nowait()
            except JetStreamError as exc:
                self._translate(exc)
                raise
            if message is None:
                self._caught_up = True
                return None
            item = self._read(message)
            if item is not None:
                return item

    async def wait_initial(self) -> None:
        """Until all of the initial state has arrived; it is still there to be read.

        At once with `updates_only`. All of it is held in memory then, however large it is.
        """
        try:
            await self._buffer.wait_marked()
        except JetStreamError as exc:
            self._translate(exc)
            raise

    async def initial(self) -> list[T]:
        """The rest of the initial state, and the None behind it. Cancelled, it has taken nothing.

        Empty with `updates_only`, and when it has been read before.
        """
        await self.wait_initial()
        found: list[T] = []
        while not self._caught_up:
            item = self.receive_nowait()
            if item is not None:
                found.append(item)
        return found

    def stop(self) -> None:
        """End it now, from any task: what has arrived and was not read is dropped."""
        self._push.stop()

    async def aclose(self) -> None:
        """As `stop`."""
        self.stop()
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def watching(
    js: JetStream,
    request: OrderedRequest,
    read: Callable[[Pushed], T | None],
    translate: Translate,
) -> AsyncIterator[Watcher[T]]:
    """A watcher, once its consumer exists. `translate`: what its failures mean."""
    async with ordered_push(js, request, translate) as push:
        yield Watcher(push, read, translate)
