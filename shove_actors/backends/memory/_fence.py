"""What becomes of a shard's delivery when the connection is lost: the same as on NATS.

A server that is killed may have forgotten what it delivered last (`Durable.restarted`) and deliver
it again, to anybody. So a shard gives up what is younger than `margins.FORGETFUL_S` when the
connection is lost: its handler is cancelled. If the very same server process is back, it gets the
delivery back as soon as the handler has ended; another one may have given it to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import trio

from shove_actors.backends import _margins as margins
from shove_actors.backends._delivery import Delivery

if TYPE_CHECKING:
    from ._backend import MemoryBackend
    from ._lane import MemoryLane


class Fence:
    """The fenced deliveries of one shard, until their handlers have ended."""

    __slots__ = ("_backend", "_fenced", "_trusted_s")

    def __init__(self, backend: MemoryBackend, trusted_s: float) -> None:
        self._backend = backend
        self._trusted_s = trusted_s
        #: And which start of the server had made them.
        self._fenced: dict[Delivery, int] = {}

    def fence_young(self, held: Iterable[Delivery]) -> None:
        """The connection is lost: nothing of a young delivery may take effect any more."""
        now = trio.current_time()
        for delivery in list(held):
            if now - delivery.arrived_at < margins.FORGETFUL_S:
                delivery.lost = delivery.fenced = True
                self._fenced[delivery] = self._backend.server.incarnation
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
        if not self._backend.connected:
            return  # `reconnected` asks again
        incarnation = self._fenced.pop(delivery)
        age = trio.current_time() - delivery.leased_at
        if incarnation == self._backend.server.incarnation and age <= self._trusted_s:
            lane: MemoryLane = delivery.lane  # type: ignore[assignment]
            lane.send_nak(delivery.sequence)
