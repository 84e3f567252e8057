"""One durable, read by one process: arrivals, settling, and what to do on a bad day.

What to ask for and what the end of a request means is `_pull.py`; leases are `_lease.py`; shards
that lose their connection `_fence.py`; settles that nobody has read `_settle_guard.py`; a durable
that is gone `_recovery.py`.

Invariants
* A pull never outlives its inbox. The inbox changes with every reconnect and ends with `close`, so
  a pull that the server still remembers has nobody to deliver to and cannot swallow a message
  (PC-004), and no surplus can arrive after a reconnect (PC-006). The same is done when a pull fell
  silent and when the credit is lowered below what was asked for: the pull may live on, unseen.
* Whatever arrives while closing is given back at once (NAK), never left to its lease.
* A settle is sent only while its lease lasts, also by an egress that was stopped in between; a late
  one is dropped and logged (PC-020). The same
  stored message arriving again while the first delivery is still in a handler waits behind it.
* After a reconnect the leases of what is in hand are renewed first thing.
* `_on_message`, `_arrived` and `ack` run once per message: what they need of the other modules is
  read from fields there, not asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import NotPullConsumer, ShoveError, UsageError
from shove_actors._log import about
from shove_actors.backends import margins
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._lane_buffer import LaneBuffer
from shove_actors.backends._port import LaneSpec, LaneStatistics
from shove_actors.backends._tenure import Tenure
from shove_actors.jetstream import ack_numbers, parse_ack, pub, status_of

from ._fence import Fence
from ._lease import renew
from ._pull import SHARD_LOW, Pull, Verdict, verdict_of
from ._recovery import Recovery

if TYPE_CHECKING:
    from ._backend import NatsBackend

logger = logging.getLogger("shove_actors.backends.nats")

#: How long a pull stays with the server. Only matters for how often an idle lane renews it.
PULL_EXPIRES_S = 30.0
#: The server says it is alive this often; two misses and the pull is sent again (and the
#: connection probed). 64 idle lanes then cost six messages a second.
PULL_HEARTBEAT_S = 10.0
_NS = 1_000_000_000
_NEVER = float("inf")


class NatsLane:
    """See `backends._port.Lane`."""

    def __init__(self, backend: NatsBackend, spec: LaneSpec, identity: str = "") -> None:
        self._backend = backend
        self._conn = backend.connection
        self._spec = spec
        self._shard = spec.max_ack_pending == 1
        self._buffer = LaneBuffer()
        self._held: dict[int, Delivery] = {}
        wanted_s = spec.ack_wait_s / margins.HEARTBEATS_PER_LEASE
        self._heartbeat_s = min(PULL_HEARTBEAT_S, max(margins.HEARTBEAT_LEAST_S, wanted_s))
        #: How often something has to be heard of the server that its heartbeats do not say.
        self.beat_s = wanted_s if wanted_s < self._heartbeat_s else _NEVER
        self._conn.watch_reads(spec.ack_wait_s * margins.READ_PAUSE_SHARE)
        self._pull = Pull(
            credit=spec.credit,
            shard=self._shard,
            expires_s=PULL_EXPIRES_S,
            heartbeat_s=self._heartbeat_s,
        )
        #: Deliveries this old when they come may be somebody else's by now.
        self._stale_s = spec.ack_wait_s * margins.STALE_SHARE
        self._trusted_s = spec.ack_wait_s * margins.TRUST_SHARE
        self._fence = Fence(self._conn, spec.ack_wait_s)
        self._recovery = Recovery(
            backend,
            spec,
            notice=self._notice,
            on_created=self.drop_all,
            on_failed=self._end,
            on_ended=self._recovered,
        )
        self._recovery.identity = identity
        self._tenure = Tenure()
        #: Settles that wait until it is clear that the durable is still the same.
        self._deferred: list[tuple[Delivery, bytes]] = []
        self._closing = False
        self._handed_back = trio.Event()
        self._failed = False
        self._last_acked: bytes | None = None
        self._received = 0
        self._subject = backend.js.prefix.encode() + (
            f"CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}".encode()
        )
        self._inbox = self._conn.new_inbox()
        self._sid = self._conn.subscribe(self._inbox, self._on_message)
        self.receive_nowait = self._buffer.receive_nowait
        self.receive = self._buffer.receive
        self.wake_next = self._buffer.wake_next

    def __repr__(self) -> str:
        return f"<NatsLane {self._spec.stream}/{self._spec.durable} held {len(self._held)}>"

    @property
    def spec(self) -> LaneSpec:
        return self._spec

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

    def statistics(self) -> LaneStatistics:
        return LaneStatistics(
            waiting=len(self._buffer),
            held=len(self._held),
            requested=self._pull.requested,
            credit=self._pull.credit,
            received=self._received,
            pulls=self._pull.sent,
        )

    # ------------------------------------------------------------------ demand

    def start(self) -> None:
        self._top_up()

    def _top_up(self) -> None:
        if self._closing or self._recovery.active or self._failed:
            return
        pull = self._pull
        batch = pull.demand(len(self._held))
        if batch and self._conn.write(
            pub(self._subject, self._inbox, b'{"batch":%d%b' % (batch, pull.tail))
        ):
            pull.asked(batch, trio.current_time())

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
            self._end(
                NotPullConsumer(
                    f"consumer {self._spec.durable} of stream {self._spec.stream} is a push "
                    "consumer; delete it, or give it another name"
                )
            )
        else:
            pull.gone()
            self._notice("pull_stalled", f"{code} {text}")
            pull.stalled(trio.current_time())

    # ------------------------------------------------------------------ settling

    def _release(self, delivery: Delivery) -> bool:
        """Stop holding it. False: too late, nothing may be sent."""
        if delivery.settled:
            raise UsageError(f"{delivery!r} is settled already")
        delivery.settled = True
        if self._held.get(delivery.sequence) is delivery:
            del self._held[delivery.sequence]
        if delivery.lost or trio.current_time() - delivery.leased_at > self._trusted_s:
            self._late(delivery)
            return False
        if not self._conn.connected:
            self._late(delivery)
            return False
        return True

    def _late(self, delivery: Delivery) -> None:
        delivery.lost = True
        logger.warning(
            "the lease of %s:%d ended before it was settled; the settle is dropped and the "
            "server delivers the message again",
            self._spec.stream,
            delivery.sequence,
            extra=about("settle_late", queue=delivery.stream, sequence=delivery.sequence),
        )
        self._next_of(delivery)
        self._top_up()

    def _next_of(self, delivery: Delivery) -> None:
        after, delivery.successor = delivery.successor, None
        if after is not None:
            if self._closing:
                self._conn.write(pub(after.reply, b"", b"-NAK"))
            else:
                self._held[after.sequence] = after
                self._buffer.push(after)

    def ack(self, delivery: Delivery) -> None:
        if not self._release(delivery):
            return
        if not self._recovery.active:
            self._last_acked = delivery.reply  # what `confirm` repeats must have been sent before
        delivery.successor = None
        pull = self._pull
        if (
            pull.credit == 1
            and not self._shard
            and pull.demand(len(self._held))
            and not self._closing
            and not self._recovery.active
        ):
            self._conn.write_through(
                pub(delivery.reply, self._inbox, b'+NXT {"batch":1%b' % pull.tail)
            )
            pull.asked(1, trio.current_time())
            return
        self._send(delivery, b"PUB %b 4\r\n+ACK\r\n" % delivery.reply)
        self._top_up()

    def nak(self, delivery: Delivery, delay_s: float | None = None) -> None:
        if not self._release(delivery):
            return
        delivery.successor = None
        if delay_s:
            self._send(
                delivery, pub(delivery.reply, b"", b'-NAK {"delay":%d}' % round(delay_s * _NS))
            )
        else:
            self._send(delivery, pub(delivery.reply, b"", b"-NAK"))
        self._top_up()

    def _send(self, delivery: Delivery, data: bytes) -> None:
        """A settle. It names a sequence of *this* durable: while it is not sure that the durable
        is still the one that delivered, it waits.
        """
        if self._recovery.active:
            self._deferred.append((delivery, data))
        else:
            self._write_settle(delivery, data)

    def _write_settle(self, delivery: Delivery, data: bytes) -> None:
        deadline = delivery.leased_at + self._trusted_s
        if self._conn.write_by(data, deadline) and self._shard:
            self._backend.guard.sent(deadline, self._spec.ack_wait_s)

    def _recovered(self) -> None:
        """`drop_all` came before this if the durable is another one.

        Ended without knowing (the lane closes, or the durable cannot be had): nothing is sent. A
        settle that may hit another durable's message is worse than one more delivery.
        """
        known = self._recovery.known
        now = trio.current_time()
        deferred, self._deferred = self._deferred, []
        for delivery, data in deferred:
            if not known or delivery.lost or now - delivery.leased_at > self._trusted_s:
                self._late(delivery)
            else:
                self._write_settle(delivery, data)
                if data.endswith(b"+ACK\r\n"):
                    self._last_acked = delivery.reply
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

    def renew(self, delivery: Delivery) -> None:
        renew(self._conn, delivery)

    def forget(self, delivery: Delivery) -> None:
        if delivery.settled:
            return
        delivery.settled = delivery.lost = True
        if self._held.get(delivery.sequence) is delivery:
            del self._held[delivery.sequence]
        if not self._recovery.active:  # else `_recovered` does it
            self._fence.handler_ended(delivery)
        self._next_of(delivery)
        self._top_up()

    async def confirm(self) -> bool:
        """Acknowledging the last acknowledged message again, this time with a reply.

        Acknowledgements of one consumer are processed in order, and a repeated one is answered,
        so the answer proves all of them.
        """
        reply = self._last_acked
        if reply is None or not self._conn.connected:
            await trio.lowlevel.checkpoint()
            return reply is None
        try:
            answer = await self._conn.request(reply.decode(), b"+ACK", timeout=2.0)
        except ShoveError:
            return False
        if answer.status is None and self._last_acked is reply:
            self._last_acked = None  # nothing left to prove until the next acknowledgement
        return answer.status is None

    # ------------------------------------------------------------------ trouble

    def on_disconnected(self) -> None:
        """The server forgets our pulls; a new inbox makes sure of it."""
        self._tenure.end()
        self._pull.gone()
        self._pull.deadline = _NEVER
        if not self._closing:
            self._inbox = self._conn.new_inbox()
            self._conn.move_subscription(self._sid, self._inbox)
        for delivery in self._held.values():
            delivery.leased_at -= margins.RESTART_EARLY_S
        if self._shard:
            self._fence.fence_young(self._held.values())

    def on_reconnected(self) -> None:
        # The server may have been another one, or have lost a stream in memory: look first.
        self._recovery.begin("reconnected")

    def on_deleted(self) -> None:
        """Said so by the server: nothing in hand is under a lease any more."""
        if not self._recovery.active:
            self.drop_all()
        self._vanished("the durable was deleted")

    def on_missed_heartbeats(self) -> None:
        self._abandon_pulls()
        self._pull.deadline = _NEVER
        self._notice("pull_stalled", f"no heartbeat for {self._pull.patience_s:g} s")
        # Either the pull was lost or the durable is gone: looking is cheap, guessing is not.
        self._vanished("missed heartbeats")

    def _abandon_pulls(self) -> None:
        """End whatever pulls the server still has: their inbox goes away."""
        self._tenure.end()
        self._pull.gone()
        old = self._sid
        self._conn.redirect(old, self._on_late_message)
        self._inbox = self._conn.new_inbox()
        self._sid = self._conn.subscribe(self._inbox, self._on_message)
        self._backend.start_soon(self._conn.unsubscribe, old)

    def _vanished(self, why: str) -> None:
        self._pull.gone()
        self._recovery.begin(why)

    def drop_all(self) -> None:
        """Every lease is void: cancel the handlers, forget what waits."""
        self._tenure.end()
        for delivery in self._buffer.take_all():
            delivery.settled = delivery.lost = True
            self._held.pop(delivery.sequence, None)
        for delivery, _ in self._deferred:
            delivery.lost = True
        # Those in handlers stay in hand until their handlers have ended: the same message, coming
        # from the new durable, waits behind them.
        for delivery in list(self._held.values()):
            delivery.lost = True
            delivery.successor = None
            if delivery.on_lost is not None:
                delivery.on_lost()

    def _notice(self, kind: str, detail: str) -> None:
        self._backend.notice(kind, f"{self._spec.stream}/{self._spec.durable}: {detail}")

    def _end(self, error: Exception) -> None:
        self._failed = True
        self._pull.gone()
        self._buffer.end(error)

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        if self._closing:
            await self._handed_back.wait()
            return
        self._closing = True
        self._recovery.stop()
        for delivery in self._buffer.take_all():
            delivery.settled = True
            self._held.pop(delivery.sequence, None)
            if self._conn.connected:
                self._conn.write(pub(delivery.reply, b"", b"-NAK"))
        self._buffer.end()
        self._backend.forget_lane(self)
        try:
            await self._conn.unsubscribe(self._sid)
            await self.confirm()
        finally:
            self._handed_back.set()
