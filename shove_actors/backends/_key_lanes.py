"""Per-key order inside one shard: which delivery may be handled next.

Pure: no clock, no lane, no trio; the caller tells what came, what ended and what time it is.

    push ----> waiting, per key, in the order of the stream
    take ----> the head of a key that has nothing in flight; keys take turns
    settling -> it has ended, but the server may not know it yet: its key waits, its place is free
    done ----> the key goes on with its next one, or is forgotten
    again ---> the head stays the head, and its key (nobody else's) waits until it is due

Invariants
* A key has at most one item in flight, and items of one key are taken in the order they were
  pushed in. An item that waits for its next try is still its key's first.
* At most `max_in_flight` items are in flight. One that waits for its next try is not in flight:
  keys that fail take nobody's place.
* Keys take turns: one that has a thousand items waiting gets one place, then the others that are
  ready come first. Between two items of a key each other ready key is taken once at most.
* A key of which nothing is in hand is not in memory: `len(lanes.keys())` is never more than the
  number of items pushed and not done.

Tests: `tests/backends/test_key_lanes.py`, with a reference that is a list.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, KeysView
from typing import Generic, TypeVar

from shove_actors._errors import UsageError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class KeyLanes(Generic[K, T]):
    """See the module. `in_flight` counts what was taken and has not ended."""

    __slots__ = (
        "_count",
        "_delayed",
        "_in_flight",
        "_items",
        "_max",
        "_ready",
        "_settling",
        "_tickets",
    )

    def __init__(self, max_in_flight: int) -> None:
        if max_in_flight < 1:
            raise UsageError(f"max_in_flight={max_in_flight}: at least 1")
        self._max = max_in_flight
        #: By key; the first of each is in flight, ready, or waits for its next try.
        self._items: dict[K, deque[T]] = {}
        #: Keys whose first item may be taken.
        self._ready: deque[K] = deque()
        self._in_flight: set[K] = set()
        self._settling: set[K] = set()
        #: (due, ticket, key): tickets keep equal times in order, and keys need no order.
        self._delayed: list[tuple[float, int, K]] = []
        self._tickets = 0
        self._count = 0

    def __len__(self) -> int:
        """Items in hand, in flight or not."""
        return self._count

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        """Items that are neither in flight nor settling."""
        return self._count - len(self._in_flight) - len(self._settling)

    @property
    def startable(self) -> int:
        """How many `take` would give now, one after another."""
        return min(len(self._ready), self._max - len(self._in_flight))

    @property
    def next_due(self) -> float:
        """When the first of those that wait for their next try is ready again."""
        return self._delayed[0][0] if self._delayed else float("inf")

    def keys(self) -> KeysView[K]:
        return self._items.keys()

    def push(self, key: K, item: T) -> None:
        """The newest of its key."""
        self._count += 1
        items = self._items.get(key)
        if items is None:
            self._items[key] = deque((item,))
            self._ready.append(key)
        else:
            items.append(item)

    def take(self) -> T | None:
        """The next one to handle; it is in flight then. None: there is none at present."""
        if not self._ready or len(self._in_flight) >= self._max:
            return None
        key = self._ready.popleft()
        self._in_flight.add(key)
        return self._items[key][0]

    def settling(self, key: K) -> None:
        """What was in flight of this key has ended; the next one of it has to wait for `done`."""
        self._in_flight.remove(key)
        self._settling.add(key)

    def done(self, key: K) -> None:
        """What was in flight of this key, or settling, is settled or nobody's any more."""
        if key in self._settling:
            self._settling.remove(key)
        else:
            self._in_flight.remove(key)
        items = self._items[key]
        items.popleft()
        self._count -= 1
        if items:
            self._ready.append(key)
        else:
            del self._items[key]

    def again(self, key: K, due: float) -> None:
        """What was in flight of this key is to be tried again at `due`; its key waits with it."""
        self._in_flight.remove(key)
        self._tickets += 1
        heapq.heappush(self._delayed, (due, self._tickets, key))

    def replace(self, key: K, item: T) -> None:
        """What is in flight of this key is `item` now."""
        assert key in self._in_flight
        self._items[key][0] = item

    def ripen(self, now: float) -> int:
        """Those that are due by now are ready. How many there were."""
        count = 0
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.append(heapq.heappop(self._delayed)[2])
            count += 1
        return count

    def drop_waiting(self) -> list[T]:
        """Everything that waits, in the order of the keys' first arrival."""
        dropped: list[T] = []
        for key in list(self._items):
            items = self._items[key]
            if key in self._in_flight or key in self._settling:
                first = items.popleft()
                dropped.extend(items)
                items.clear()
                items.append(first)
            else:
                dropped.extend(items)
                del self._items[key]
        self._ready.clear()
        self._delayed.clear()
        self._count -= len(dropped)
        return dropped
