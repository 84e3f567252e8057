"""Durables that deliver to one process at a time, as nats-server 2.15.1 has them.

Rules
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

from ._durable import Durable, PullRequest

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
    """A durable whose settings have a `pin_timeout_s`."""

    pin: str | None = None
    _pin_until = float("-inf")

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
        self._last_read = self.floor
        self.deliveries = 0
        self.pending.clear()
        self._redeliver.clear()
        self._unwritten.clear()
        self._unread = deque(
            message.sequence
            for message in self.stream.messages.values()
            if message.sequence > self._last_read and self.wants(message.subject)
        )
        self.unread = len(self._unread)
        self._touch(self)

    def restarted(
        self, *, killed: bool, now: float, whole_second: Callable[[float], float]
    ) -> None:
        super().restarted(killed=killed, now=now, whole_second=whole_second)
        self.pin = None

    def dispatch(self, now: float) -> None:
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
