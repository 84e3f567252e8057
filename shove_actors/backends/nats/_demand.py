"""Sends the requests of one lane, over the JetStream client's `PullLine`.

Its invariant is what a lane stands on: a pull never outlives its inbox. So a pull that the server
still remembers cannot swallow a message (PC-004), no surplus arrives after a reconnect (PC-006),
and a pull that fell silent, or asks for more than the credit that is left, ends with its inbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import trio

from shove_actors.backends import margins
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._port import LaneSpec
from shove_actors.jetstream import PullLine, pub

from ._pull import Pull
from ._recovery import Recovery

if TYPE_CHECKING:
    from ._backend import NatsBackend

#: Subject, reply subject, header block, payload.
Sink: TypeAlias = Callable[[bytes, bytes, "bytes | None", bytes], None]

#: How long a pull stays with the server. Only matters for how often an idle lane renews it.
PULL_EXPIRES_S = 30.0
#: The server says it is alive this often; two misses and the pull is sent again (and the
#: connection probed). 64 idle lanes then cost six messages a second.
PULL_HEARTBEAT_S = 10.0
_NEVER = float("inf")


class Demand(PullLine):
    """`on_message` hears what answers the requests, `on_late` what answers an abandoned one."""

    __slots__ = ("_held", "_recovery", "beat_s", "closing", "failed", "pull")

    def __init__(
        self,
        backend: NatsBackend,
        spec: LaneSpec,
        recovery: Recovery,
        held: Mapping[int, Delivery],
        *,
        on_message: Sink,
        on_late: Sink,
    ) -> None:
        super().__init__(
            backend.connection,
            backend.js.prefix.encode() + f"CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}".encode(),
            on_message=on_message,
            on_late=on_late,
            start_soon=backend.start_soon,
        )
        self._recovery = recovery
        self._held = held
        wanted_s = spec.ack_wait_s / margins.HEARTBEATS_PER_LEASE
        heartbeat_s = min(PULL_HEARTBEAT_S, max(margins.HEARTBEAT_LEAST_S, wanted_s))
        #: How often something has to be heard of the server that its heartbeats do not say.
        self.beat_s = wanted_s if wanted_s < heartbeat_s else _NEVER
        self.pull = Pull(
            credit=spec.credit,
            shard=spec.max_ack_pending == 1,
            expires_s=PULL_EXPIRES_S,
            heartbeat_s=heartbeat_s,
        )
        #: Nothing is asked for any more: the lane closes, or its durable cannot be had.
        self.closing = False
        self.failed = False

    def top_up(self) -> None:
        """Ask for what there is room for, if it is worth a request."""
        if self.closing or self._recovery.active or self.failed:
            return
        pull = self.pull
        batch = pull.demand(len(self._held))
        if batch and self.send(b'{"batch":%d%b' % (batch, pull.tail)):
            pull.asked(batch, trio.current_time())

    def ask_with_ack(self, reply: bytes) -> bool:
        """Acknowledge and ask for one more at once. False: nothing is to be asked for."""
        pull = self.pull
        if self.closing or self._recovery.active or not pull.demand(len(self._held)):
            return False
        self._conn.write_through(pub(reply, self.inbox, b'+NXT {"batch":1%b' % pull.tail))
        pull.asked(1, trio.current_time())
        return True

    def disconnected(self) -> None:
        """The server forgets our pulls; a new inbox makes sure of it."""
        self.pull.gone()
        self.pull.deadline = _NEVER
        if not self.closing:
            super().disconnected()

    def abandon(self) -> None:
        """End whatever pulls the server still has: their inbox goes away."""
        self.pull.gone()
        super().abandon()
