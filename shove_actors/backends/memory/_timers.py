"""The server's clock, and everything on it that is due one day.

There is one heap for the whole server and no task per message. An entry is never removed when its
reason goes away; its owner is asked instead (`due_at`), and an entry that no longer agrees is
dropped when it reaches the top. So acknowledging a message costs nothing here, renewing a lease
costs one push, and `next_due` never names a moment at which nothing would happen: under an
auto-jumping clock a server with nothing to do leaves time alone
(`test_idle_server_leaves_the_clock_alone`).
"""

from __future__ import annotations

import heapq
from typing import Protocol

import trio

# 2026-01-01T00:00:00Z: dates that look like dates, and the same ones in every run.
DEFAULT_EPOCH_NS = 1_767_225_600 * 1_000_000_000


class ServerClock:
    """Trio's clock of the run in which the server was first used.

    A server outlives its backends and may outlive a `trio.run`, whose clock starts anywhere. The
    time of the next run continues where the last one was seen, so it never goes back. In the
    first run nothing is added and nothing rounded: a deadline is reached exactly.
    """

    __slots__ = ("_epoch_ns", "_last", "_now", "_shift", "_start", "_token")

    def __init__(self, epoch_ns: int) -> None:
        self._epoch_ns = epoch_ns
        self._last = 0.0
        self._start = 0.0
        self._shift = 0.0
        self._token: trio.lowlevel.TrioToken | None = None
        #: Of that run's clock: asked several times for each delivery.
        self._now = trio.current_time

    def now(self) -> float:
        token = trio.lowlevel.current_trio_token()
        if token is self._token:
            time = self._now()
        else:
            self._now = trio.lowlevel.current_clock().current_time
            time = self._now()
            if self._token is None:
                self._start = time
            else:
                self._shift = self._last - time
            self._token = token
        self._last = time + self._shift
        return self._last

    def now_ns(self) -> int:
        return self.date_ns(self.now())

    def date_ns(self, moment: float) -> int:
        """The date of a moment of this clock."""
        return self._epoch_ns + round((moment - self._start) * 1e9)

    def whole_second(self, moment: float) -> float:
        """The last full second of the date: all that the server writes down of a delivery."""
        since = moment - self._start + self._epoch_ns % 1_000_000_000 / 1e9
        return moment - since % 1.0

    @property
    def slack(self) -> float:
        """How early something may happen in a later run, where moments are rounded.

        Without it a task could wake for a deadline that its rounded clock never quite reaches,
        and under a clock that stands still it would do so for ever.
        """
        return 1e-6 if self._shift else 0.0

    def in_trio(self, moment: float) -> float:
        """A moment of this clock as Trio time of the current run."""
        return moment - self._shift


class TimerOwner(Protocol):
    """Whoever has deadlines, one per stream sequence."""

    def due_at(self, sequence: int) -> float | None:
        """The one deadline that holds now; an entry that says otherwise is stale."""
        ...

    def fire(self, sequence: int, now: float) -> None: ...


class Timers:
    """Deadlines of all streams and durables, earliest first, then by sequence."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, TimerOwner]] = []
        self._count = 0

    def add(self, deadline: float, owner: TimerOwner, sequence: int) -> None:
        # The count only keeps the comparison from ever reaching the owner.
        self._count += 1
        heapq.heappush(self._heap, (deadline, sequence, self._count, owner))

    def next_due(self) -> float:
        """When something will really happen; infinity when nothing will."""
        while self._heap:
            deadline, sequence, _, owner = self._heap[0]
            if owner.due_at(sequence) == deadline:
                return deadline
            heapq.heappop(self._heap)
        return float("inf")

    def fire_due(self, now: float) -> None:
        while self.next_due() <= now:
            _, sequence, _, owner = heapq.heappop(self._heap)
            owner.fire(sequence, now)
