"""The requests for messages that a server has from one reader, as far as the reader knows.

Pure: no clock, no connection. Whoever owns it sends, and tells what happened. Its fields are public
because a reader counts each message down by itself: a call per message would cost more than all of
the arithmetic here.

Invariant: `requested` and `requested_bytes` are never negative, and never less than what the server
may still send for requests whose inbox exists. Every way in which a request can end comes here, so
the count returns to zero, and the next request is sent, whatever the server does
(`properties/test_pull_engine.py`).
"""

from __future__ import annotations

from ._wire import header_value

NS = 1_000_000_000
#: A request that was refused for a reason that may pass is sent again after this long.
STALL_S = 1.0
NEVER = float("inf")


class PullLedger:
    """Times are the caller's."""

    __slots__ = (
        "deadline",
        "patience_s",
        "requested",
        "requested_bytes",
        "sent",
        "since",
        "tail",
    )

    def __init__(self, *, expires_s: float, heartbeat_s: float) -> None:
        #: Asked for and not here yet.
        self.requested = 0
        #: The same in bytes, for those who ask for bytes.
        self.requested_bytes = 0
        #: When the oldest of it was asked for: nothing that arrives was sent before that.
        self.since = float("-inf")
        #: How many requests were sent.
        self.sent = 0
        #: When silence means that the request is lost. Without a request there are no heartbeats
        #: to miss: a slow handler is no silence (PC-009).
        self.deadline = NEVER
        #: Two heartbeats missed.
        self.patience_s = 2 * heartbeat_s
        #: The end of every request's body, behind the batch.
        self.tail = b',"expires":%d,"idle_heartbeat":%d}' % (
            round(expires_s * NS),
            round(heartbeat_s * NS),
        )

    def asked(self, batch: int, now: float) -> None:
        if not self.requested:
            self.since = now
        self.requested += batch
        self.sent += 1
        self.deadline = now + self.patience_s

    def returned(self, header_block: bytes | None) -> None:
        """A request ended; the server says how much of it was left."""
        self.requested = _less(self.requested, header_block, b"Nats-Pending-Messages")
        self.requested_bytes = _less(self.requested_bytes, header_block, b"Nats-Pending-Bytes")

    def gone(self) -> None:
        """The server has none of our requests any more, or what it has cannot reach us."""
        self.requested = self.requested_bytes = 0

    def stalled(self, now: float) -> None:
        """Refused; asked again after the pause, and a hot loop is avoided."""
        self.gone()
        self.deadline = min(self.deadline, now + STALL_S)


def _less(count: int, header_block: bytes | None, name: bytes) -> int:
    left = header_value(header_block, name) if header_block else None
    return max(0, count - int(left)) if left is not None and left.isdigit() else 0
