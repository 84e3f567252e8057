"""Back-pressure of publishing: at most `limit` messages unacknowledged, callers wait in order."""

from __future__ import annotations

import trio


class Window:
    """Counts what is under way. `take_nowait` first, `take` only when it is full.

    Cancel-safe: a cancelled `take` has taken nothing.
    """

    __slots__ = ("_lot", "limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._lot = trio.lowlevel.ParkingLot()

    def take_nowait(self) -> bool:
        """False when full, or when somebody waits already."""
        if self.taken < self.limit and not self._lot:
            self.taken += 1
            return True
        return False

    async def take(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.take_nowait():
            return
        # Whoever is unparked has been given the place already (`give_back` keeps `taken`); if it
        # is cancelled before it runs, `park` still returns, so the place is not lost.
        await self._lot.park()

    def give_back(self) -> None:
        if self._lot:
            self._lot.unpark()
        else:
            self.taken -= 1
