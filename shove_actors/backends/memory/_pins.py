"""Durables that may deliver to one process at a time, as nats-server 2.15.1 has them.

Whether one does is a setting (`pin_timeout_s`), and may be changed in place.

Rules of one that does
* The first request that names no pin, while nobody is pinned and there is something to deliver,
  pins its sender under a name that was never used before.
* A request that names the pin keeps it for the time-out; deliveries do not. Nothing else ends it
  but the time-out, somebody who says so, a rewind of nothing, or a restart of the server: also not
  the end of its holder's connection.
* A request that names another pin is refused: at once while somebody is pinned, else when somebody
  is about to be.
* A rewind makes everything deliverable again that was not settled, in order, and counts deliveries
  from 1; it keeps the pin. A settle of something that was not delivered since is ignored.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Protocol

from shove_actors.backends._other_kind import still_keyed

from ._durable import Durable, DurableSettings, PullRequest

_numbers = itertools.count(1)
#: Among the deadlines of a durable, which are by sequence: that of its pin.
_PIN = 0


class PinnedPuller(Protocol):
    """Who sends requests with pins."""

    def refused(self) -> None:
        """On the server's side of the link."""
        ...


class PinnedRequest(PullRequest):
    """One request, for `wants` messages, until `until`."""

    __slots__ = ("pin", "until")

    def __init__(self, puller: object, wants: int, pin: str | None, until: float) -> None:
        super().__init__(puller)  # type: ignore[arg-type]
        self.wants = wants
        self.pin = pin
        self.until = until


class PinnedDurable(Durable):
    """A durable; pinned while its settings have a `pin_timeout_s`."""

    pin: str | None = None
    #: Somebody was written down as its owner, once. A server has the age of the bucket for that.
    owned = False
    _pin_until = float("-inf")

    @property
    def _pins(self) -> bool:
        return self.settings.pin_timeout_s is not None

    def reconfigure(self, settings: DurableSettings) -> None:
        pinned_before = self._pins
        waits = any(request.wants > 0 for request in self._requests)
        if pinned_before and settings.pin_timeout_s is None and (waits or self.pin is not None):
            raise still_keyed(self.stream.settings.name, settings.name)
        super().reconfigure(settings)
        if self._pins != pinned_before:
            # Requests of the one kind say nothing to the other.
            self.pin = None
            for request in self._requests:
                request.wants, request.queued = 0, False
            self._requests.clear()

    def wants(self, subject: str) -> bool:
        pattern = self.settings.filter_subject
        if pattern is None or "*" in pattern or ">" in pattern:
            return super().wants(subject)
        return subject == pattern  # asked of every stored message when it is created

    @property
    def floor(self) -> int:
        """Up to there everything is settled."""
        return min(self.pending, default=self._last_read + 1) - 1

    @property
    def last_read(self) -> int:
        return self._last_read

    def ask(self, request: PinnedRequest, now: float) -> None:
        if self.gone:
            return
        if request.pin is not None:
            if request.pin == self.pin:
                self._keep(now)
            elif self.pin is not None:
                self._refuse(request)
                return
        request.queued = True
        self._requests.append(request)
        self._touch(self)

    def forget_requests(self, puller: object) -> None:
        """It listens no more."""
        for request in self._requests:
            if request.puller is puller:
                request.wants = 0

    def unpin(self) -> None:
        self.pin = None
        self._touch(self)

    def rewind(self) -> None:
        floor, stored = self.floor, self.stream.messages
        # Only what was read: all that comes after it is unread as it is, and may be very much.
        again = [
            sequence
            for sequence in range(floor + 1, self._last_read + 1)
            if sequence in stored and self.wants(stored[sequence].subject)
        ]
        self._last_read = floor
        self.deliveries = 0
        self.pending.clear()
        self._redeliver.clear()
        self._unwritten.clear()
        self._unread.extendleft(reversed(again))
        self.unread += len(again)
        self._touch(self)

    def restarted(
        self, *, killed: bool, now: float, whole_second: Callable[[float], float]
    ) -> None:
        super().restarted(killed=killed, now=now, whole_second=whole_second)
        self.pin = None

    def dispatch(self, now: float) -> None:
        if not self._pins:
            super().dispatch(now)
            return
        self._requests = deque(r for r in self._requests if r.wants > 0 and self._open(r, now))
        if not self._requests or not self._deliverable():
            return
        if self.pin is None:
            for request in list(self._requests):
                assert isinstance(request, PinnedRequest)
                if request.pin is not None:
                    self._requests.remove(request)
                    self._refuse(request)
                elif self.pin is None:
                    self.pin = request.pin = f"pin-{next(_numbers)}"
                    self._keep(now)
        if self.pin is None:
            return
        # The others stay where they are, in their order.
        everybody = self._requests
        self._requests = deque(
            r for r in everybody if isinstance(r, PinnedRequest) and r.pin == self.pin
        )
        super().dispatch(now)
        self._requests = deque(r for r in everybody if r.wants > 0)

    def _open(self, request: PullRequest, now: float) -> bool:
        return isinstance(request, PinnedRequest) and request.until > now

    def _deliverable(self) -> bool:
        if any(s in self.pending and self.pending[s].queued for s in self._redeliver):
            return True
        if 0 <= self.settings.max_ack_pending <= len(self.pending):
            return False
        return any(s in self.stream.messages for s in self._unread)

    def _keep(self, now: float) -> None:
        assert self.settings.pin_timeout_s is not None
        self._pin_until = now + self.settings.pin_timeout_s
        self._timers.add(self._pin_until, self, _PIN)

    def _refuse(self, request: PinnedRequest) -> None:
        request.wants = 0
        request.puller.refused()  # type: ignore[attr-defined]

    def due_at(self, sequence: int) -> float | None:
        if sequence == _PIN:
            return self._pin_until if self.pin is not None else None
        return super().due_at(sequence)

    def fire(self, sequence: int, now: float) -> None:
        if sequence == _PIN:
            self.unpin()
        else:
            super().fire(sequence, now)
