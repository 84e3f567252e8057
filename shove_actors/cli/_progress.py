"""Where a run stands: counted from the journals, in passing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from shove_actors.actors import TreeNode

from ._journal import Dead, Ended, JournalReader, Published, Started, now

#: Rates are those of the last seconds.
_WINDOW_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Per second."""

    published: float = 0.0
    handled: float = 0.0
    dead: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One moment of a run, for the screen. `handled` are distinct flights that are settled."""

    total: int
    elapsed_s: float
    published: int
    handled: int
    dead: int
    calls: int
    rates: Rates
    tree: TreeNode | None
    workers: tuple[str, ...]
    done: bool


class Progress:
    """Follows the journals of one run."""

    def __init__(self, folder: Path, total: int) -> None:
        self.total = total
        self._reader = JournalReader(folder)
        self._published: set[int] = set()
        self._acknowledged: set[int] = set()
        self._dead: set[int] = set()
        self._rejected: set[int] = set()
        self._calls: dict[str, int] = {}
        self._running: dict[str, set[int]] = {}
        self._begun = now()
        #: Events read so far: a run that stands still reads no more.
        self.events = 0
        self._past: deque[tuple[float, int, int, int]] = deque()

    def begin(self) -> None:
        """The time counts from here."""
        self._begun = now()
        self._past.clear()

    def read(self) -> None:
        """Take in what has been written since the last time."""
        for who, event in self._reader.new_events():
            self.events += 1
            if isinstance(event, Published):
                self._published.add(event.row)
            elif isinstance(event, Started):
                self._calls[who] = self._calls.get(who, 0) + 1
                self._running.setdefault(who, set()).add(event.sequence)
            elif isinstance(event, Ended):
                self._running[who].discard(event.sequence)
                if event.outcome == "ack":
                    self._acknowledged.add(event.row)
                elif event.outcome == "reject":
                    self._rejected.add(event.row)
            elif isinstance(event, Dead):
                self._dead.add(event.row)
        at = self.elapsed_s
        self._past.append((at, self.published, self.handled, self.dead))
        while len(self._past) > 2 and self._past[1][0] < at - _WINDOW_S:
            self._past.popleft()

    @property
    def elapsed_s(self) -> float:
        return (now() - self._begun) / 1e9

    @property
    def published(self) -> int:
        return len(self._published)

    @property
    def handled(self) -> int:
        return len(self._acknowledged) + len(self._rejected)

    @property
    def dead(self) -> int:
        return len(self._dead)

    @property
    def done(self) -> bool:
        """Every flight was published, and acknowledged or seen among the dead letters."""
        return self.published >= self.total and len(self._acknowledged | self._dead) >= self.total

    def share(self) -> float:
        """From 0 to 1, counting publishing and handling alike."""
        return (self.published + self.handled) / (2 * self.total)

    def calls_of(self, who: str) -> int:
        return self._calls.get(who, 0)

    def running(self, who: str) -> int:
        """How many handlers have begun in that process and not ended."""
        return len(self._running.get(who, ()))

    def rates(self) -> Rates:
        if len(self._past) < 2:
            return Rates()
        (t0, p0, h0, d0), (t1, p1, h1, d1) = self._past[0], self._past[-1]
        span = max(t1 - t0, 1e-6)
        return Rates(published=(p1 - p0) / span, handled=(h1 - h0) / span, dead=(d1 - d0) / span)

    def snapshot(self, tree: TreeNode | None, workers: tuple[str, ...] = ()) -> Snapshot:
        return Snapshot(
            total=self.total,
            elapsed_s=self.elapsed_s,
            published=self.published,
            handled=self.handled,
            dead=self.dead,
            calls=sum(self._calls.values()),
            rates=self.rates(),
            tree=tree,
            workers=workers,
            done=self.done,
        )
