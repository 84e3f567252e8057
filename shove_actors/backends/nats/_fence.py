"""What becomes of a shard's delivery when the connection is lost.

nats-server writes the state of a consumer a few times a second. One that is killed may have
forgotten what it delivered in its last moments, and delivers it again at once, to whoever asks
first. Two handlers of one shard would then run at a time, which is what a shard promises never to
happen. So a delivery younger than `FORGETFUL_S` when the connection is lost is given up: its
handler is cancelled before the server can be back. Older ones keep their lease.

Most losses are not of that kind: the network failed, and the very same server process is back at
once, still holding the message for us. It gets the delivery back (NAK) as soon as the handler has
ended and there is a connection, so that nobody waits for the lease. Another process may have given
the message to somebody else, whose delivery a NAK would end; there the lease decides.

Tests: `tests/backends/test_nats_fence.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from shove_actors.backends import margins
from shove_actors.backends._delivery import Delivery
from shove_actors.jetstream import Connection, pub

FORGETFUL_S = margins.FORGETFUL_S


class Fence:
    """The fenced deliveries of one shard, until their handlers have ended."""

    __slots__ = ("_conn", "_fenced", "_trusted_s")

    def __init__(self, conn: Connection, ack_wait_s: float) -> None:
        self._conn = conn
        self._trusted_s = ack_wait_s * margins.TRUST_SHARE
        #: And which server process had made them.
        self._fenced: dict[Delivery, str] = {}

    def fence_young(self, held: Iterable[Delivery]) -> None:
        """The connection is lost: nothing of a young delivery may take effect any more."""
        now = trio.current_time()
        for delivery in list(held):
            if now - delivery.arrived_at < FORGETFUL_S:
                delivery.lost = delivery.fenced = True
                self._fenced[delivery] = self._conn.server_id
                if delivery.on_lost is not None:
                    delivery.on_lost()

    def handler_ended(self, delivery: Delivery) -> None:
        """Of any delivery that was let go of."""
        if delivery in self._fenced:
            self._give_back(delivery)

    def reconnected(self) -> None:
        """Those whose handlers ended meanwhile."""
        for delivery in [d for d in self._fenced if d.settled]:
            self._give_back(delivery)

    def _give_back(self, delivery: Delivery) -> None:
        if not self._conn.connected:
            return  # `reconnected` asks again
        server = self._fenced.pop(delivery)
        age = trio.current_time() - delivery.leased_at
        if server == self._conn.server_id and age <= self._trusted_s:
            self._conn.write(pub(delivery.reply, b"", b"-NAK"))
