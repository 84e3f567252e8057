"""Long lists, asked for page by page as they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Lister(Generic[T]):
    """Items of a list that the server hands out in pages.

        async for name in js.stream_names():
            print(name)

    Between two pages the list may change: what is added or removed meanwhile may be missing, or
    come twice. It needs no closing; it is an async context manager for those who like to.
    Reading raises what the request raises (`ApiError`, `RequestTimeout`, ...); a cancelled read
    loses nothing, the page is asked for again.
    """

    __slots__ = ("_buffer", "_closed", "_done", "_offset", "_page")

    def __init__(self, page: Callable[[int], Awaitable[tuple[Iterable[T], int, int]]]) -> None:
        """`page(offset)` gives items, how many the server counted in them, and the total."""
        self._page = page
        self._buffer: deque[T] = deque()
        self._offset = 0
        self._done = False
        self._closed = False

    def __aiter__(self) -> Lister[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise StopAsyncIteration from None

    async def receive(self) -> T:
        """The next item. Raises `trio.EndOfChannel` after the last one."""
        while not self._buffer:
            if self._closed:
                raise trio.ClosedResourceError
            if self._done:
                raise trio.EndOfChannel
            items, counted, total = await self._page(self._offset)
            self._buffer.extend(items)
            self._offset += counted
            self._done = not counted or self._offset >= total
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._buffer.popleft()

    def receive_nowait(self) -> T:
        """The next item of the page at hand. Raises `trio.WouldBlock`, `trio.EndOfChannel`."""
        if self._buffer:
            return self._buffer.popleft()
        raise trio.EndOfChannel if self._done else trio.WouldBlock

    async def aclose(self) -> None:
        """Ask for no more pages."""
        self._buffer.clear()
        self._closed = True
        await trio.lowlevel.checkpoint_if_cancelled()

    async def __aenter__(self) -> Lister[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
