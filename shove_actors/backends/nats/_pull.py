"""What a lane asks the server for, and what it does when a request ends.

The bookkeeping of requests and the reading of statuses are those of the JetStream client
(`PullLedger`, `verdict_of`: one pull engine serves both); here is what is a lane's own: how much it
asks for, and which of the client's verdicts come to the same for it.

Pure: no clock, no connection; the lane sends, and tells what happened. The ledger's fields are
public because the lane counts each message down by itself: a call per message would cost more than
all of the arithmetic here.

Invariant: `held + requested <= credit`, except on a shard. There the server itself lets one message
out at a time (`max_ack_pending` 1), so a standing request for many saves one request per message.

Every way in which a request can end brings the next one, at once or after a pause (PC-002, PC-003).
"""

from __future__ import annotations

from enum import Enum, auto

from shove_actors import jetstream
from shove_actors._errors import NotPullConsumer
from shove_actors.backends._port import LaneSpec
from shove_actors.jetstream import PullLedger

#: A shard's standing request, and when to renew it.
SHARD_BATCH, SHARD_LOW = 64, 16
#: How long after a refusal it is looked why; as `PullLedger.stalled`.
STALLED_S = 1.0


class Pull(PullLedger):
    """The requests of one lane, as the server knows them. Times are the caller's."""

    __slots__ = ("credit", "shard")

    def __init__(self, *, credit: int, shard: bool, expires_s: float, heartbeat_s: float) -> None:
        super().__init__(expires_s=expires_s, heartbeat_s=heartbeat_s)
        self.credit = credit
        self.shard = shard

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
    """What the client's verdict comes to for a lane."""
    return _FOR_A_LANE.get(jetstream.verdict_of(code, text), Verdict.STALLED)


def not_pull(spec: LaneSpec) -> NotPullConsumer:
    """What a lane ends with whose durable is not one to pull from."""
    return NotPullConsumer(
        f"consumer {spec.durable} of stream {spec.stream} is a push consumer; delete it, or give "
        "it another name"
    )


_FOR_A_LANE = {
    jetstream.Verdict.ALIVE: Verdict.ALIVE,
    jetstream.Verdict.RETURNED: Verdict.RETURNED,
    jetstream.Verdict.TOO_LARGE: Verdict.RETURNED,
    jetstream.Verdict.OVER: Verdict.OVER,
    jetstream.Verdict.MOVED: Verdict.OVER,
    jetstream.Verdict.LEAVING: Verdict.LEAVING,
    jetstream.Verdict.ABSENT: Verdict.VANISHED,
    jetstream.Verdict.DELETED: Verdict.VANISHED,
    jetstream.Verdict.NOT_PULL: Verdict.NOT_PULL,
}
