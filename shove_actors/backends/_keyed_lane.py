"""A lane of a keyed shard: one process owns it, and handles many keys of it at once.

What is decided is `_ownership.py`, which key is next `_key_lanes.py`; here both are connected to a
durable (`PinnedDurable`, of the backend) and to the workers (`Lane`). The same on every backend.

Invariants
* Workers are given a delivery only while the shard is ours (`Ownership.starts`).
* One lease for all: when it lapses, every handler is cancelled at once and everything that waits is
  forgotten. It is looked at before each request, each delivery and each settle, by a timer, and by
  the lease keeper before any task runs after a pause (`tend`).
* A handler that was cancelled counts as running until its worker lets go of its delivery. Until
  then the shard is neither handed on nor taken again.
* The next message of a key is started once the server is known to have read the acknowledgement of
  the one before (`_keyed_acks.py`). So whoever follows us, after whatever crash, is never given a
  message that comes before one of its key that we have begun.
* RETRY is carried out here, not by the server: the delivery stays in hand, in front of its key.
* What is in hand is never given back: whoever owns the shard next rewinds the durable.

Letting go for another process to have its share (`let_go`) has two phases, because one handler that
is slow would hold all keys up for as long as it runs. Winding down: what is in handlers at that
moment is noted; its keys are not started again, all others are (and those whose handler ends well
and soon: they are not what is waited for). When the noted ones have ended (at the latest by their
time-out), it is left as at any other time: nothing is started, and what runs ends, which began
since and is no slower than a handler is.

Nothing has to be kept alive for the server: it delivers what is in hand for longer than the ack
wait again to whoever is pinned. That is us, and it is recognised (`Fate.AGAIN`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import trio

from shove_actors._errors import UsageError
from shove_actors._log import about

from ._delivery import Delivery
from ._keyed_acks import KeyedAcks
from ._keyed_buffer import KeyedBuffer
from ._keyed_pulls import KeyedPulls
from ._owner_requests import OwnerRequests
from ._owner_steps import Fate, Step
from ._ownership import Ownership
from ._pinned import PinnedDurable
from ._port import LaneSpec, LaneStatistics

logger = logging.getLogger("shove_actors.backends.keyed")

#: A key whose handler ends well within this time of winding down is started again.
SOON_S: Final = 1.0


class KeyedLane:
    """See `backends._port.Lane`. `run` does its work; without it nothing is ever owned.

    `name`: by which it owns the shard; nobody else's, ever.
    """

    def __init__(self, spec: LaneSpec, durable: PinnedDurable, name: str) -> None:
        if spec.keyed is None:
            raise UsageError(f"{spec.durable!r} has no keyed lane")
        self._spec = spec
        self._key_of = spec.keyed.key_of
        self._durable = durable
        self.ownership = Ownership(name, spec.ack_wait_s)
        self._buffer = KeyedBuffer(spec.keyed.max_in_flight)
        self._held: dict[int, Delivery] = {}
        #: In a worker's hands, also when it is not ours any more.
        self._taken: dict[Delivery, None] = {}
        self.acks = KeyedAcks(durable, self._buffer)
        #: Called when the shard was taken, is to be let go of, or is not ours any more.
        self.on_change: Callable[[], None] | None = None
        self._known_as = (False, False)
        #: `trio.current_time`, without looking for the clock each time.
        self._now = trio.lowlevel.current_clock().current_time
        #: Winding down: what was in handlers when that began, and is still.
        self._noted: set[Delivery] | None = None
        self._soon_until = 0.0
        self._closing = False
        #: No pull of this ownership is left.
        self._left = False
        self._released = trio.Event()
        self._ask = trio.Event()
        self._timer = trio.Event()
        self.pulls = KeyedPulls(
            self.ownership, durable, self._buffer, self._held, spec.credit, spec.ack_wait_s
        )
        self._received = 0
        self._requests = OwnerRequests(spec, durable, self.ownership, self.fail)
        self.ownership.connected = durable.connected
        self.wake_next = self._buffer.wake_next

    def __repr__(self) -> str:
        return f"<KeyedLane {self._spec.durable}: {len(self._held)} held, {self.ownership!r}>"

    @property
    def spec(self) -> LaneSpec:
        return self._spec

    @property
    def held(self) -> Mapping[int, Delivery]:
        return self._held

    @property
    def busy_until(self) -> float:
        return self._buffer.busy_until

    @property
    def requested(self) -> int:
        """Asked for and not here yet."""
        return self.pulls.requested

    @property
    def keys(self) -> int:
        """How many keys are in memory: those of what is in hand, and those of what is settled and
        not known to be (no more than a few hundred, and not for long)."""
        return self._buffer.keys + self.acks.unproven

    @property
    def owned(self) -> bool:
        """Whether this process handles the shard, and is not letting go of it."""
        return self.ownership.starts and self._noted is None

    @property
    def leaving(self) -> bool:
        return self.ownership.leaving or self._noted is not None

    @property
    def winding_down(self) -> bool:
        """Leaving, and `stand_by(True)` still makes it stay."""
        return self._noted is not None

    def let_go(self) -> None:
        """Let somebody else have the shard, once what runs has ended: see the module."""
        if not self.owned:
            return
        self._noted = {delivery for delivery in self._taken if not delivery.lost}
        self._soon_until = trio.current_time() + SOON_S
        self._buffer.wind_down()
        if not self._noted:
            self._leave()

    def _ended_noted(self, delivery: Delivery) -> None:
        """Its handler has ended, while winding down."""
        assert self._noted is not None
        self._noted.discard(delivery)
        if not self._noted:
            self._leave()

    def _leave(self) -> None:
        self.ownership.leave()
        self._look(trio.current_time())
        self._ask.set()

    def stand_by(self, wanted: bool) -> None:
        """Whether to take the shard when nobody has it, or to keep it when winding down."""
        own = self.ownership
        if wanted and self._noted is not None:
            self._noted = None
            self._buffer.go_on()
            return
        if self._closing or own.wanted == wanted:
            return
        if wanted:
            own.want()
            self.pulls.again()
        else:
            own.leave()
            if not own.owns:
                # One that waits at the server would be pinned, when somebody lets go, for nothing.
                self.pulls.stop()
        self._ask.set()
        self._timer.set()

    def set_credit(self, credit: int) -> None:
        self.pulls.grant(credit)
        self._timer.set()

    def statistics(self) -> LaneStatistics:
        return LaneStatistics(
            waiting=len(self._buffer),
            held=len(self._held),
            requested=self.pulls.requested,
            credit=self.pulls.credit,
            received=self._received,
            pulls=self.pulls.count,
        )

    # ------------------------------------------------------------------ for workers

    def receive_nowait(self) -> Delivery:
        # Also in the pass in which the process was stopped, before the keeper has looked.
        now = self._now()
        if now >= self.ownership.lapses_at:
            self._look(now)
        delivery = self._buffer.lanes.take()
        if delivery is None:
            delivery = self._buffer.receive_nowait()  # raises why not
        self._taken[delivery] = None
        return delivery

    async def receive(self) -> Delivery:
        while True:
            delivery = await self._buffer.receive()
            self._taken[delivery] = None
            if trio.current_time() < self.ownership.lapses_at:
                return delivery
            self._look(trio.current_time())
            self.forget(delivery)

    def ack(self, delivery: Delivery) -> None:
        now = self._now()
        if not self._ends(delivery, now):
            return
        sequence = delivery.sequence
        del self._held[sequence]
        noted = self._noted
        if noted is not None and now < self._soon_until and delivery in noted:
            self._buffer.lanes.goes_on(delivery.key)
        self.acks.send(delivery, seen=sequence <= self.ownership.seen)
        self.pulls.settled(delivery.size, now)
        if noted is not None:
            self._ended_noted(delivery)

    def nak(self, delivery: Delivery, delay_s: float | None = None) -> None:
        if self._ends(delivery, trio.current_time()):
            self._retry(delivery, delay_s or 0.0)
            if self._noted is not None:
                self._ended_noted(delivery)

    def renew(self, delivery: Delivery) -> None:
        """There is one lease for all, and it is renewed by `run`."""

    def forget(self, delivery: Delivery) -> None:
        if delivery.settled:
            return
        dropped = delivery.sequence not in self._held or not self.ownership.owns
        delivery.settled = delivery.lost = True
        self._taken.pop(delivery, None)
        self._ask.set()
        if not dropped and self._held.get(delivery.sequence) is delivery:
            # The worker thought better of it, the shard is still ours.
            self._retry(delivery, 0.0)
            if self._noted is not None:
                self._ended_noted(delivery)

    def _ends(self, delivery: Delivery, now: float) -> bool:
        """Its handler has ended. False: too late, nothing may be said."""
        if delivery.settled:
            raise UsageError(f"{delivery!r} is settled already")
        delivery.settled = True
        self._taken.pop(delivery, None)
        own = self.ownership
        if own.owns and not own.leaving and now < own.lapses_at and not delivery.lost:
            return True  # nothing else is to be thought of
        self._look(now)
        if self.ownership.leaving or not self.ownership.owns:
            self._ask.set()
        if not delivery.lost and self.ownership.may_settle(now):
            return True
        delivery.lost = True
        logger.warning(
            "the lease of %s:%d ended before it was settled; the settle is dropped and the "
            "server delivers the message again",
            self._spec.stream,
            delivery.sequence,
            extra=about("settle_late", queue=delivery.stream, sequence=delivery.sequence),
        )
        return False

    def _retry(self, delivery: Delivery, delay_s: float) -> None:
        """The same message once more, after the delay, before the others of its key."""
        if not self.ownership.starts:
            # Leaving: whoever comes next has it from the server.
            self.ownership.waits[delivery.sequence] = trio.current_time() + delay_s
            del self._held[delivery.sequence]
            self.pulls.freed(delivery.size)
            self._buffer.drop(delivery)
            return
        after = self._delivery(
            delivery.subject,
            delivery.payload,
            delivery.raw_headers,
            delivery.sequence,
            delivery.num_delivered + 1,
            delivery.timestamp_ns,
            delivery.reply,
        )
        after.key = delivery.key
        after.arrived_at = delivery.arrived_at
        self._held[delivery.sequence] = after
        self._buffer.again(delivery, after, trio.current_time() + delay_s)
        self._timer.set()

    def _delivery(
        self,
        subject: str,
        payload: bytes,
        raw_headers: bytes | None,
        sequence: int,
        num_delivered: int,
        timestamp_ns: int,
        reply: bytes,
    ) -> Delivery:
        delivery = Delivery(
            self,
            subject,
            payload,
            raw_headers,
            self._spec.stream,
            sequence,
            num_delivered,
            timestamp_ns,
            self.ownership.proof,
            reply,
        )
        delivery.tenure = self._requests.tenure
        return delivery

    async def confirm(self) -> bool:
        confirmed = await self._durable.confirm()
        if self._closing:
            await self.discard()  # the last that is asked of a lane
        return confirmed

    # ------------------------------------------------------------------ from the backend

    def arrived(
        self,
        pin: str | None,
        count: int,
        subject: str,
        payload: bytes,
        raw_headers: bytes | None,
        sequence: int,
        timestamp_ns: int,
        reply: bytes,
        now: float,
        requested: bool = True,
    ) -> None:
        """A message. `requested`: of a pull that counts (`PinnedDurable.begin`)."""
        own = self.ownership
        if own.leaving or now >= own.lapses_at:
            self._look(now)
        pulls = self.pulls
        if requested and pulls.requested:
            pulls.requested -= 1
        self._received += 1
        before = self._held.get(sequence)
        fate = own.arrived(pin, count, sequence, in_hand=before is not None, now=now)
        if fate is Fate.NEW:
            record = own.record
            assert record is not None
            delivery = Delivery(
                self,
                subject,
                payload,
                raw_headers,
                self._spec.stream,
                sequence,
                1 if sequence > record.high else record.deliveries(sequence),
                timestamp_ns,
                own.proof,
                reply,
            )
            delivery.tenure = self._requests.tenure
            delivery.arrived_at = now
            delivery.key = self._key_of(delivery)
            self._held[sequence] = delivery
            pulls.took(delivery.size)
            if sequence in own.tries:
                self._buffer.lanes.push_later(delivery.key, delivery, own.tries.pop(sequence))
                self._timer.set()
            else:
                self._buffer.push(delivery)
            if self._buffer.lanes.urgent:
                self.acks.ask_if_needed()
            if not pulls.requested:
                pulls.top_up(now)
            return
        if before is not None and fate is Fate.AGAIN:
            before.reply = reply
        elif fate is Fate.SETTLED:
            self.acks.send_again(
                self._delivery(subject, b"", None, sequence, 1, timestamp_ns, reply)
            )
        elif own.owns:
            self.acks.doubt()  # somebody has rewound, or something was lost
        self._ask.set()
        pulls.top_up(now)

    def refused(self) -> None:
        """A pull with the present pin was turned away."""
        self.pulls.ended(None)
        self.ownership.refused(trio.current_time())
        self._ask.set()
        self._timer.set()

    def pull_ended(self, left: int | None) -> None:
        """A request ended; so much of it was left (None: all)."""
        self.pulls.ended(left)
        self._timer.set()

    def heartbeat(self, count: int | None) -> None:
        """The durable has delivered so many."""
        if count is not None:
            self.ownership.delivered_up_to(count)
            self._ask.set()

    def disconnected(self) -> None:
        self.pulls.ended(None)
        self.acks.doubt()
        self.ownership.disconnected()
        self._ask.set()

    def reconnected(self) -> None:
        self.pulls.again()
        self.ownership.reconnected(trio.current_time())
        self._ask.set()
        self._timer.set()

    def recreated(self) -> None:
        """The durable was deleted: it is another one, or will be."""
        self.pulls.ended(None)
        self.ownership.recreated()
        self._look(trio.current_time())
        self._ask.set()

    def fail(self, error: Exception) -> None:
        """It cannot go on: workers raise this."""
        self.ownership.leave()
        self._buffer.end(error)

    def tend(self, now: float) -> None:
        """From the lease keeper: also before any task runs, after a pause."""
        self._look(now)

    # ------------------------------------------------------------------ its tasks

    async def run(self) -> None:
        """Until cancelled, or until the lane is closed and the shard handed on."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_time)
                nursery.start_soon(self.acks.look_after)
                await self._converse()
                nursery.cancel_scope.cancel()
        finally:
            self.ownership.abandon()
            self._look(trio.current_time())

    async def _converse(self) -> None:
        """One request after another."""
        own = self.ownership
        while True:
            now = trio.current_time()
            self._look(now)
            step, wake = own.next(now, len(self._taken))
            if step is not None:
                if step is Step.REWIND:
                    self.acks.doubt()
                await self._requests.make(step)
                self._look(trio.current_time())
                self._timer.set()
            elif self._closing and not (own.owns and own.connected):
                self._released.set()
                return
            else:
                self._ask = trio.Event()
                with trio.CancelScope(deadline=wake):
                    await self._ask.wait()

    async def _keep_time(self) -> None:
        """Tries that are due, pulls that keep the pin, a lease that lapses."""
        while True:
            now = trio.current_time()
            self._look(now)
            self._buffer.ripen(now)
            self.pulls.top_up(now)
            own = self.ownership
            wake = min(self._buffer.next_due, own.lapses_at)
            if own.pulls and own.connected and not self.pulls.stalled:
                wake = min(wake, self.pulls.due)
            self._timer = trio.Event()
            with trio.CancelScope(deadline=wake):
                await self._timer.wait()

    def _look(self, now: float) -> None:
        """What became of the ownership."""
        own = self.ownership
        if own.lapsed(now):
            self._drop_all()
        elif own.leaving and not self._left:
            self._left = True
            self.pulls.stop()
            self._noted = None
            self._buffer.lanes.go_on()
        if not own.owns:
            self._left = False
        elif own.leaving and len(self._buffer):
            own.waits.update((item.sequence, due) for item, due in self._buffer.lanes.later())
            for delivery in self._buffer.take_all():
                delivery.settled = delivery.lost = True
                del self._held[delivery.sequence]
                self.pulls.freed(delivery.size)
        if self._known_as != (own.owns, own.leaving):
            self._known_as = own.owns, own.leaving
            if self.on_change is not None:
                self.on_change()

    def _drop_all(self) -> None:
        """Not ours any more: cancel the handlers, forget what waits."""
        if self._held:
            logger.warning(
                "shard %s is not ours any more: its lease could not be renewed, or its durable is "
                "gone; %d handlers are cancelled, and what waits is given up",
                self._spec.durable,
                self._buffer.in_flight,
                extra=about("shard_lost", queue=self._spec.stream, count=self._buffer.in_flight),
            )
        for delivery in self._buffer.reset():
            delivery.settled = delivery.lost = True
        self._held.clear()
        self.pulls.bytes = 0
        self._noted = None
        self.acks.doubt()
        for delivery in list(self._taken):
            delivery.lost = True
            if delivery.on_lost is not None:
                delivery.on_lost()
        self._ask.set()

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        """Start nothing more. What is in handlers stays settleable; `released` waits for it."""
        await trio.lowlevel.checkpoint()
        if self._closing:
            return
        self._closing = True
        self.ownership.leave()
        self._look(trio.current_time())
        self._buffer.end()
        self._ask.set()

    async def released(self) -> None:
        """Until the shard is handed on, or cannot be any more. After `close`, with `run`."""
        await self._released.wait()
        await self.discard()

    async def discard(self) -> None:
        """Hear nothing more, whatever has become of the shard. Idempotent."""
        await self._durable.close()
