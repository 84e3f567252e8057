"""What an ordered reader has received and nobody has taken yet, bounded by flow control.

The server asks, in the middle of what it sends, whether it may go on. The question waits here
behind the messages before it, and is answered when they have been taken: so at most one window of
messages is ever buffered, however slow the reader is. Whoever waits for the initial state without
reading it (`wait_marked`) gets all of it, however much that is. An answer that was lost is given
again when a heartbeat says that the server is waiting for it.

Only `receive` takes items, and a cancelled `receive` has taken none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import trio

#: A reader that never has to wait lets others run every so many items.
_YIELD_EVERY = 16


class Pushed(NamedTuple):
    """One message: the subject and the numbers of its delivery, then header block and payload."""

    subject: bytes
    sequence: int
    time_ns: int
    pending: int
    header_block: bytes | None
    payload: bytes


class OrderedBuffer:
    """Items in order: messages, the mark behind the initial state (None), questions (bytes).

    `marked` as given: True when there will be no mark. `answer` is called with the subject on which
    the server waits for an answer.
    """

    def __init__(self, answer: Callable[[bytes], object], *, marked: bool = False) -> None:
        self._answer = answer
        self._buffer: deque[Pushed | bytes | None] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._eager = 0
        self._taken = 0
        self._over = False
        self._why: Callable[[], Exception] = trio.EndOfChannel
        #: There is a mark, or there will be.
        self.has_mark = not marked
        #: The mark is in the buffer, or has been taken. True when there will be none.
        self.marked = marked

    # ----------------------------------------------------------------- reading

    async def receive(self) -> Pushed | None:
        """The next message, or the mark. Raises `trio.EndOfChannel`, or why there is no more."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._buffer:
                try:
                    item = self.receive_nowait()
                except trio.WouldBlock:
                    continue
                self._taken += 1
                if self._taken % _YIELD_EVERY == 0:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return item
            if self._over:
                raise self._why()
            await self._lot.park()

    def receive_nowait(self) -> Pushed | None:
        """As `receive`, or `trio.WouldBlock`."""
        buffer = self._buffer
        while buffer:
            item = buffer.popleft()
            if type(item) is bytes:
                self._answer(item)
                continue
            if buffer and type(buffer[0]) is bytes:
                self._answer(buffer.popleft())  # type: ignore[arg-type]
            return item  # type: ignore[return-value]
        if self._over:
            raise self._why()
        raise trio.WouldBlock

    async def wait_marked(self) -> None:
        """Until the initial state is complete in the buffer, however large it is."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._eager += 1
        try:
            for item in self._buffer:
                if type(item) is bytes:
                    self._answer(item)
            self._buffer = deque(item for item in self._buffer if type(item) is not bytes)
            while not self.marked:
                if self._over:
                    raise self._why()
                await self._lot.park()
        finally:
            self._eager -= 1

    # ----------------------------------------------------------------- filling

    def put(self, item: Pushed) -> None:
        self._buffer.append(item)
        if self._lot:
            self._lot.unpark_all()

    def put_mark(self) -> None:
        self.marked = True
        self._buffer.append(None)
        self._lot.unpark_all()

    def ask(self, subject: bytes) -> None:
        """The server waits for an answer on `subject`."""
        if not self._buffer or self._eager:
            self._answer(subject)
        elif subject not in self._buffer:
            self._buffer.append(subject)

    def end(self, why: Callable[[], Exception], *, drop: bool = False) -> None:
        """No more: readers get what is buffered (unless dropped), then `why()`."""
        if drop:
            self._buffer.clear()
        if not self._over:
            self._over = True
            self._why = why
        self._lot.unpark_all()
