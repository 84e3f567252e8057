"""Sends an object's chunks: many on their way at once, each acknowledged.

Invariants
* At most `_WINDOW` bytes (but two chunks) are sent and not acknowledged; that is also what the
  server and the sockets in between have to hold.
* The first refusal ends it: nothing more is sent, and `send` and `finish` raise it.
* After `settle` no chunk is on its way any more, or the connection does not tell: then a purge of
  the chunks' subject finds all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from shove_actors._errors import NotConnected, RequestTimeout

from ._pub_ack import read_ack
from ._wire import pub

if TYPE_CHECKING:
    from ._connection import Connection

#: Enough to keep a connection busy whose round trip takes 10 ms, at 400 MB/s.
_WINDOW = 4 << 20


class Upload:
    """One object's chunks on their way. `patience`: seconds without any acknowledgement."""

    __slots__ = (
        "_connection",
        "_failure",
        "_most",
        "_patience",
        "_wire_subject",
        "_woken",
        "count",
        "subject",
        "unsettled",
    )

    def __init__(
        self, connection: Connection, subject: str, chunk_size: int, patience: float
    ) -> None:
        self._connection = connection
        #: Read by `Replies.fail_newest`: where this has sent to.
        self.subject = subject
        self._wire_subject = subject.encode()
        self._most = max(2, _WINDOW // chunk_size)
        self._patience = patience
        self._failure: Exception | None = None
        self._woken = trio.Event()
        #: How many chunks were sent, and how many of them are not acknowledged.
        self.count = 0
        self.unsettled = 0

    async def send(self, chunk: bytes) -> None:
        """One more, as soon as there is room."""
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._until_at_most(self._most - 1)
        reply_to = self._connection.replies.expect(_settled, self)
        if not self._connection.write_through(pub(self._wire_subject, reply_to, chunk)):
            self._connection.replies.forget(reply_to)
            raise NotConnected("the connection was lost while an object was being stored")
        self.count += 1
        self.unsettled += 1

    async def finish(self) -> None:
        """Until all of them are stored."""
        await self._until_at_most(0)
        await trio.lowlevel.checkpoint()

    async def settle(self) -> None:
        """Until none is on its way, whatever became of them."""
        while self.unsettled:
            self._woken = trio.Event()
            await self._woken.wait()

    async def _until_at_most(self, most: int) -> None:
        while self.unsettled > most and self._failure is None:
            self._woken = trio.Event()
            with trio.move_on_after(self._patience) as waiting:
                await self._woken.wait()
            if waiting.cancelled_caught and not self._woken.is_set():
                raise RequestTimeout(
                    f"no acknowledgement of an object's chunk within {self._patience:g} s"
                )
        if self._failure is not None:
            raise self._failure


def _settled(argument: object, header_block: bytes | None, payload: bytes | Exception) -> None:
    upload = argument
    assert isinstance(upload, Upload)
    upload.unsettled -= 1
    upload._woken.set()
    outcome = (
        payload
        if isinstance(payload, Exception)
        else read_ack(upload.subject, header_block, payload)
    )
    if isinstance(outcome, Exception) and upload._failure is None:
        upload._failure = outcome
