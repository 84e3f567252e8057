"""How many handlers at once: as many as allowed, but no more than the event loop can serve.

A concurrent consumer starts another handler whenever one waits and messages are there. If handlers
wait for something slow, that is right at once and up to the limit. If the event loop is the
bottleneck, more of them only cost more: each sleeping task is one more timer, one more wake-up, one
more coroutine out of the cache (measured: a quarter of the CPU per message, 1280 against 128).

The sign of a busy loop is the time between waking a worker and its running. Above `BUSY_S` growing
pauses for `PAUSE_S`; then the consumer that has wanted to grow for longest may, and so on. Workers
that finish go on with the next message in any case, so a pause costs nothing but growth, and growth
never stops for good (`tests/runtime/test_pacer.py`). In virtual time nothing is ever late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from shove_actors.backends import BUSY_S, PAUSE_S, Lane

#: Starts or wakes one more worker of one consumer.
Grow = Callable[[], None]

__all__ = ["BUSY_S", "PAUSE_S", "Grow", "Pacer"]

_NEVER: Final = float("-inf")


class Pacer:
    """One registration's. `run` is part of an actor; without it a pause would not end."""

    __slots__ = ("_busy_until", "_parked", "_wanting")

    def __init__(self) -> None:
        self._busy_until = _NEVER
        self._wanting: dict[Grow, None] = {}
        self._parked: trio.lowlevel.Task | None = None

    def started(self, asked_at: float) -> None:
        """A new worker runs for the first time."""
        now = trio.current_time()
        if now - asked_at > BUSY_S:
            self._busy_until = now + PAUSE_S

    def busy(self, lane: Lane) -> bool:
        return trio.current_time() < max(self._busy_until, lane.busy_until)

    def later(self, grow: Grow) -> None:
        """Ask again when the pause is over."""
        self._wanting[grow] = None
        if self._parked is not None:
            task, self._parked = self._parked, None
            trio.lowlevel.reschedule(task)

    async def run(self) -> None:
        """Ends pauses."""
        while True:
            if not self._wanting:
                self._parked = trio.lowlevel.current_task()

                def abort(_: object) -> trio.lowlevel.Abort:
                    self._parked = None
                    return trio.lowlevel.Abort.SUCCEEDED

                await trio.lowlevel.wait_task_rescheduled(abort)
            await trio.sleep(PAUSE_S)
            # One consumer per pause, in turn: all of them together would not be a pause.
            grow = next(iter(self._wanting))
            del self._wanting[grow]
            grow()
