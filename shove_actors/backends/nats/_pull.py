"""What a lane asks the server for, and what it means when a request ends.

Pure: no clock, no connection; the lane sends, and tells what happened. Its fields are public
because the lane counts each message down by itself: a call per message would cost more than all of
the arithmetic here.

Invariant: `held + requested <= credit`, except on a shard. There the server itself lets one message
out at a time (`max_ack_pending` 1), so a standing request for many saves one request per message.

Every way in which a request can end brings the next one, at once or after a pause; `verdict_of` is
section B of the JetStream notes as a function (PC-002, PC-003).
"""

from __future__ import annotations

from enum import Enum, auto

from shove_actors.jetstream import header_value

#: A shard's standing request, and when to renew it.
SHARD_BATCH, SHARD_LOW = 64, 16
#: A request that was refused for a reason that may pass is sent again after this long.
STALL_S = 1.0

_NS = 1_000_000_000


class Pull:
    """The requests of one lane, as the server knows them. Times are the caller's."""

    __slots__ = ("credit", "deadline", "patience_s", "requested", "sent", "shard", "since", "tail")

    def __init__(self, *, credit: int, shard: bool, expires_s: float, heartbeat_s: float) -> None:
        self.credit = credit
        self.shard = shard
        #: Asked for and not here yet.
        self.requested = 0
        #: When the oldest of it was asked for: nothing that arrives was sent before that.
        self.since = float("-inf")
        #: How many requests were sent.
        self.sent = 0
        #: When silence means that the request is lost. Without a request there are no heartbeats
        #: to miss: a slow handler is no silence (PC-009).
        self.deadline = float("inf")
        #: Two heartbeats missed.
        self.patience_s = 2 * heartbeat_s
        #: The end of every request's body, behind the batch.
        self.tail = b',"expires":%d,"idle_heartbeat":%d}' % (expires_s * _NS, heartbeat_s * _NS)

    def demand(self, held: int) -> int:
        """How many to ask for now; 0: not yet."""
        if self.shard:
            if self.credit < 1 or self.requested > SHARD_LOW:
                return 0
            return SHARD_BATCH - self.requested
        room = self.credit - held - self.requested
        if room <= 0 or (self.requested and room < (self.credit + 1) // 2):
            return 0
        return room

    def too_much(self, held: int) -> bool:
        """The credit was lowered below what was asked for already."""
        return bool(self.requested) and self.credit < (1 if self.shard else held + self.requested)

    def asked(self, batch: int, now: float) -> None:
        if not self.requested:
            self.since = now
        self.requested += batch
        self.sent += 1
        self.deadline = now + self.patience_s

    def returned(self, header_block: bytes | None) -> None:
        """A request ended; the server says how much of it was left."""
        left = header_value(header_block, b"Nats-Pending-Messages") if header_block else None
        count = int(left) if left is not None and left.isdigit() else self.requested
        self.requested = max(0, self.requested - count)

    def gone(self) -> None:
        """The server has none of our requests any more, or what it has cannot reach us."""
        self.requested = 0

    def stalled(self, now: float) -> None:
        """Refused; the watch looks after the pause, and a hot loop is avoided."""
        self.requested = 0
        self.deadline = min(self.deadline, now + STALL_S)


class Verdict(Enum):
    """What a status message says of the request that it answers."""

    #: A heartbeat.
    ALIVE = auto()
    #: It ended as it should; the rest of it comes back: ask again.
    RETURNED = auto()
    #: It ended, and nothing is left of it: ask again.
    OVER = auto()
    #: The server is leaving. The connection ends next: ask then.
    LEAVING = auto()
    #: The durable is gone.
    VANISHED = auto()
    #: The durable is not one to pull from: never ask again.
    NOT_PULL = auto()
    #: Exceeded MaxWaiting and whatever later servers invent: told, and tried again later.
    STALLED = auto()


def verdict_of(code: int, text: str) -> Verdict:
    lower = text.lower()
    if code == 100:
        return Verdict.ALIVE
    if code == 408:
        return Verdict.RETURNED
    if code == 404:
        return Verdict.OVER
    if code == 503:
        return Verdict.VANISHED
    if code == 409:
        for words, verdict in _CONFLICTS:
            if words in lower:
                return verdict
    return Verdict.STALLED


#: The first that matches counts.
_CONFLICTS = (
    ("maxbytes", Verdict.RETURNED),
    ("completed", Verdict.RETURNED),
    ("consumer deleted", Verdict.VANISHED),
    ("shutdown", Verdict.LEAVING),
    ("leadership", Verdict.OVER),
    ("push based", Verdict.NOT_PULL),
)
