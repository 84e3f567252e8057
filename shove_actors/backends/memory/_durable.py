"""One durable: who gets which message next, and what happens when nobody settles it.

Rules, as nats-server 2.15.1 follows them:

* a message is *pending* from its first delivery until it is acknowledged, removed from the stream
  or the durable is deleted. Pending ones count against `max_ack_pending`, also while they wait out
  a delayed nak: with a limit of 1 a delayed nak keeps the lane closed;
* redeliveries go before new messages and do not need room under `max_ack_pending`, because they
  are counted already;
* ack, nak and progress are taken **by sequence**, whichever delivery they come from: a late
  acknowledgement by a former owner settles the message under the present one;
* an ack wait that runs out, or a plain nak, puts the message into the redelivery queue; progress
  after that is too late. A delayed nak takes it out of the queue again and replaces the ack wait;
* requests are served in turn, one message each;
* what is due when is written to disk ten times a second at most (`_about_to_change`), in whole
  seconds. A server that is killed goes on from what it wrote last: it may deliver again what it has
  forgotten to have delivered, and forget a delayed nak. One that is shut down has written
  everything. Either way ack waits and delays may end up to a second early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from shove_actors.messaging import matches

from ._faults import Effect
from ._stream import StoredMessage, Stream
from ._timers import Timers

if TYPE_CHECKING:
    from ._backend import MemoryBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableSettings:
    """`ack_wait_s` is seconds. `filter_subject` None reads the whole stream. `pin_timeout_s`: it
    delivers to one process at a time (`_pins.py`).
    """

    name: str
    filter_subject: str | None = None
    max_ack_pending: int = 1000
    ack_wait_s: float = 30.0
    pin_timeout_s: float | None = None


class Puller(Protocol):
    """Who asks a durable for messages."""

    def arrive(self, message: StoredMessage, num_delivered: int) -> None:
        """On the server's side of the link; must not call back into the durable."""
        ...

    @property
    def process(self) -> MemoryBackend | None:
        """For faults; None outside any."""
        ...


class PullRequest:
    """How many messages one puller still asks for."""

    __slots__ = ("puller", "queued", "wants")

    def __init__(self, puller: Puller) -> None:
        self.puller = puller
        self.wants = 0
        self.queued = False


#: The server lets this much time pass between two writes of one consumer's state.
WRITE_INTERVAL_S = 0.1


class _Pending:
    __slots__ = ("deadline", "delayed", "delivered", "queued")

    def __init__(self) -> None:
        self.delivered = 0
        self.deadline = float("inf")
        #: Waits out a delayed nak.
        self.delayed = False
        #: In the redelivery queue; no timer runs.
        self.queued = False


