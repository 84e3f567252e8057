"""Per-key order inside one shard: which delivery may be handled next.

Pure: no clock, no lane, no trio; the caller tells what came, what ended and what time it is.

    push ----> waiting, per key, in the order of the stream
    take ----> the head of a key that has nothing in flight; keys take turns
    ended ---> it is settled, but the server may not know it: its place is free, its key unproven
    again ---> the head stays the head, and its key (nobody else's) waits until it is due
    drop ----> it is nobody's any more; its key goes on
    wind_down: keys that have something in flight are not started again; `go_on`: they are

Unproven: the next one of a key is given out once the server is known to have read how the one
before was settled. One answer proves all that was sent before its question, so most settles are
sent without one:

    fresh --ask()--> asked --answered()--> proven: the key goes on, or is forgotten
      |                |
      +----doubt()-----+-----> doubted --proven()--> the same, one by one
      ^                              |
      +-----------resent()-----------+

There is something to ask for (`wants_proof`) only when a key that is fresh has something waiting,
or when many are fresh: then they are forgotten, because nobody waits for them.

Invariants
* A key has at most one item in flight, and items of one key are taken in the order they were
  pushed in. An item that waits for its next try is still its key's first.
* A key with an unproven item has none in flight, and none is taken.
* At most `max_in_flight` items are in flight. One that waits for its next try is not in flight:
  keys that fail take nobody's place.
* Keys take turns: one that has a thousand items waiting gets one place, then the others that are
  ready come first. Between two items of a key each other ready key is taken once at most.
* A key of which nothing is in hand or unproven is not in memory: `len(lanes.keys())` is never more
  than the number of items pushed and not ended.

Tests: `tests/backends/test_key_lanes.py`, with a reference that is a list; with a server that loses
what was sent: `properties/test_keyed_machine.py`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterator, KeysView, Mapping, ValuesView
from typing import Final, Generic, TypeVar

from shove_actors._errors import UsageError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: So many settles that nobody waits for are sent before a question is asked for them.
UNPROVEN_MOST: Final = 128
#: What waits behind a key is a list up to so many: taking its first moves all others.
LIST_MOST: Final = 64


class KeyLanes(Generic[K, T]):
    """See the module. `in_flight` counts what was taken and has not ended."""

    __slots__ = (
        "_asked",
        "_barred",
        "_behind",
        "_blocked",
        "_count",
        "_delayed",
        "_doubted",
        "_first",
        "_fresh",
        "_in_flight",
        "_max",
        "_ready",
        "_stopped",
        "_tickets",
        "urgent",
    )

    def __init__(self, max_in_flight: int) -> None:
        if max_in_flight < 1:
            raise UsageError(f"max_in_flight={max_in_flight}: at least 1")
        self._max = max_in_flight
        #: By key: in flight, ready, or waiting for its next try, or for a proof.
        self._first: dict[K, T] = {}
        #: What waits behind it; not there if nothing does, as is the rule with many keys.
        #: Lists while they are short: a deque takes 600 bytes, and longer to make than to use.
        self._behind: dict[K, list[T] | deque[T]] = {}
        #: Keys whose first item may be taken.
        self._ready: deque[K] = deque()
        self._in_flight: set[K] = set()
        #: Keys that are not started any more, and those of them that were ready since.
        self._barred: frozenset[K] = frozenset()
        self._stopped: list[K] = []
        #: Unproven, by key: not asked for, asked for, and to be looked for one by one.
        self._fresh: dict[K, T] = {}
        self._asked: dict[K, T] = {}
        self._doubted: dict[K, T] = {}
        #: Keys that have items, and wait for a proof and nothing else.
        self._blocked: dict[K, None] = {}
        #: One of them is fresh: somebody waits for a question to be asked.
        self.urgent = False
        #: (due, ticket, key): tickets keep equal times in order, and keys need no order.
        self._delayed: list[tuple[float, int, K]] = []
        self._tickets = 0
        self._count = 0

    def __len__(self) -> int:
        """Items in hand: pushed and not ended, in flight or not."""
        return self._count

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def ahead(self) -> int:
        """How many are in flight, or wait for nothing but a place."""
        return len(self._in_flight) + len(self._ready)

    @property
    def waiting(self) -> int:
        """Items that are not in flight."""
        return self._count - len(self._in_flight)

    @property
    def startable(self) -> int:
        """How many `take` would give now, one after another."""
        return min(len(self._ready), self._max - len(self._in_flight))

    @property
    def next_due(self) -> float:
        """When the first of those that wait for their next try is ready again."""
        return self._delayed[0][0] if self._delayed else float("inf")

    def keys(self) -> KeysView[K]:
        return self._first.keys()

    def push(self, key: K, item: T) -> None:
        """The newest of its key."""
        self._count += 1
        if key in self._first:
            behind = self._behind.get(key)
            if behind is not None:
                behind.append(item)
                if len(behind) == LIST_MOST and isinstance(behind, list):
                    self._behind[key] = deque(behind)
            else:
                self._behind[key] = [item]
            return
        self._first[key] = item
        if key in self._fresh:
            self.urgent = True
        elif key not in self._asked and key not in self._doubted:
            if key in self._barred:
                self._stopped.append(key)
            else:
                self._ready.append(key)
            return
        self._blocked[key] = None

    def push_later(self, key: K, item: T, due: float) -> None:
        """The same, of one that was tried before, and is not to be again before `due`."""
        if key in self._first or key in self._fresh or key in self._asked or key in self._doubted:
            self.push(key, item)
            return
        self._count += 1
        self._first[key] = item
        self._later(key, due)

    def take(self) -> T | None:
        """The next one to handle; it is in flight then. None: there is none at present."""
        if not self._ready or len(self._in_flight) >= self._max:
            return None
        key = self._ready.popleft()
        self._in_flight.add(key)
        return self._first[key]

    def ended(self, key: K) -> None:
        """What was in flight of this key is settled, and the server may not know it."""
        self._in_flight.remove(key)
        self._count -= 1
        if key not in self._behind:  # as is the rule with many keys
            self._fresh[key] = self._first.pop(key)
            return
        self._fresh[key] = self._first[key]
        self._next_of(key)
        self._blocked[key] = None
        self.urgent = True

    def drop(self, key: K) -> None:
        """What was in flight of this key is nobody's any more."""
        self._in_flight.remove(key)
        self._count -= 1
        if self._next_of(key):
            self._is_ready(key)

    def _is_ready(self, key: K) -> None:
        if key in self._barred:
            self._stopped.append(key)
        else:
            self._ready.append(key)

    def _next_of(self, key: K) -> bool:
        """Its first has gone. Whether there is another one."""
        if key not in self._behind:
            del self._first[key]
            return False
        behind = self._behind[key]
        self._first[key] = behind.pop(0) if isinstance(behind, list) else behind.popleft()
        if not behind:
            del self._behind[key]
        return True

    def again(self, key: K, due: float) -> None:
        """What was in flight of this key is to be tried again at `due`; its key waits with it."""
        self._in_flight.remove(key)
        self._later(key, due)

    def _later(self, key: K, due: float) -> None:
        self._tickets += 1
        heapq.heappush(self._delayed, (due, self._tickets, key))

    def replace(self, key: K, item: T) -> None:
        """What is in flight of this key is `item` now."""
        assert key in self._in_flight
        self._first[key] = item

    def later(self) -> Iterator[tuple[T, float]]:
        """What waits for its next try, and until when."""
        return ((self._first[key], due) for due, _, key in self._delayed)

    def ripen(self, now: float) -> int:
        """Those that are due by now are ready. How many there were."""
        count = 0
        while self._delayed and self._delayed[0][0] <= now:
            self._is_ready(heapq.heappop(self._delayed)[2])
            count += 1
        return count

    def wind_down(self) -> None:
        """Keys that have something in flight now are not started again; all others are."""
        self._barred = frozenset(self._in_flight)

    def goes_on(self, key: K) -> None:
        """This one is started again, too. Nothing of it has ended since `wind_down`."""
        self._barred -= {key}

    def go_on(self) -> None:
        """All are started again."""
        self._barred = frozenset()
        self._ready.extend(self._stopped)
        self._stopped.clear()

    # ------------------------------------------------------------------ what the server has read

    @property
    def unproven(self) -> int:
        return len(self._fresh) + len(self._asked) + len(self._doubted)

    @property
    def fresh(self) -> int:
        return len(self._fresh)

    @property
    def asking(self) -> bool:
        """A question is on its way, and believed in."""
        return bool(self._asked)

    @property
    def asked(self) -> ValuesView[T]:
        """What the question is about."""
        return self._asked.values()

    @property
    def doubted(self) -> Mapping[K, T]:
        """Those for which no answer will do."""
        return self._doubted

    @property
    def wants_proof(self) -> bool:
        """Whether to ask now."""
        return (self.urgent or len(self._fresh) >= UNPROVEN_MOST) and not self._asked

    def ask(self) -> ValuesView[T]:
        """A question is sent, behind everything that is fresh: what it is about."""
        assert not self._asked
        self._asked, self._fresh = self._fresh, {}
        self.urgent = False
        return self._asked.values()

    def answered(self) -> None:
        """The question was answered."""
        asked, self._asked = self._asked, {}
        if self._blocked:
            for key in [key for key in self._blocked if key in asked]:
                del self._blocked[key]
                self._is_ready(key)

    def doubt(self) -> None:
        """What was sent so far may not have been read, whatever is answered from now on."""
        self._doubted.update(self._asked)
        self._doubted.update(self._fresh)
        self._asked, self._fresh = {}, {}
        self.urgent = False

    def resent(self, match: Callable[[T], bool]) -> None:
        """One that may be unproven had not been read, and was settled once more just now.

        If the question is about it, there will be no answer: another one has to be asked.
        """
        if any(map(match, self._asked.values())):
            back, self._asked = self._asked, {}
        else:
            back = {key: item for key, item in self._doubted.items() if match(item)}
            for key in back:
                del self._doubted[key]
        self._fresh.update(back)
        self.urgent = self.urgent or any(key in self._blocked for key in back)

    def proven(self, key: K) -> None:
        """A doubted one was read."""
        del self._doubted[key]
        if key in self._blocked:
            del self._blocked[key]
            self._is_ready(key)

    # ------------------------------------------------------------------ all at once

    def drop_waiting(self) -> list[T]:
        """Everything that waits, in the order of the keys' first arrival."""
        dropped: list[T] = []
        for key in list(self._first):
            if key not in self._in_flight:
                dropped.append(self._first.pop(key))
            dropped.extend(self._behind.pop(key, ()))
        self._ready.clear()
        self._stopped.clear()
        self._delayed.clear()
        self._blocked.clear()
        self.urgent = False
        self._count -= len(dropped)
        return dropped
