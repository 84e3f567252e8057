"""The end of a simulation: nothing is made to go wrong any more, and how long to wait for what.

Two things would make it wait for the wrong time. What is delayed (a retry with a delay of its own,
in place or in a hold queue) is not overdue before that delay is over: the server knows it. And a
handler that puts a message off each time never ends: that is its failure, and is told as such.
"""

from __future__ import annotations

import math
from collections import Counter

from shove_actors.backends.memory import MemoryServer

from ._history import Event, History

#: How often a message may be begun in the quiet end, besides its retries.
BEGUN_MOST = 500


class QuietEnd:
    """What is stored of a topic in these streams, in the quiet end."""

    def __init__(self, history: History, server: MemoryServer, streams: list[str]) -> None:
        self._history = history
        self._server = server
        self._streams = streams
        self._read = len(history)
        self._begun: Counter[str] = Counter()
        self._last: dict[str, Event] = {}

    def due(self) -> float | None:
        """When the first message that waits out a delay may be delivered again; server time."""
        first = math.inf
        for name in self._streams:
            stream = self._server.streams.get(name)
            for durable in stream.durables.values() if stream is not None else ():
                for entry in durable.pending.values():
                    if entry.delayed:
                        first = min(first, entry.deadline)
        return first if first < math.inf else None

    def check_begun(self, most: int) -> None:
        """Raises `AssertionError` for a message that was begun more than `most` times."""
        for event in self._history[self._read :]:
            if event.kind == "started":
                self._begun[event.id] += 1
            elif event.kind == "ended":
                self._last[event.id] = event
        self._read = len(self._history)
        for id_, times in self._begun.items():
            if times > most:
                last = self._last.get(id_)
                answer = f", and was answered with {last.outcome} last" if last is not None else ""
                raise AssertionError(
                    f"message {id_} never comes to an end: its handler was called {times} times "
                    f"since nothing goes wrong any more{answer}. What is put off (DEFER) has no "
                    "budget, so whether it ends is the handler's to see to"
                )
