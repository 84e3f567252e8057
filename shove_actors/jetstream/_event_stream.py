"""A connection's events as an iterator."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import trio

from ._events import ConnectionEvent

if TYPE_CHECKING:
    from ._connection import Connection


class EventStream:
    """Events from the moment of entering on, in order; ends after `closed`.

        async with connection.events() as events:
            async for event in events:
                print(event.kind, event.server, event.error)

    Nothing is dropped: events are few, and what is not read waits until the block is left.
    Cancelling a read loses nothing.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._send, self._receive = trio.open_memory_channel[ConnectionEvent](float("inf"))
        self._entered = False

    def _tell(self, event: ConnectionEvent) -> None:
        self._send.send_nowait(event)
        if event.kind == "closed":
            self._connection.unlisten(self._tell)
            self._send.close()

    async def __aenter__(self) -> EventStream:
        if not self._entered:
            self._entered = True
            self._connection.listen(self._tell)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Hear no more. What has not been read is gone."""
        self._connection.unlisten(self._tell)
        self._send.close()
        self._receive.close()
        await trio.lowlevel.checkpoint_if_cancelled()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> ConnectionEvent:
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise StopAsyncIteration from None

    async def receive(self) -> ConnectionEvent:
        """The next event. Raises `trio.EndOfChannel` after the last one."""
        return await self._receive.receive()

    def receive_nowait(self) -> ConnectionEvent:
        """The next event if there is one. Raises `trio.WouldBlock`, `trio.EndOfChannel`."""
        return self._receive.receive_nowait()
