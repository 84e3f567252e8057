"""What one lane has in hand: deliveries that wait in its buffer, or are in a handler.

Invariants
* A stored message is in hand once. The same message arriving again while the first delivery is
  still in a handler waits behind it (`Delivery.successor`), and takes its place when that handler
  has ended without settling.
* Nothing is settled after its lease: `release` says so, the server delivers the message again
  (PC-020).
"""

from __future__ import annotations

import logging

import trio

from shove_actors._errors import UsageError
from shove_actors._log import about
from shove_actors.backends import margins
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._lane_buffer import LaneBuffer
from shove_actors.backends._port import LaneSpec
from shove_actors.jetstream import Connection, pub

logger = logging.getLogger("shove_actors.backends.nats")


class InHand:
    """`held` is filled by the lane, once per message: see `NatsLane._arrived`."""

    __slots__ = ("_buffer", "_closing", "_conn", "_stream", "_trusted_s", "held")

    def __init__(self, conn: Connection, spec: LaneSpec, buffer: LaneBuffer) -> None:
        self._conn = conn
        self._stream = spec.stream
        self._buffer = buffer
        self._trusted_s = spec.ack_wait_s * margins.TRUST_SHARE
        self._closing = False
        self.held: dict[int, Delivery] = {}

    def release(self, delivery: Delivery) -> bool:
        """Stop holding it. False: too late, nothing may be sent."""
        if delivery.settled:
            raise UsageError(f"{delivery!r} is settled already")
        delivery.settled = True
        if self.held.get(delivery.sequence) is delivery:
            del self.held[delivery.sequence]
        if (
            delivery.lost
            or trio.current_time() - delivery.leased_at > self._trusted_s
            or not self._conn.connected
        ):
            self.late(delivery)
            return False
        return True

    def late(self, delivery: Delivery) -> None:
        """Its settle is dropped."""
        delivery.lost = True
        logger.warning(
            "the lease of %s:%d ended before it was settled; the settle is dropped and the "
            "server delivers the message again",
            self._stream,
            delivery.sequence,
            extra=about("settle_late", queue=delivery.stream, sequence=delivery.sequence),
        )
        self.next_of(delivery)

    def forget(self, delivery: Delivery) -> None:
        """Stop holding it without a settle."""
        delivery.settled = delivery.lost = True
        if self.held.get(delivery.sequence) is delivery:
            del self.held[delivery.sequence]

    def next_of(self, delivery: Delivery) -> None:
        """The same message again, if it came meanwhile."""
        after, delivery.successor = delivery.successor, None
        if after is not None:
            if self._closing:
                self._conn.write(pub(after.reply, b"", b"-NAK"))
            else:
                self.held[after.sequence] = after
                self._buffer.push(after)

    def drop_all(self) -> None:
        """Every lease is void: cancel the handlers, forget what waits."""
        for delivery in self._buffer.take_all():
            delivery.settled = delivery.lost = True
            self.held.pop(delivery.sequence, None)
        # Those in handlers stay in hand until their handlers have ended: the same message, coming
        # from the new durable, waits behind them.
        for delivery in list(self.held.values()):
            delivery.lost = True
            delivery.successor = None
            if delivery.on_lost is not None:
                delivery.on_lost()

    def close(self) -> None:
        """Give back what waits, and whatever would wait from now on."""
        self._closing = True
        for delivery in self._buffer.take_all():
            delivery.settled = True
            self.held.pop(delivery.sequence, None)
            if self._conn.connected:
                self._conn.write(pub(delivery.reply, b"", b"-NAK"))
