"""One delivery of one stored message to this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from shove_actors.messaging import decode_headers

if TYPE_CHECKING:
    from ._port import Lane

_NO_HEADERS: Mapping[str, str] = {}


class Delivery:
    """A message in hand, with the lane that settles it.

    Slots are filled by the backend on arrival; headers are decoded on first use only, because
    most handlers never look at them. `leased_at` is Trio time: the server will not hand this
    message to anybody else before `leased_at + ack_wait_s`. `state` is private to the lane.
    """

    __slots__ = (
        "_headers",
        "arrived_at",
        "fenced",
        "key",
        "lane",
        "leased_at",
        "lost",
        "num_delivered",
        "on_lost",
        "payload",
        "raw_headers",
        "renewing",
        "reply",
        "sequence",
        "settled",
        "size",
        "stream",
        "subject",
        "successor",
        "tenure",
        "timed_out",
        "timestamp_ns",
        "trace",
    )

    def __init__(
        self,
        lane: Lane,
        subject: str,
        payload: bytes,
        raw_headers: bytes | None,
        stream: str,
        sequence: int,
        num_delivered: int,
        timestamp_ns: int,
        leased_at: float,
        reply: bytes,
    ) -> None:
        self.lane = lane
        self.subject = subject
        self.payload = payload
        self.raw_headers = raw_headers
        self.stream = stream
        self.sequence = sequence
        #: In bytes, headers and payload together.
        self.size = len(payload) + len(raw_headers) if raw_headers else len(payload)
        #: The server's count, 1 for the first delivery.
        self.num_delivered = num_delivered
        #: When the stream stored it, nanoseconds of the server's clock.
        self.timestamp_ns = timestamp_ns
        self.leased_at = leased_at
        #: When it came; `leased_at` moves on with each renewal, this does not.
        self.arrived_at = leased_at
        #: The acknowledgement subject; private to the backend.
        self.reply = reply
        #: Acked, naked or forgotten: a second settle is a bug in the runtime.
        self.settled = False
        #: The lease ended before the work did; no settle may be sent any more.
        self.lost = False
        #: Lost with the connection, not by its own doing.
        self.fenced = False
        #: The handler clock has cancelled its handler.
        self.timed_out = False
        #: The span of its latest attempt, where somebody traces; the runtime's.
        self.trace: Any = None
        #: A renewal is on its way (Trio time of its sending), or None.
        self.renewing: float | None = None
        #: Set while a handler runs: how to cancel it when the lease is lost.
        self.on_lost: Callable[[], None] | None = None
        #: The same stored message delivered again while this one is still in hand.
        self.successor: Delivery | None = None
        #: On a shard: the unbroken run of deliveries it belongs to (see `_tenure.py`); 0: unknown.
        self.tenure = 0
        #: On a keyed lane: whose turn it takes.
        self.key: Hashable = None
        self._headers: Mapping[str, str] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        if self._headers is None:
            self._headers = decode_headers(self.raw_headers) if self.raw_headers else _NO_HEADERS
        return self._headers

    def __repr__(self) -> str:
        return (
            f"<Delivery {self.stream}:{self.sequence} delivered {self.num_delivered}"
            f"{' settled' if self.settled else ''}{' lost' if self.lost else ''}>"
        )
