"""A lane: the deliveries of one durable to one process.

Credit is counted here and nowhere else: what is held plus what is asked for never exceeds it, and
a message that arrives beyond it (the credit shrank meanwhile) is handed back unread.

One stored message is in hand at most once. When the server delivers a sequence again that is
still held, the new delivery waits behind the old one as its successor. An acknowledgement of the
old one settles the message, since acknowledgements go by sequence, and a nak hands it back: the
successor is dropped. Only when the old one is *forgotten*, or settled too late, does the successor
take its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import TopicNotDeclared, TopologyError, UsageError
from shove_actors._log import about
from shove_actors.backends import margins
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._lane_buffer import LaneBuffer
from shove_actors.backends._port import LaneSpec, LaneStatistics
from shove_actors.backends._tenure import Tenure

from ._durable import Durable, DurableSettings, PullRequest
from ._faults import Effect
from ._fence import Fence
from ._stream import StoredMessage

if TYPE_CHECKING:
    from ._backend import MemoryBackend

_logger = logging.getLogger("shove_actors.backends.memory")

LEASE_SHARE = margins.TRUST_SHARE
STALE_SHARE = margins.STALE_SHARE

#: How long `confirm` waits for settles that are stuck in a stalled link.
CONFIRM_LIMIT_S = 2.0


#: Every so often a shard's worker waits for its next message, even if that is there.
AT_ONCE = 8


class MemoryLane:
    """Implements `Lane`. Made by `MemoryBackend.open_lane`."""

    def __init__(self, backend: MemoryBackend, spec: LaneSpec, durable: Durable) -> None:
        self.durable = durable
        self._backend = backend
        self._spec = spec
        self._credit = spec.credit
        self._held: dict[int, Delivery] = {}
        self._buffer = LaneBuffer()
        self._request = PullRequest(self)
        self._requested = 0
        self._received = 0
        self._pulls = 0
        self._fence = Fence(backend, spec.ack_wait_s * LEASE_SHARE)
        self._incarnation = backend.server.incarnation
        self._closed = False
        self._awaits_stream = False
        #: Its durable is gone, or may have taken the place of another one: nothing is asked for.
        self._held_off = False
        self._absences = 0
        self._tenure = Tenure()
        self._tickets = 0
        self._at_once = 0
        self._unprocessed: set[int] = set()
        #: The same of a shard, also when `confirm` has given up on them.
        self._unread: set[int] = set()
        self._all_processed: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<MemoryLane {self._spec.durable}: {len(self._held)} of {self._credit} held>"

    @property
    def spec(self) -> LaneSpec:
        return self._spec

    @property
    def held(self) -> Mapping[int, Delivery]:
        return self._held

    def statistics(self) -> LaneStatistics:
        return LaneStatistics(
            waiting=len(self._buffer),
            held=len(self._held),
            requested=self._requested,
            credit=self._credit,
            received=self._received,
            pulls=self._pulls,
        )

    # ----------------------------------------------------------------------- receiving

    @property
    def busy_until(self) -> float:
        return self._buffer.busy_until

    def receive_nowait(self) -> Delivery:
        if self._spec.max_ack_pending == 1 and not len(self._buffer):
            self._look_at_once()
        while True:
            delivery = self._buffer.receive_nowait()
            # Its lease may have ended while it waited here.
            if self._held.get(delivery.sequence) is delivery:
                return delivery

    async def receive(self) -> Delivery:
        while True:
            delivery = await self._buffer.receive()
            if self._held.get(delivery.sequence) is delivery:
                return delivery

    def _look_at_once(self) -> None:
        """A shard's next message is deliverable once the last one is settled: without waiting for
        the server's turn, which costs more than the message. Not for ever: others have theirs.
        """
        self._at_once += 1
        if self._at_once % AT_ONCE:
            self._backend.server.serve_one(self.durable)

    def wake_next(self) -> bool:
        return self._buffer.wake_next()

    # ------------------------------------------------------------------------- settling

    def ack(self, delivery: Delivery) -> None:
        if not self._release(delivery):
            return
        durable, sequence, server = self.durable, delivery.sequence, self._backend.server
        faults = server.faults
        effect = faults.watch("ack", self._backend) if faults.watch is not None else None
        lost = faults.hits("drop_ack")
        if effect is None and not lost and self._backend.link.clear:
            durable.ack(sequence, server.now())
        else:
            self._send_settle(
                lambda: durable.ack(sequence, server.now()), effect, lost=lost, of=delivery
            )
        self._released()

    def nak(self, delivery: Delivery, delay_s: float | None = None) -> None:
        if self._release(delivery):
            watch = self._backend.server.faults.watch
            effect = watch("nak", self._backend) if watch is not None else None
            self._send_nak(delivery.sequence, delay_s, effect, of=delivery)
            self._released()

    def forget(self, delivery: Delivery) -> None:
        if not delivery.settled:
            delivery.settled = True
            self._lose(delivery)
            self._fence.handler_ended(delivery)

    def _release(self, delivery: Delivery) -> bool:
        """False: the lease has ended, so this settle is dropped (PC-020)."""
        if delivery.settled:
            raise UsageError(f"{delivery!r} was settled before: a delivery is settled once")
        delivery.settled = True
        age = trio.current_time() - delivery.leased_at
        if delivery.lost or age > self._spec.ack_wait_s * LEASE_SHARE or not self._connected:
            _logger.warning(
                "the lease of %s:%d ended before it was settled; the settle is dropped and the "
                "server delivers the message again",
                delivery.stream,
                delivery.sequence,
                extra=about("settle_late", queue=delivery.stream, sequence=delivery.sequence),
            )
            self._lose(delivery)
            return False
        delivery.successor = None
        if self._held.get(delivery.sequence) is delivery:
            del self._held[delivery.sequence]
        return True

    def _lose(self, delivery: Delivery) -> None:
        """Not ours any more, and the server need not be told: the next in line takes its place."""
        delivery.lost = True
        successor, delivery.successor = delivery.successor, None
        if self._held.get(delivery.sequence) is delivery:
            del self._held[delivery.sequence]
            if successor is not None and self._closed:
                self._send_nak(successor.sequence, None)
            elif successor is not None:
                self._held[successor.sequence] = successor
                self._buffer.push(successor)
        self._released()

    def _released(self) -> None:
        self._refill()
        if self._closed and not self._held:
            # Closed, and nothing in a handler any more: the backend need not know it.
            self._backend.lane_retired(self)

    @property
    def _connected(self) -> bool:
        # A crashed process does not know it: what it settles goes nowhere.
        return self._backend.link.connected or self._backend.link.dead

    def renew(self, delivery: Delivery) -> None:
        if delivery.renewing is not None or delivery.settled or not self._backend.connected:
            return
        faults = self._backend.server.faults
        effect = faults.watch("renew", self._backend) if faults.watch is not None else None
        if faults.hits("drop_renewal") or (effect is not None and effect.lost):
            return
        now = delivery.renewing = trio.current_time()
        self._backend.link.send(partial(self._renew, self.durable, delivery, now))
        if effect is not None and effect.after is not None:
            effect.after()

    def _renew(self, durable: Durable, delivery: Delivery, sent_at: float) -> None:
        """The server confirms, and the lease moves on once that has arrived."""
        renewed = durable.renew(delivery.sequence, self._backend.server.now())
        self._backend.link.deliver(partial(self._renewed, delivery, sent_at, renewed))

    def _renewed(self, delivery: Delivery, sent_at: float, renewed: bool) -> None:
        if delivery.renewing == sent_at:
            delivery.renewing = None
        if renewed:
            # From when it was asked for: earlier than the server's own idea, never later.
            delivery.leased_at = max(delivery.leased_at, sent_at)

    def send_nak(self, sequence: int) -> None:
        """Hand back what is not held here (any more)."""
        self._send_nak(sequence, None)

    def _send_nak(
        self,
        sequence: int,
        delay_s: float | None,
        effect: Effect | None = None,
        *,
        of: Delivery | None = None,
    ) -> None:
        durable, server = self.durable, self._backend.server
        # The delay counts from the moment the server learns of it.
        self._send_settle(lambda: durable.nak(sequence, delay_s, server.now()), effect, of=of)

    def _send_settle(
        self,
        action: Callable[[], None],
        effect: Effect | None,
        *,
        lost: bool = False,
        of: Delivery | None = None,
    ) -> None:
        self._tickets += 1
        ticket = self._tickets
        self._unprocessed.add(ticket)
        after = None
        if effect is not None:
            lost, after = lost or effect.lost, effect.after

        def carried_out() -> None:
            action()
            self._unprocessed.discard(ticket)
            self._unread.discard(ticket)
            if self._all_processed is not None and not self._unprocessed:
                self._all_processed.set()

        if effect is not None and effect.late_s and not lost:
            server = self._backend.server
            link, connection = self._backend.link, self._backend.link.connection
            if link.connected and not link.dead:
                server.call_at(
                    server.now() + effect.late_s,
                    # Not if the connection was cut in between.
                    lambda: carried_out() if link.connection == connection else None,
                )
        elif not lost:
            self._backend.link.send(carried_out)
        if of is not None and ticket in self._unprocessed:
            self._guard(ticket, of)
        if after is not None:
            after()

    def _guard(self, ticket: int, delivery: Delivery) -> None:
        """A settle that nobody has read by the end of its lease must not be read any more: it would
        settle the message under whoever has it then. Only cutting the connection makes sure. The
        same on NATS.
        """
        if self._spec.max_ack_pending != 1:
            return
        backend, connection = self._backend, self._backend.link.connection
        self._unread.add(ticket)

        def check() -> None:
            if ticket in self._unread and backend.link.connection == connection:
                backend.drop_connection()
            self._unread.discard(ticket)

        server = backend.server
        trusted_until = delivery.leased_at + self._spec.ack_wait_s * LEASE_SHARE
        server.call_at(server.now() + max(0.0, trusted_until - trio.current_time()), check)

    async def confirm(self) -> bool:
        await trio.lowlevel.checkpoint()
        if self._unprocessed and self._backend.connected:
            self._all_processed = trio.Event()
            with trio.move_on_after(CONFIRM_LIMIT_S):
                await self._all_processed.wait()
            self._all_processed = None
        confirmed = not self._unprocessed
        # Reported once: what was lost is not a failure of the next confirmation.
        self._unprocessed.clear()
        return confirmed

    # --------------------------------------------------------------------------- credit

    def set_credit(self, credit: int) -> None:
        if credit < 0:
            raise UsageError(f"credit must be at least 0, not {credit}")
        self._credit = credit
        surplus = len(self._held) + self._requested - credit
        if surplus > 0 and self._requested:
            taken_back = min(surplus, self._requested)
            self._requested -= taken_back
            self._backend.link.send(partial(self.durable.reduce, self._request, taken_back))
        self._refill()

    def _refill(self) -> None:
        missing = self._credit - len(self._held) - self._requested
        if missing <= 0 or self._closed or self._awaits_stream or self._held_off:
            return
        if self._backend.link.send(partial(self._ask, self.durable, missing)):
            self._requested += missing
            self._pulls += 1

    def _ask(self, durable: Durable, missing: int) -> None:
        durable.lengthen(self._spec.ack_wait_s)
        durable.pull(self._request, missing)

    # ------------------------------------------------------------------------- arriving

    @property
    def process(self) -> MemoryBackend:
        return self._backend

    def arrive(self, message: StoredMessage, num_delivered: int) -> None:
        """On the server's side: the lease starts now, however long the way takes."""
        self._backend.link.deliver(
            partial(
                self._take,
                self.durable,
                message,
                num_delivered,
                self.durable.deliveries,
                trio.current_time(),
            )
        )

    def _take(
        self,
        durable: Durable,
        message: StoredMessage,
        num_delivered: int,
        count: int,
        leased_at: float,
    ) -> None:
        self._received += 1
        # Counted before anything is turned away: what we were given nobody else was given.
        tenure = self._tenure.of(count) if self._spec.max_ack_pending == 1 else 0
        self._requested = max(0, self._requested - 1)
        sequence = message.sequence
        if trio.current_time() - leased_at > self._spec.ack_wait_s * STALE_SHARE:
            self._refill()  # left to its lease
            return
        held = self._held.get(sequence)
        if self._closed or (held is None and len(self._held) >= self._credit):
            self._send_nak(sequence, None)
            return
        delivery = Delivery(
            self,
            message.subject,
            message.payload,
            message.header_block or None,
            durable.stream.settings.name,
            sequence,
            num_delivered,
            message.timestamp_ns,
            leased_at,
            b"",
        )
        delivery.arrived_at = trio.current_time()
        delivery.tenure = tenure
        if held is None:
            self._held[sequence] = delivery
            self._buffer.push(delivery)
        else:
            held.successor = delivery
        self._refill()

    # ---------------------------------------------------------------------- life cycle

    def start(self, *, pause_s: float = 0.0) -> None:
        """`pause_s`: not before so long; its durable may have taken the place of another one."""
        if pause_s:
            self._hold_off(pause_s, self._refill)
        else:
            self._refill()

    def _hold_off(self, seconds: float, then: Callable[[], None]) -> None:
        self._held_off = True
        self._absences += 1
        absence, server = self._absences, self._backend.server

        def go_on() -> None:
            if absence == self._absences:
                self._held_off = False
                # Lost without a connection; the next one begins with a look.
                self._backend.link.send(then)

        server.call_at(server.now() + seconds, go_on)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._backend.link.send(partial(self.durable.cancel, self._request))
            self._requested = 0
            for delivery in self._buffer.take_all():
                if self._held.get(delivery.sequence) is delivery:
                    self.nak(delivery)
            self._buffer.end()
            self._released()
        await self.confirm()

    def crashed(self) -> None:
        """The process is gone; whoever still waits here waits for ever."""
        self.durable.cancel(self._request)
        self._buffer.take_all()

    def left(self) -> None:
        """The backend has left with this lane open: its messages come back after the ack wait."""
        self._closed = True
        self.crashed()
        self._buffer.end()

    def link_cut(self) -> None:
        """The server drops requests with the connection; held messages stay held."""
        self._tenure.end()
        self.durable.cancel(self._request)
        self._request = PullRequest(self)
        self._requested = 0
        for delivery in self._held.values():
            # Whatever was on its way is not any more.
            delivery.renewing = None
            delivery.leased_at -= margins.RESTART_EARLY_S
        if self._spec.max_ack_pending == 1:
            self._fence.fence_young(self._held.values())

    def link_restored(self) -> None:
        if self.durable.gone:
            self.durable_gone()
            return
        for delivery in self._held.values():
            if not delivery.lost:
                self.renew(delivery)
        self._fence.reconnected()
        incarnation, self._incarnation = self._incarnation, self._backend.server.incarnation
        if (
            self._spec.max_ack_pending == 1
            and incarnation != self._incarnation
            and all(delivery.lost for delivery in self._held.values())
        ):
            self._hold_off(margins.RESTART_GRACE_S, self._refill)
        else:
            self._refill()

    def durable_gone(self) -> None:
        """Everything held may be handed to anybody: the leases have ended."""
        self._tenure.end()
        for delivery in self._buffer.take_all():
            delivery.settled = delivery.lost = True
            self._held.pop(delivery.sequence, None)
        # Those in handlers stay in hand until their handlers have ended: the same message, coming
        # from the new durable, waits behind them.
        for delivery in list(self._held.values()):
            delivery.lost = True
            delivery.successor = None
            if delivery.on_lost is not None:
                delivery.on_lost()
        self._request = PullRequest(self)
        self._requested = 0
        # The next one delivers again what this one has delivered: everybody has to let go of it
        # first. The same on NATS (`nats/_recovery.py`).
        self._hold_off(self._old_leases(), self.reopen)

    def _old_leases(self) -> float:
        """How long after a durable is gone somebody may be at what it had delivered."""
        spec, stream = self._spec, self.durable.stream
        if (
            spec.max_ack_pending == 1
            and self._backend.server.streams.get(spec.stream) is stream
            and next(stream.browse(spec.filter_subject), None) is not None
        ):
            return spec.ack_wait_s
        return margins.DELETED_GRACE_S

    def stream_created(self) -> None:
        if self._awaits_stream:
            self.reopen()

    def reopen(self) -> None:
        """Creates the durable anew, now or when its stream comes back."""
        if self._closed:
            return
        try:
            self.durable = self._backend.server.open_durable(
                self._spec.stream, durable_settings(self._spec)
            )
        except TopicNotDeclared as error:
            self._awaits_stream = True
            self._backend.emit("lane_waiting", str(error), durable=self._spec.durable)
        except TopologyError as error:
            self._buffer.end(error)
        else:
            self._awaits_stream = False
            self._backend.emit("lane_recreated", durable=self._spec.durable)
            self._refill()


def durable_settings(spec: LaneSpec) -> DurableSettings:
    return DurableSettings(
        name=spec.durable,
        filter_subject=spec.filter_subject,
        max_ack_pending=spec.max_ack_pending,
        ack_wait_s=spec.ack_wait_s,
    )
