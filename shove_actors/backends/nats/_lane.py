"""One durable, read by one process: arrivals, settling, and what to do on a bad day.

What to ask for and what the end of a request means is `_pull.py`; how it is asked for `_demand.py`;
what waits or is being handled `_in_hand.py`; leases are `_lease.py`; what is sent to settle
`_settles.py`; shards that lose their connection `_fence.py`; settles that nobody has read
`_settle_guard.py`; a durable that is gone `_recovery.py`.

Invariants
* Whatever arrives while closing is given back at once (NAK), never left to its lease.
* After a reconnect the leases of what is in hand are renewed first thing.
* `_on_message`, `_arrived` and `ack` run once per message: what they need of the other modules is
  read from fields there, not asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from shove_actors._log import about
from shove_actors.backends import margins
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._lane_buffer import LaneBuffer
from shove_actors.backends._port import LaneSpec, LaneStatistics
from shove_actors.backends._tenure import Tenure
from shove_actors.jetstream import ack_numbers, parse_ack, pub, status_of

from ._demand import Demand
from ._fence import Fence
from ._in_hand import InHand
from ._lease import renew
from ._pull import SHARD_LOW, Verdict, not_pull, verdict_of
from ._recovery import Recovery
from ._settles import Settles

if TYPE_CHECKING:
    from ._backend import NatsBackend

logger = logging.getLogger("shove_actors.backends.nats")

_NS = 1_000_000_000
_NEVER = float("inf")


class NatsLane:
    """See `backends._port.Lane`."""

    def __init__(
        self, backend: NatsBackend, spec: LaneSpec, identity: str = "", server_id: str = ""
    ) -> None:
        """`identity`: of its durable, as it was found. `server_id`: of the server that was asked
        for it."""
        self._backend = backend
        self._conn = backend.connection
        self._spec = spec
        self._shard = spec.max_ack_pending == 1
        self._buffer = LaneBuffer()
        self._hand = InHand(self._conn, spec, self._buffer)
        self._held = self._hand.held
        self._recovery = Recovery(
            backend,
            spec,
            notice=self._notice,
            on_gone=self.drop_all,
            on_failed=self._end,
            on_ended=self._recovered,
        )
        self._recovery.identity = identity
        self._settles = Settles(self._conn, spec, self._recovery, backend.guard)
        self._demand = Demand(
            backend,
            spec,
            self._recovery,
            self._held,
            on_message=self._on_message,
            on_late=self._on_late_message,
        )
        self._pull = self._demand.pull
        #: How often something has to be heard of the server that its heartbeats do not say.
        self.beat_s = self._demand.beat_s
        self._conn.watch_reads(spec.ack_wait_s * margins.READ_PAUSE_SHARE)
        #: Deliveries this old when they come may be somebody else's by now.
        self._stale_s = spec.ack_wait_s * margins.STALE_SHARE
        self._fence = Fence(self._conn, spec.ack_wait_s)
        self._tenure = Tenure()
        #: The server that the connection was lost to; at first, the one that was asked.
        self._left = server_id or self._conn.server_id
        self._closing = False
        self._handed_back = trio.Event()
        self._received = 0
        self._top_up = self._demand.top_up
        self._release = self._hand.release
        self.receive_nowait = self._buffer.receive_nowait
        self.receive = self._buffer.receive
        self.wake_next = self._buffer.wake_next

    def __repr__(self) -> str:
        return f"<NatsLane {self._spec.stream}/{self._spec.durable} held {len(self._held)}>"

    @property
    def spec(self) -> LaneSpec:
        return self._spec

    @property
    def inbox(self) -> bytes:
        """Where deliveries come to, at present."""
        return self._demand.inbox

    @property
    def pull_subject(self) -> bytes:
        return self._demand.subject

    @property
    def held(self) -> Mapping[int, Delivery]:
        return self._held

    @property
    def deadline(self) -> float:
        """When the silence of the server means that the pull was lost (Trio time)."""
        return self._pull.deadline

    @property
    def busy_until(self) -> float:
        return self._buffer.busy_until

    def set_credit(self, credit: int) -> None:
        self._pull.credit = credit
        if self._pull.too_much(len(self._held)):
            self._abandon_pulls()
        self._top_up()

    def start(self, *, pause_s: float = 0.0) -> None:
        """`pause_s`: not before so long; its durable may have taken the place of another one."""
        if self._shard and self._conn.server_id != self._left:
            # It was killed while this process was looking at its durables.
            pause_s = max(pause_s, margins.RESTART_GRACE_S)
        if pause_s:
            self._recovery.begin("it may have been in use", pause_s=pause_s)
        self._top_up()

    def statistics(self) -> LaneStatistics:
        return LaneStatistics(
            waiting=len(self._buffer),
            held=len(self._held),
            requested=self._pull.requested,
            credit=self._pull.credit,
            received=self._received,
            pulls=self._pull.sent,
        )

    # ------------------------------------------------------------------ arrivals

    def _on_message(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        now = trio.current_time()
        pull = self._pull
        if not reply.startswith(b"$JS.ACK."):
            pull.deadline = now + pull.patience_s
            status = None if payload else status_of(header_block)
            if status is not None:
                self._on_status(*status, header_block)
            return
        if pull.requested:
            pull.requested -= 1
        pull.deadline = now + pull.patience_s if pull.requested else _NEVER
        self._arrived(subject, reply, header_block, payload, now)

    def _on_late_message(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        """For a pull that was abandoned: it was on its way already."""
        if not reply.startswith(b"$JS.ACK."):
            return
        pull = self._pull
        if not self._shard and len(self._held) + pull.requested >= pull.credit:
            self._conn.write(pub(reply, b"", b"-NAK"))
            return
        self._arrived(subject, reply, header_block, payload, trio.current_time())

    def _arrived(
        self,
        subject: bytes,
        reply: bytes,
        header_block: bytes | None,
        payload: bytes,
        now: float,
    ) -> None:
        if self._closing:
            self._conn.write(pub(reply, b"", b"-NAK"))
            return
        self._received += 1
        num_delivered, sequence, timestamp_ns = ack_numbers(reply)
        # Counted before anything is turned away: what we were given nobody else was given.
        tenure = self._tenure.of(parse_ack(reply).consumer_sequence) if self._shard else 0
        # The lease runs from when the server sent it, which is not before either of these.
        leased_at = max(self._conn.read_floor, self._pull.since)
        if now - leased_at > self._stale_s:
            logger.warning(
                "%s:%d came out of a stall of up to %.1f s; it may be somebody else's by now, so "
                "it is left to its lease",
                self._spec.stream,
                sequence,
                now - leased_at,
                extra=about("delivery_stale", queue=self._spec.stream, sequence=sequence),
            )
            self._top_up()
            return
        delivery = Delivery(
            self,
            subject.decode(errors="backslashreplace"),
            payload,
            header_block,
            self._spec.stream,
            sequence,
            num_delivered,
            timestamp_ns,
            leased_at,
            reply,
        )
        delivery.arrived_at = now
        delivery.tenure = tenure
        before = self._held.get(sequence)
        if before is not None:
            before.successor = delivery
            return
        if len(self._held) >= self._pull.credit and not self._shard:
            # More than was asked for (PC-006): somebody else may have room.
            self._conn.write(pub(reply, b"", b"-NAK"))
            return
        self._held[sequence] = delivery
        self._buffer.push(delivery)
        if self._shard and self._pull.requested <= SHARD_LOW:
            self._top_up()

    def _on_status(self, code: int, text: str, header_block: bytes | None) -> None:
        verdict, pull = verdict_of(code, text), self._pull
        if verdict is Verdict.ALIVE:
            return
        if verdict is Verdict.RETURNED:
            pull.returned(header_block)
            self._top_up()
            return
        self._tenure.end()  # another server may decide from now on, with another count
        if verdict is Verdict.OVER:
            pull.gone()
            self._top_up()
        elif verdict is Verdict.LEAVING:
            pull.returned(header_block)
        elif verdict is Verdict.VANISHED:
            if code == 409:
                self.on_deleted()
            else:
                self._vanished(f"{code} {text}")
        elif verdict is Verdict.NOT_PULL:
            self._end(not_pull(self._spec))
        else:
            pull.gone()
            self._notice("pull_stalled", f"{code} {text}")
            pull.stalled(trio.current_time())

    # ------------------------------------------------------------------ settling

    def ack(self, delivery: Delivery) -> None:
        if not self._release(delivery):
            self._top_up()
            return
        if not self._recovery.active:
            # What `confirm` repeats must have been sent before.
            self._settles.last_acked = delivery.reply
        delivery.successor = None
        if self._pull.credit == 1 and not self._shard and self._demand.ask_with_ack(delivery.reply):
            return
        self._settles.send(delivery, b"PUB %b 4\r\n+ACK\r\n" % delivery.reply)
        self._top_up()

    def nak(self, delivery: Delivery, delay_s: float | None = None) -> None:
        if not self._release(delivery):
            self._top_up()
            return
        delivery.successor = None
        body = b'-NAK {"delay":%d}' % round(delay_s * _NS) if delay_s else b"-NAK"
        self._settles.send(delivery, pub(delivery.reply, b"", body))
        self._top_up()

    def renew(self, delivery: Delivery) -> None:
        renew(self._conn, delivery)

    def forget(self, delivery: Delivery) -> None:
        if not delivery.settled:
            self._hand.forget(delivery)
            if not self._recovery.active:  # else `_recovered` does it
                self._fence.handler_ended(delivery)
            self._hand.next_of(delivery)
            self._top_up()

    async def confirm(self) -> bool:
        return await self._settles.confirm()

    # ------------------------------------------------------------------ trouble

    def on_disconnected(self) -> None:
        self._left = self._conn.server_id
        self._tenure.end()
        self._demand.disconnected()
        for delivery in self._held.values():
            delivery.leased_at -= margins.RESTART_EARLY_S
        if self._shard:
            self._fence.fence_young(self._held.values())

    def on_reconnected(self) -> None:
        # The server may have been another one, or have lost a stream in memory: look first.
        # One that was killed may have forgotten a delivery: whoever had it lets go of it first.
        restarted = self._left != self._conn.server_id
        waits = restarted and self._shard and all(held.lost for held in self._held.values())
        self._recovery.begin("reconnected", pause_s=margins.RESTART_GRACE_S if waits else 0.0)

    def _recovered(self) -> None:
        """`drop_all` came before this if the durable is another one."""
        known = self._recovery.known
        self._settles.send_deferred(self._late)
        if known and self._conn.connected:
            for delivery in self._held.values():
                delivery.renewing = None
                if not delivery.lost:
                    self.renew(delivery)
        self._top_up()
        if known and self._conn.connected:
            # After the pull: nats-server 2.9 keeps what is given back while nobody asks for it
            # until the end of its lease.
            self._fence.reconnected()

    def _late(self, delivery: Delivery) -> None:
        self._hand.late(delivery)
        self._top_up()

    def on_deleted(self, *, stream: bool = False) -> None:
        """Said so by the server: nothing in hand is under a lease any more."""
        if stream:
            self._recovery.stream_deleted()
        if not self._recovery.active:
            self.drop_all()
        self._vanished("the durable was deleted")

    def on_denied(self, error: Exception) -> None:
        """This user may not do what the lane lives on."""
        if not self._demand.failed and not self._closing:
            self._end(error)

    def on_missed_heartbeats(self) -> None:
        self._abandon_pulls()
        self._pull.deadline = _NEVER
        self._notice("pull_stalled", f"no heartbeat for {self._pull.patience_s:g} s")
        # Either the pull was lost or the durable is gone: looking is cheap, guessing is not.
        self._vanished("missed heartbeats")

    def _abandon_pulls(self) -> None:
        self._tenure.end()
        self._demand.abandon()

    def _vanished(self, why: str) -> None:
        self._pull.gone()
        self._recovery.begin(why)

    def drop_all(self) -> None:
        """Every lease is void: cancel the handlers, forget what waits."""
        self._tenure.end()
        self._settles.void()
        self._hand.drop_all()

    def _notice(self, kind: str, detail: str) -> None:
        self._backend.notice(kind, f"{self._spec.stream}/{self._spec.durable}: {detail}")

    def _end(self, error: Exception) -> None:
        self._demand.failed = True
        self._pull.gone()
        self._buffer.end(error)

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        if self._closing:
            await self._handed_back.wait()
            return
        self._closing = self._demand.closing = True
        self._recovery.stop()
        self._hand.close()
        self._buffer.end()
        self._backend.forget_lane(self)
        try:
            await self._demand.close()
            await self.confirm()
        finally:
            self._handed_back.set()
