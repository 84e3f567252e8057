"""What waits between a socket's callback and the tasks that read.

Cancelling loses nothing (`test_c33_*`): an item leaves the buffer in the same step in which
`receive` returns it, and a reader that was chosen and cancelled in one pass still returns.
Each read looks for a cancellation; every `STREAK` reads without a wait other tasks get their turn,
because a full checkpoint per message would cost as much as the message.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import trio

from shove_actors._errors import IteratorClosed

#: Reads in a row without a wait before other tasks get a turn.
STREAK = 32

T = TypeVar("T")


class Inlet(Generic[T]):
    """A buffer without a limit: what may come is limited by what was asked for."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._streak = 0
        self._waiters = 0
        self._ended: Exception | None = None
        self._once: Exception | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._lot:
            self._lot.unpark()

    def take_nowait(self) -> T:
        if not self._items:
            self._raise_ended()
            raise trio.WouldBlock
        return self._items.popleft()

    async def take(self) -> T:
        """The next item; raises what the buffer was finished with once it is empty."""
        items = self._items
        self._streak += 1
        if items and self._streak >= STREAK:
            self._streak = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        while not items:
            self._raise_ended()
            self._streak = 0
            if not self._waiters:
                self.wait_begins(trio.current_time())
            self._waiters += 1
            try:
                await self._lot.park()
            finally:
                self._waiters -= 1
                if not self._waiters:
                    self.wait_ends()
        return items.popleft()

    def _raise_ended(self) -> None:
        once, self._once = self._once, None
        if once is not None:
            raise once
        if self._ended is not None:
            raise self._ended.with_traceback(None)

    def finish(self, error: Exception) -> None:
        """Nothing more will come. The first call counts, but for `IteratorClosed`."""
        if self._ended is None or isinstance(error, IteratorClosed):
            self._ended = error
            self._lot.unpark_all()

    def raise_once(self, error: Exception) -> None:
        """The next read that has to wait raises it; those after it go on."""
        self._once = error
        self._lot.unpark_all()

    def wait_begins(self, now: float) -> None:
        """The first reader begins to wait. For those who derive."""

    def wait_ends(self) -> None:
        """The last reader waits no longer. For those who derive."""
