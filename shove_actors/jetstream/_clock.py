"""The server's wall clock, as this side knows it.

Held messages are due at "stored at + delay", and "stored at" is the server's time. Comparing it
with this machine's wall clock would make every delay wrong by the difference of the two clocks;
so each API answer that carries a time stamp (all since nats-server 2.10) is a sample, and the one
with the shortest round trip wins. From then on Trio's monotonic clock counts.

The estimate is never ahead: the stamp counts as written when its answer was received. It was
written earlier, by as much as the answer took; on a loaded machine that was fifty milliseconds, and
with the middle of the round trip a message came back from its hold that much too early.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone

import trio

_NS = 1_000_000_000


def parse_time_ns(text: str) -> int:
    """RFC 3339 with up to nine decimals, as nanoseconds since 1970.

    `datetime.fromisoformat` of Python 3.10 reads neither `Z` nor nine decimals.
    """
    main, _, rest = text.rstrip("Z").partition(".")
    digits = "".join(c for c in rest if c.isdigit())[:9].ljust(9, "0") if rest else "0"
    base = datetime.strptime(main[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return int(base.timestamp()) * _NS + int(digits)


class ServerClock:
    """The server's time or a little before it. Before the first sample: this machine's clock."""

    __slots__ = ("_offset_ns", "_round_trip")

    def __init__(self) -> None:
        self._offset_ns: int | None = None
        self._round_trip = float("inf")

    def observe(self, stamp: str, sent_at: float, received_at: float) -> None:
        """`stamp` was written by the server between two moments of Trio's clock."""
        round_trip = received_at - sent_at
        if round_trip <= self._round_trip:
            self._round_trip = round_trip
            self._offset_ns = parse_time_ns(stamp) - round(received_at * _NS)

    def forget(self) -> None:
        """Another server, another clock."""
        self._round_trip = float("inf")

    def now_ns(self) -> int:
        if self._offset_ns is None:
            return time.time_ns()
        return round(trio.current_time() * _NS) + self._offset_ns
