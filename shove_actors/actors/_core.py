"""What all parts of one actor system share: the hard stop, listeners, names, late errors.

The hard stop is an event, not a cancellation. An ordered stop is shielded at every level, so a
cancellation from above would not shorten anybody's grace (measured: 61 s instead of 2 s). Every
wait for a grace therefore watches this event too.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from ._lifecycle import Listeners
from ._registry import Registry

if TYPE_CHECKING:
    from ._system import ActorSystem


class HardStop:
    """System-wide "no more grace anywhere"."""

    def __init__(self) -> None:
        self.is_set = False
        self._waits: set[trio.CancelScope] = set()

    def set(self) -> None:
        """End every grace that is being waited for, now and from now on. Idempotent."""
        self.is_set = True
        for scope in tuple(self._waits):
            scope.cancel()

    @contextmanager
    def grace(self, deadline: float) -> Iterator[None]:
        """A wait that ends at `deadline` or at the hard stop, whichever comes first."""
        with trio.CancelScope(deadline=deadline) as scope:
            if self.is_set:
                scope.cancel()
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)


@dataclass(frozen=True, kw_only=True)
class LateError:
    """A child's crash while the tree was being stopped. It changes no decision."""

    path: str
    error: Exception


LATE_ERRORS_KEPT = 100
"""Each holds a traceback, and with it what its frames held."""


class Core:
    """State shared by all supervisors of one system. Private."""

    def __init__(self, system: ActorSystem, rng: random.Random) -> None:
        self.system = system
        self.rng = rng
        self.hard = HardStop()
        self.listeners = Listeners()
        self.registry = Registry()
        # A system runs for months: what only grows is bounded, or forgotten with its slot.
        self.late_errors: deque[LateError] = deque(maxlen=LATE_ERRORS_KEPT)
        self.late_errors_dropped = 0
        self.killed: dict[str, None] = {}
        self.dead_letters = 0
        self.messages_lost = 0

    def note_late(self, path: str, error: Exception) -> None:
        """Keep a crash for the report; the oldest makes room, and is counted."""
        if len(self.late_errors) == LATE_ERRORS_KEPT:
            self.late_errors_dropped += 1
        self.late_errors.append(LateError(path=path, error=error))