class Durable:
    """A pull consumer with explicit acknowledgement."""

    def __init__(
        self,
        stream: Stream,
        settings: DurableSettings,
        *,
        timers: Timers,
        touch: Callable[[Durable], None],
        on_deliver: Callable[[Puller], Effect | None],
    ) -> None:
        self.stream = stream
        self.settings = settings
        self.gone = False
        #: All of them, redeliveries included: each one's number.
        self.deliveries = 0
        #: Nothing was given away since the server was started: one that was killed may have
        #: forgotten what was.
        self.silent = True
        self.pending: dict[int, _Pending] = {}
        #: Never delivered yet.
        self.unread = 0
        self._unread: deque[int] = deque()
        self._last_read = 0
        self._redeliver: deque[int] = deque()
        self._requests: deque[PullRequest] = deque()
        self._timers = timers
        self._touch = touch
        self._on_deliver = on_deliver
        # What differs from what is on disk: how it was. None: it was not pending.
        self._unwritten: dict[int, tuple[int, float] | None] = {}
        self._written_read = 0
        self._written_at = float("-inf")
        for message in stream.messages.values():
            if self.wants(message.subject):
                self.announce(message.sequence)

    def __repr__(self) -> str:
        return (
            f"<Durable {self.settings.name} on {self.stream.settings.name}: "
            f"{self.unread} unread, {len(self.pending)} pending>"
        )

    @property
    def redelivered(self) -> int:
        return sum(1 for entry in self.pending.values() if entry.delivered > 1)

    def wants(self, subject: str) -> bool:
        pattern = self.settings.filter_subject
        return pattern is None or matches(pattern, subject)

    def still_needs(self, message: StoredMessage) -> bool:
        """Not acknowledged by this durable yet (interest retention asks)."""
        if not self.wants(message.subject):
            return False
        return message.sequence > self._last_read or message.sequence in self.pending

    def reconfigure(self, settings: DurableSettings) -> None:
        """Another ack wait holds from the next delivery on; leases that run are not cut.

        It is not shortened while somebody may be at work, whose leases are renewed at the pace of
        the longer one. The same on NATS (`nats/_durables.py`).
        """
        before = self.settings
        if before.ack_wait_s > settings.ack_wait_s and (self.pending or self._requests):
            settings = replace(
                settings,
                ack_wait_s=before.ack_wait_s,
                pin_timeout_s=settings.pin_timeout_s and before.pin_timeout_s,
            )
        self.settings = settings
        self._touch(self)

    def lengthen(self, ack_wait_s: float) -> None:
        """Somebody asks who goes by this lease. It was shortened while nobody was seen."""
        if self.settings.ack_wait_s < ack_wait_s:
            self.settings = replace(self.settings, ack_wait_s=ack_wait_s)

    # ------------------------------------------------------------- told by the stream

    def announce(self, sequence: int) -> None:
        self._unread.append(sequence)
        self.unread += 1
        self._touch(self)

    def removed(self, message: StoredMessage) -> None:
        if message.sequence > self._last_read:
            self.unread -= 1
        if self.pending.pop(message.sequence, None) is not None:
            self._touch(self)

    def close(self) -> None:
        self.gone = True
        self.pending.clear()
        self.unread = 0
        self._unread.clear()
        self._redeliver.clear()
        self._requests.clear()

    # ------------------------------------------------------------------------ settling

    def ack(self, sequence: int, now: float) -> None:
        if self.gone:
            return
        entry = self.pending.get(sequence)
        if entry is not None:
            self._about_to_change(sequence, entry, now)
            del self.pending[sequence]
        if sequence <= self._last_read:
            self.stream.settled(sequence)
        self._touch(self)

    def nak(self, sequence: int, delay_s: float | None, now: float) -> None:
        entry = self.pending.get(sequence)
        if entry is None:
            return
        if delay_s is not None and delay_s > 0:
            self._about_to_change(sequence, entry, now)
            entry.queued = False
            entry.delayed = True
            self._arm(sequence, entry, now + delay_s)
        elif not entry.queued:
            self._queue(sequence, entry)
        self._touch(self)

    def renew(self, sequence: int, now: float) -> bool:
        """Progress: the ack wait starts again. False: nothing to renew, or too late."""
        entry = self.pending.get(sequence)
        if entry is None or entry.queued:
            return False
        if entry.delayed:
            # The ack wait may end before the delay that everybody waits for.
            entry.delayed = False
            self._touch(self)
        self._about_to_change(sequence, entry, now)
        self._arm(sequence, entry, now + self.settings.ack_wait_s)
        return True

    # -------------------------------------------------------------------------- timers

    def due_at(self, sequence: int) -> float | None:
        entry = self.pending.get(sequence)
        return None if entry is None or entry.queued else entry.deadline

    def fire(self, sequence: int, now: float) -> None:
        self._queue(sequence, self.pending[sequence])
        self._touch(self)

    def _arm(self, sequence: int, entry: _Pending, deadline: float) -> None:
        entry.deadline = deadline
        self._timers.add(deadline, self, sequence)

    def _queue(self, sequence: int, entry: _Pending) -> None:
        entry.queued = True
        entry.delayed = False
        self._redeliver.append(sequence)

    # ------------------------------------------------------------------------- on disk

    def _about_to_change(self, sequence: int, entry: _Pending | None, now: float) -> None:
        """Remembers how it was, unless the change is on disk at once."""
        due = self._written_at + WRITE_INTERVAL_S
        if now >= due:
            if self._unwritten:
                self._unwritten.clear()
                self._written_at = due
                due += WRITE_INTERVAL_S
            if now >= due:
                self._written_at = now
                return
        unwritten = self._unwritten
        if not unwritten:
            self._written_read = self._last_read if entry is not None else sequence - 1
        if sequence not in unwritten:
            unwritten[sequence] = None if entry is None else (entry.delivered, entry.deadline)

    def restarted(
        self, *, killed: bool, now: float, whole_second: Callable[[float], float]
    ) -> None:
        """The server has read its disk again. Requests are gone with the connections."""
        if killed and self._unwritten and now < self._written_at + WRITE_INTERVAL_S:
            self._forget()
        self._unwritten.clear()
        self._written_at = float("-inf")
        self.silent = True
        self._redeliver.clear()
        for request in self._requests:
            request.wants, request.queued = 0, False
        self._requests.clear()
        # A message that is gone was settled, whatever was written of it here.
        stored = self.stream.messages
        for sequence in [s for s in self.pending if s not in stored]:
            del self.pending[sequence]
        for sequence, entry in self.pending.items():
            entry.queued = entry.delayed = False
            delivered_at = entry.deadline - self.settings.ack_wait_s
            self._arm(sequence, entry, whole_second(delivered_at) + self.settings.ack_wait_s)
        self._touch(self)

    def _forget(self) -> None:
        for sequence, was in self._unwritten.items():
            if was is None:
                self.pending.pop(sequence, None)
                continue
            entry = self.pending.setdefault(sequence, _Pending())
            entry.delivered, entry.deadline = was
        self.pending = dict(sorted(self.pending.items()))
        self._last_read = min(self._last_read, self._written_read)
        self._unread = deque(
            message.sequence
            for message in self.stream.messages.values()
            if message.sequence > self._last_read and self.wants(message.subject)
        )
        self.unread = len(self._unread)

    # ---------------------------------------------------------------------- delivering

    def pull(self, request: PullRequest, count: int) -> None:
        if self.gone:
            return
        request.wants += count
        if not request.queued and request.wants > 0:
            request.queued = True
            self._requests.append(request)
            self._touch(self)

    def reduce(self, request: PullRequest, count: int) -> None:
        request.wants = max(0, request.wants - count)

    def cancel(self, request: PullRequest) -> None:
        """The puller has left, or asks no more: nothing may be sent to it (PC-004)."""
        request.wants = 0

    def dispatch(self, now: float) -> None:
        """Serves waiting requests for as long as there is something to deliver."""
        while self._requests:
            request = self._requests[0]
            if request.wants <= 0:
                request.queued = False
                self._requests.popleft()
                continue
            message = self._next()
            if message is None:
                return
            self._requests.popleft()
            request.wants -= 1
            self.silent = False
            # To the end also with nothing left to ask for: a later turn takes it out.
            self._requests.append(request)
            entry = self.pending[message.sequence]
            self._about_to_change(message.sequence, entry if entry.delivered else None, now)
            entry.queued = entry.delayed = False
            self._arm(message.sequence, entry, now + self.settings.ack_wait_s)
            effect = self._on_deliver(request.puller)
            if effect is None:
                entry.delivered += 1
                self.deliveries += 1
                request.puller.arrive(message, entry.delivered)
                continue
            for _ in range(1 + effect.copies):
                entry.delivered += 1
                self.deliveries += 1
                if not effect.lost:
                    request.puller.arrive(message, entry.delivered)
            if effect.after is not None:
                effect.after()

    def _next(self) -> StoredMessage | None:
        while self._redeliver:
            sequence = self._redeliver.popleft()
            entry = self.pending.get(sequence)
            # Acknowledged, or given a delay, since it was queued.
            if entry is not None and entry.queued:
                return self.stream.messages[sequence]
        # -1 is unlimited, as on the server.
        if 0 <= self.settings.max_ack_pending <= len(self.pending):
            return None
        while self._unread:
            sequence = self._unread.popleft()
            message = self.stream.messages.get(sequence)
            self._last_read = sequence
            if message is not None:
                self.unread -= 1
                self.pending[sequence] = _Pending()
                return message
        return None
