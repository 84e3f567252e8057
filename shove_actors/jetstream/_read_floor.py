"""How old may be what we read just now?

The server's lease on a delivery runs from when it *sent* it. After a stalled network, or after this
process was stopped for a while, what is read now may have been sent long ago, and the server may
have given it to somebody else meanwhile. The moment of sending is not in the message, but it has a
lower bound: bytes come in order, so nothing was sent before what was read earlier.

`floor` is that bound, on Trio's clock. While reads follow each other closely it is the time of the
read before. After a pause longer than `pause_s` it stays where it was before the pause, until a
PING that was sent after the pause is answered: whatever comes behind the PONG was sent after the
PING. A pause shorter than that goes unnoticed, so the bound may be wrong by as much: whoever relies
on it says how much that may be (`Connection.watch_reads`).
"""

from __future__ import annotations

import trio

#: Reads closer together than this follow each other, unless somebody needs to know better.
PAUSE_S = 1.0


class ReadFloor:
    """Of one connection. `probe` is set when a PING is wanted."""

    __slots__ = ("_last", "_probing", "floor", "pause_s", "probe")

    def __init__(self) -> None:
        self.pause_s = PAUSE_S
        self.floor = self._last = trio.current_time()
        self._probing = False
        self.probe = trio.Event()

    def read(self, now: float) -> None:
        """Bytes have come."""
        if not self._probing:
            self.floor = self._last
            if now - self._last > self.pause_s:
                self._probing = True
                self.probe.set()
        self._last = now

    def answered(self, sent_at: float) -> None:
        """The PONG for a PING sent then."""
        self.floor = max(self.floor, sent_at)
        self._probing = False
        self.probe = trio.Event()
