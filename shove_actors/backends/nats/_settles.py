"""What is sent to settle the deliveries of one durable.

Invariants
* A settle names a sequence of *this* durable: while it is not sure that the durable is still the
  one that delivered, it waits. If that stays unknown (the lane closes, or the durable cannot be
  had), nothing is sent: a settle that may hit another durable's message is worse than one more
  delivery.
* A settle leaves only while its lease lasts, also by an egress that was stopped in between.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from shove_actors._errors import ShoveError
from shove_actors.backends import margins
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._port import LaneSpec
from shove_actors.jetstream import Connection

from ._recovery import Recovery
from ._settle_guard import SettleGuard


class Settles:
    """Of one lane."""

    __slots__ = (
        "_ack_wait_s",
        "_conn",
        "_deferred",
        "_guard",
        "_recovery",
        "_shard",
        "_trusted_s",
        "last_acked",
    )

    def __init__(
        self, conn: Connection, spec: LaneSpec, recovery: Recovery, guard: SettleGuard
    ) -> None:
        self._conn = conn
        self._recovery = recovery
        self._guard = guard
        self._shard = spec.max_ack_pending == 1
        self._ack_wait_s = spec.ack_wait_s
        self._trusted_s = spec.ack_wait_s * margins.TRUST_SHARE
        #: Settles that wait until it is clear that the durable is still the same.
        self._deferred: list[tuple[Delivery, bytes]] = []
        #: Where the latest acknowledgement went that was sent and is not proven yet.
        self.last_acked: bytes | None = None

    def send(self, delivery: Delivery, data: bytes) -> None:
        if self._recovery.active:
            self._deferred.append((delivery, data))
        else:
            self._write(delivery, data)

    def _write(self, delivery: Delivery, data: bytes) -> None:
        deadline = delivery.leased_at + self._trusted_s
        if self._conn.write_by(data, deadline) and self._shard:
            self._guard.sent(deadline, self._ack_wait_s)

    def send_deferred(self, late: Callable[[Delivery], None]) -> None:
        """The durable was looked for. `late` is told of each that may not be sent any more."""
        known = self._recovery.known
        now = trio.current_time()
        deferred, self._deferred = self._deferred, []
        for delivery, data in deferred:
            if not known or delivery.lost or now - delivery.leased_at > self._trusted_s:
                late(delivery)
            else:
                self._write(delivery, data)
                if data.endswith(b"+ACK\r\n"):
                    self.last_acked = delivery.reply

    def void(self) -> None:
        """The durable is another one: what waits must not be sent."""
        for delivery, _ in self._deferred:
            delivery.lost = True
        # Repeated, it would settle another message: sequences begin anew with a stream.
        self.last_acked = None

    async def confirm(self) -> bool:
        """Acknowledging the last acknowledged message again, this time with a reply.

        Acknowledgements of one consumer are processed in order, and a repeated one is answered,
        so the answer proves all of them.
        """
        reply = self.last_acked
        if reply is None or not self._conn.connected or self._recovery.active:
            await trio.lowlevel.checkpoint()
            return reply is None
        try:
            answer = await self._conn.request(reply.decode(), b"+ACK", timeout=2.0)
        except ShoveError:
            return False
        if answer.status is None and self.last_acked is reply:
            self.last_acked = None  # nothing left to prove until the next acknowledgement
        return answer.status is None
