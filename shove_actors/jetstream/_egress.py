"""The write side: whatever the actors of one scheduler pass have to say leaves in one write.

`write` appends and wakes the egress task; that task runs one pass later, when everybody who was
runnable has appended too, and hands all of it to the transport in a single call. The transport
writes to the socket at once, so no asyncio callback is involved unless the kernel's buffer is
full; then the task waits for the drain in one crossing and what is written meanwhile queues here.

What is written with a deadline (an acknowledgement: it is void after its lease) is not handed over
after it. The two are a scheduler pass apart, and a process that is stopped just there may be
resumed hours later. Then nothing of what waits is sent, and the session is given up: its writers
hear of that, and know better what is still right.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

#: Above this many bytes that the kernel has not taken, stop handing over and wait. Large enough
#: never to stall loopback, small enough that a dead peer does not collect a whole heap.
HIGH_WATER = 1 << 20

_NEVER = float("inf")


class Egress:
    """Bytes on their way to the server. One writer task; any task may append."""

    __slots__ = (
        "_deadline",
        "_drain",
        "_late",
        "_lot",
        "_out",
        "_send",
        "_unsent",
        "batches",
        "bytes_written",
        "writes",
    )

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self._lot = trio.lowlevel.ParkingLot()
        self._send: Callable[[bytes], None] | None = None
        self._unsent: Callable[[], int] | None = None
        self._drain: Callable[[], Awaitable[None]] | None = None
        self._late: Callable[[], None] | None = None
        #: The earliest of what waits.
        self._deadline = _NEVER
        self.writes = 0
        self.batches = 0
        self.bytes_written = 0

    def attach(
        self,
        send: Callable[[bytes], None],
        unsent: Callable[[], int],
        drain: Callable[[], Awaitable[None]],
        late: Callable[[], None],
    ) -> None:
        """A session is up: from now on bytes go there. `late`: they may not, any more."""
        self._send, self._unsent, self._drain, self._late = send, unsent, drain, late

    def detach(self) -> None:
        """The session is gone. What was not written is dropped: its senders hear of the loss."""
        self._send = self._unsent = self._drain = self._late = None
        self._out.clear()
        self._deadline = _NEVER

    @property
    def backlog(self) -> int:
        """Bytes that the kernel has not taken yet, here and in the transport."""
        unsent = self._unsent() if self._unsent is not None else 0
        return unsent + sum(map(len, self._out))

    def write(self, data: bytes) -> None:
        out = self._out
        if not out and self._lot:
            self._lot.unpark()
        out.append(data)
        self.writes += 1

    def write_by(self, data: bytes, deadline: float) -> None:
        """`write`, for what must not leave after `deadline`."""
        if deadline < self._deadline:
            self._deadline = deadline
        self.write(data)

    def write_through(self, data: bytes) -> None:
        """Append and hand over at once, unless the kernel is behind already."""
        if self._unsent is not None and self._unsent() <= HIGH_WATER:
            self._out.append(data)
            self.writes += 1
            self.flush_now()
        else:
            self.write(data)

    def flush_now(self) -> None:
        """Hand over what waits, from whichever task: before a PING, and when closing."""
        if self._out and self._send is not None:
            data = b"".join(self._out)
            self._out.clear()
            if self._deadline != _NEVER:
                late = trio.current_time() > self._deadline
                self._deadline = _NEVER
                if late:
                    assert self._late is not None
                    self._late()
                    return
            self.batches += 1
            self.bytes_written += len(data)
            self._send(data)

    async def run(self) -> None:
        """The egress task."""
        while True:
            if not self._out or self._send is None:
                await self._lot.park()
                continue
            self.flush_now()
            if self._unsent is not None and self._unsent() > HIGH_WATER:
                drain = self._drain
                assert drain is not None
                await drain()
            else:
                # Parking is the checkpoint; `flush_now` left the list empty.
                await self._lot.park()
