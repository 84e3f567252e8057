"""One durable, read by one process: pull requests, credit, statuses, settling.

Invariants
* `held` (waiting or in a handler) plus `requested` (asked for, not here yet) never exceeds
  `credit`, except on a shard: there the server itself lets one message out at a time
  (`max_ack_pending` 1), so a standing request for many saves one request per message.
* A pull never outlives its inbox. The inbox changes with every reconnect and ends with `close`, so
  a pull that the server still remembers has nobody to deliver to and cannot swallow a message
  (PC-004), and no surplus can arrive after a reconnect (PC-006). The same is done when a pull fell
  silent and when the credit is lowered below what was asked for: the pull may live on, unseen.
* Whatever arrives while closing is given back at once (NAK), never left to its lease.
* A settle is sent only while its lease lasts; a late one is dropped and logged (PC-020). The same
  stored message arriving again while the first delivery is still in a handler waits behind it.
* When the connection is lost, a shard's young delivery is fenced at once (see `FORGETFUL_S`); older
  ones keep their lease and are renewed first thing after the reconnect.

Statuses are handled as in section B of the JetStream notes: every way in which a pull can end
brings the next one, and a vanished durable is created again with growing pauses (PC-002, PC-003).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import (
    ApiError,
    NotPullConsumer,
    ShoveError,
    TopicNotDeclared,
    UnavailableError,
    UsageError,
)
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._lane_buffer import LaneBuffer
from shove_actors.backends._port import LaneSpec, LaneStatistics
from shove_actors.jetstream import ack_numbers, header_value, pub, status_of

if TYPE_CHECKING:
    from ._backend import NatsBackend

logger = logging.getLogger("shove_actors.backends.nats")

#: How long a pull stays with the server. Only matters for how often an idle lane renews it.
PULL_EXPIRES_S = 30.0
#: The server says it is alive this often; two misses and the pull is sent again (and the
#: connection probed). 64 idle lanes then cost six messages a second.
PULL_HEARTBEAT_S = 10.0
#: A shard's standing request, and when to renew it.
SHARD_BATCH, SHARD_LOW = 64, 16
#: Pauses between attempts to bring back a durable or stream that is gone.
RECOVER_FIRST_S, RECOVER_MAX_S = 0.25, 5.0
#: An acknowledgement is trusted only while this share of the lease has not passed: what is written
#: now still has to reach the server.
LEASE_SHARE = 0.95
#: nats-server writes the state of a consumer a few times a second. One that is killed may have
#: forgotten what it delivered in its last moments, and delivers it again at once, to whoever asks
#: first. So a shard's delivery younger than this when the connection is lost is given up: its
#: handler is cancelled before the server can be back. Ten times what was seen.
FORGETFUL_S = 1.0

_NS = 1_000_000_000


class NatsLane:
    """See `backends._port.Lane`."""

    def __init__(self, backend: NatsBackend, spec: LaneSpec) -> None:
        self._backend = backend
        self._conn = backend.connection
        self._spec = spec
        self._credit = spec.credit
        self._shard = spec.max_ack_pending == 1
        self._buffer = LaneBuffer()
        self._held: dict[int, Delivery] = {}
        #: Fenced deliveries, and which server process had made them.
        self._fenced: dict[Delivery, str] = {}
        self._requested = 0
        self._closing = False
        self._closed = trio.Event()
        self._handed_back = trio.Event()
        self._recovered_at = float("-inf")
        self._recovering = False
        self._failed = False
        self._last_acked: bytes | None = None
        self._received = 0
        self._pulls = 0
        self._subject = backend.js.prefix.encode() + (
            f"CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}".encode()
        )
        self._inbox = self._conn.new_inbox()
        self._sid = self._conn.subscribe(self._inbox, self._on_message)
        self.deadline = float("inf")
        self._tail = b',"expires":%d,"idle_heartbeat":%d}' % (
            PULL_EXPIRES_S * _NS,
            PULL_HEARTBEAT_S * _NS,
        )
        self._buffer_receive = self._buffer.receive
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

    def set_credit(self, credit: int) -> None:
        self._credit = credit
        if self._requested and credit < (
            1 if self._shard else len(self._held) + self._requested
        ):
            self._abandon_pulls()
        self._top_up()

    def statistics(self) -> LaneStatistics:
        return LaneStatistics(
            waiting=len(self._buffer),
            held=len(self._held),
            requested=self._requested,
            credit=self._credit,
            received=self._received,
            pulls=self._pulls,
        )

    # ------------------------------------------------------------------ demand

    def start(self) -> None:
        self._top_up()

    def _demand(self) -> int:
        """How many to ask for now; 0: not yet."""
        if self._shard:
            if self._credit < 1 or self._requested > SHARD_LOW:
                return 0
            return SHARD_BATCH - self._requested
        room = self._credit - len(self._held) - self._requested
        if room <= 0 or (self._requested and room < (self._credit + 1) // 2):
            return 0
        return room

    def _top_up(self) -> None:
        if self._closing or self._recovering or self._failed:
            return
        batch = self._demand()
        if batch and self._conn.write(
            pub(self._subject, self._inbox, b'{"batch":%d%b' % (batch, self._tail))
        ):
            self._asked(batch)

    def _asked(self, batch: int) -> None:
        self._requested += batch
        self._pulls += 1
        self.deadline = trio.current_time() + 2 * PULL_HEARTBEAT_S

    # ------------------------------------------------------------------ arrivals

    def _on_message(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        now = trio.current_time()
        if not reply.startswith(b"$JS.ACK."):
            self.deadline = now + 2 * PULL_HEARTBEAT_S
            status = None if payload else status_of(header_block)
            if status is not None:
                self._on_status(*status, header_block)
            return
        if self._requested:
            self._requested -= 1
        # Without a pull there are no heartbeats to miss: a slow handler is no silence (PC-009).
        self.deadline = now + 2 * PULL_HEARTBEAT_S if self._requested else float("inf")
        self._arrived(subject, reply, header_block, payload, now)

    def _on_late_message(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        """For a pull that was abandoned: it was on its way already."""
        if not reply.startswith(b"$JS.ACK."):
            return
        if not self._shard and len(self._held) + self._requested >= self._credit:
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
        delivery = Delivery(
            self,
            subject.decode(),
            payload,
            header_block,
            self._spec.stream,
            sequence,
            num_delivered,
            timestamp_ns,
            now,
            reply,
        )
        before = self._held.get(sequence)
        if before is not None:
            before.successor = delivery
            return
        if len(self._held) >= self._credit and not self._shard:
            # More than was asked for (PC-006): somebody else may have room.
            self._conn.write(pub(reply, b"", b"-NAK"))
            return
        self._held[sequence] = delivery
        self._buffer.push(delivery)
        if self._shard and self._requested <= SHARD_LOW:
            self._top_up()

    def _on_status(self, code: int, text: str, header_block: bytes | None) -> None:
        lower = text.lower()
        if code == 100:
            return
        if code == 408 or (code == 409 and ("maxbytes" in lower or "completed" in lower)):
            self._returned(header_block)
        elif code == 404:
            self._requested = 0
        elif code == 503 or (code == 409 and "consumer deleted" in lower):
            self._vanished(f"{code} {text}")
            return
        elif code == 409 and "shutdown" in lower:
            # The connection ends next, and with it this request.
            self._returned(header_block)
            return
        elif code == 409 and "leadership" in lower:
            self._requested = 0
        elif code == 409 and "push based" in lower:
            self._end(
                NotPullConsumer(
                    f"consumer {self._spec.durable} of stream {self._spec.stream} is a push "
                    "consumer; delete it, or give it another name"
                )
            )
            return
        else:
            # Exceeded MaxWaiting and whatever later servers invent: told, and tried again by the
            # watch after its deadline, not in a hot loop.
            self._requested = 0
            self._notice("pull_stalled", f"{code} {text}")
            self.deadline = min(self.deadline, trio.current_time() + 1.0)
            return
        self._top_up()

    def _returned(self, header_block: bytes | None) -> None:
        """A request ended; the server says how much of it was left."""
        left = header_value(header_block, b"Nats-Pending-Messages") if header_block else None
        count = int(left) if left is not None and left.isdigit() else self._requested
        self._requested = max(0, self._requested - count)

    # ------------------------------------------------------------------ settling

    def _release(self, delivery: Delivery) -> bool:
        """Stop holding it. False: too late, nothing may be sent."""
        if delivery.settled:
            raise UsageError(f"{delivery!r} is settled already")
        delivery.settled = True
        if self._held.get(delivery.sequence) is delivery:
            del self._held[delivery.sequence]
        if delivery.lost or (
            trio.current_time() - delivery.leased_at > self._spec.ack_wait_s * LEASE_SHARE
        ):
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
        self._last_acked = delivery.reply
        delivery.successor = None
        if self._credit == 1 and not self._shard and self._demand() and not self._closing:
            self._conn.write_through(
                pub(delivery.reply, self._inbox, b'+NXT {"batch":1%b' % self._tail)
            )
            self._asked(1)
            return
        self._conn.write(b"PUB %b 4\r\n+ACK\r\n" % delivery.reply)
        self._top_up()

    def nak(self, delivery: Delivery, delay_s: float | None = None) -> None:
        if not self._release(delivery):
            return
        delivery.successor = None
        if delay_s:
            self._conn.write(
                pub(delivery.reply, b"", b'-NAK {"delay":%d}' % round(delay_s * _NS))
            )
        else:
            self._conn.write(pub(delivery.reply, b"", b"-NAK"))
        self._top_up()

    def renew(self, delivery: Delivery) -> None:
        now = trio.current_time()
        if delivery.renewing is not None or delivery.settled or not self._conn.connected:
            return
        delivery.renewing = now
        confirm = self._conn.replies.expect(self._renewed, delivery)
        self._conn.write(pub(delivery.reply, confirm, b"+WPI"))

    @staticmethod
    def _renewed(
        argument: object, header_block: bytes | None, payload: bytes | Exception
    ) -> None:
        delivery = argument
        assert isinstance(delivery, Delivery)
        sent_at, delivery.renewing = delivery.renewing, None
        if isinstance(payload, Exception) or (not payload and status_of(header_block)):
            return  # lost on the way, or the durable is gone (503): the lease runs on unrenewed
        if sent_at is not None:
            delivery.leased_at = max(delivery.leased_at, sent_at)

    def forget(self, delivery: Delivery) -> None:
        if delivery.settled:
            return
        delivery.settled = delivery.lost = True
        if self._held.get(delivery.sequence) is delivery:
            del self._held[delivery.sequence]
        if delivery in self._fenced:
            self._return_fenced(delivery)
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
        self._requested = 0
        self.deadline = float("inf")
        if not self._closing:
            self._inbox = self._conn.new_inbox()
            self._conn.move_subscription(self._sid, self._inbox)
        if self._shard:
            now = trio.current_time()
            for delivery in list(self._held.values()):
                if now - delivery.arrived_at < FORGETFUL_S:
                    self._fence(delivery)

    def _fence(self, delivery: Delivery) -> None:
        """Nothing of this delivery may take effect any more."""
        delivery.lost = delivery.fenced = True
        self._fenced[delivery] = self._conn.server_id
        if delivery.on_lost is not None:
            delivery.on_lost()

    def on_reconnected(self) -> None:
        for delivery in self._held.values():
            delivery.renewing = None
            if not delivery.lost:
                self.renew(delivery)
        for delivery in [d for d in self._fenced if d.settled]:
            self._return_fenced(delivery)
        self._top_up()

    def _return_fenced(self, delivery: Delivery) -> None:
        """Its handler has ended. The very same server still holds it for us: it may have it back
        now. Another one (or the same, restarted) may have given it to somebody else, whose
        delivery a NAK would end; there the lease decides.
        """
        if not self._conn.connected:
            return  # `on_reconnected` asks again
        server = self._fenced.pop(delivery)
        age = trio.current_time() - delivery.leased_at
        if server == self._conn.server_id and age <= self._spec.ack_wait_s * LEASE_SHARE:
            self._conn.write(pub(delivery.reply, b"", b"-NAK"))

    def on_missed_heartbeats(self) -> None:
        self._abandon_pulls()
        self.deadline = float("inf")
        self._notice("pull_stalled", f"no heartbeat for {2 * PULL_HEARTBEAT_S:g} s")
        # Either the pull was lost or the durable is gone: looking is cheap, guessing is not.
        self._vanished("missed heartbeats")

    def _abandon_pulls(self) -> None:
        """End whatever pulls the server still has: their inbox goes away."""
        self._requested = 0
        old = self._sid
        self._conn.redirect(old, self._on_late_message)
        self._inbox = self._conn.new_inbox()
        self._sid = self._conn.subscribe(self._inbox, self._on_message)
        self._backend.start_soon(self._conn.unsubscribe, old)

    def _vanished(self, why: str) -> None:
        self._requested = 0
        if not self._closing and not self._recovering:
            self._recovering = True
            self._backend.start_soon(self._recover, why)

    async def _recover(self, why: str) -> None:
        """Bring the durable back, however long its stream is away; then pull again."""
        try:
            # A pull may fail at once although the durable is there; that must not spin (PC-003).
            await self._closed_within(
                self._recovered_at + RECOVER_FIRST_S - trio.current_time()
            )
            await self._bring_back(why)
        finally:
            # Also when the backend ends: it may run again.
            self._recovering = False
            self._recovered_at = trio.current_time()
        self._top_up()

    async def _closed_within(self, seconds: float) -> None:
        if seconds > 0:
            with trio.move_on_after(seconds):
                await self._closed.wait()

    async def _bring_back(self, why: str) -> None:
        pause, told = RECOVER_FIRST_S, False
        while not self._closing:
            try:
                created = await self._backend.ensure_durable(self._spec)
            except TopicNotDeclared as exc:
                if not told:
                    told = True
                    logger.warning("waiting for stream %s: %s", self._spec.stream, why)
                    self._notice("lane_waiting", str(exc))
            except UnavailableError:
                # No connection, or JetStream is not ready yet after a restart.
                pass
            except ShoveError as exc:
                if not (isinstance(exc, ApiError) and exc.code == 503):
                    self._end(exc)
                    return
            else:
                if created:
                    # A new durable delivers everything unacknowledged again, also what is in
                    # our hands: let go of it first.
                    self.drop_all()
                    self._notice("lane_recreated", why)
                return
            await self._closed_within(pause)
            pause = min(pause * 2, RECOVER_MAX_S)

    def drop_all(self) -> None:
        """Every lease is void: cancel the handlers, forget what waits."""
        for delivery in self._buffer.take_all():
            delivery.settled = delivery.lost = True
        for delivery in list(self._held.values()):
            delivery.lost = True
            delivery.successor = None
            if delivery.on_lost is not None:
                delivery.on_lost()
        self._held.clear()

    def _notice(self, kind: str, detail: str) -> None:
        self._backend.notice(
            kind, f"{self._spec.stream}/{self._spec.durable}: {detail}"
        )

    def _end(self, error: Exception) -> None:
        self._failed = True
        self._requested = 0
        self._buffer.end(error)

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        if self._closing:
            await self._handed_back.wait()
            return
        self._closing = True
        self._closed.set()
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
