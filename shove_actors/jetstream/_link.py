"""One session on one server, and the calls that cross to its asyncio side."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import trio
import trio_asyncio
from nats import errors as nats_errors

from ._address import ServerAddress
from ._aio import SessionClient
from ._crossing import cross

#: What a call to the asyncio side raises when the session ends meanwhile.
_SESSION_ENDED = (nats_errors.Error, OSError, asyncio.CancelledError, RuntimeError)


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """`ended` is set once the session is over."""

    client: SessionClient
    server: ServerAddress
    ended: trio.Event
    loop: trio_asyncio.TrioEventLoop

    async def ping(self) -> bool:
        """Until the server has read everything written so far. False: the session ended first.

        Cancelling it leaves no trace.
        """
        try:
            await cross(self.loop, self.client.ping())
        except _SESSION_ENDED:
            return False
        return True

    async def drained(self) -> None:
        """Until the kernel has taken most of what was written, or the session has ended."""
        try:
            await cross(self.loop, self.client.wire.drain())
        except _SESSION_ENDED:
            # `ended` tells those who need to know.
            await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        """End the session at once; returns when the client has let go of everything."""
        self.client.wire.abort()
        try:
            await cross(self.loop, self.client.close())
        except _SESSION_ENDED:
            # Closed is closed.
            pass
