"""The connection's subscriptions: which sink hears what, through every reconnect.

A sink runs inside the socket's callback: it never waits and never raises. It appends to a buffer
and wakes a task, nothing else. `deliver` is called once per message, straight from the split of
the byte stream; it must stay a dictionary look-up and a call.

Numbers are never used again: what the server had sent for a subscription that has ended finds
nobody, also after a reconnect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shove_actors._log import about

from ._wire import sub

logger = logging.getLogger("shove_actors.jetstream")

#: subject, reply, header block, payload
Sink = Callable[[bytes, bytes, "bytes | None", bytes], None]


class Subscriptions:
    """Subjects and sinks by subscription number. `on_failure` hears of a sink that raised."""

    __slots__ = ("_next_sid", "_on_failure", "_sinks")

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure
        self._sinks: dict[int, tuple[bytes, Sink, bytes]] = {}
        self._next_sid = 1

    def __len__(self) -> int:
        return len(self._sinks)

    def __contains__(self, sid: int) -> bool:
        return sid in self._sinks

    def numbers(self) -> list[int]:
        return list(self._sinks)

    def add(self, subject: bytes, sink: Sink, queue: bytes = b"") -> int:
        sid = self._next_sid
        self._next_sid += 1
        self._sinks[sid] = (subject, sink, queue)
        return sid

    def remove(self, sid: int) -> None:
        self._sinks.pop(sid, None)

    def move(self, sid: int, subject: bytes) -> None:
        """Another subject for the same sink, from the next `replay` on."""
        entry = self._sinks.get(sid)
        if entry is not None:
            self._sinks[sid] = (subject, entry[1], entry[2])

    def redirect(self, sid: int, sink: Sink) -> None:
        """Another sink for the same subscription, from the next message on."""
        entry = self._sinks.get(sid)
        if entry is not None:
            self._sinks[sid] = (entry[0], sink, entry[2])

    def replay(self) -> bytes:
        """What tells a new server of all of them."""
        return b"".join(
            sub(subject, sid, queue) for sid, (subject, _, queue) in self._sinks.items()
        )

    def deliver(
        self,
        subject: bytes,
        sid: int,
        reply: bytes,
        header_block: bytes | None,
        payload: bytes,
    ) -> None:
        entry = self._sinks.get(sid)
        if entry is None:
            return
        try:
            entry[1](subject, reply, header_block, payload)
        except Exception as exc:
            # A sink must not raise; one that does is our bug, and must not stop the ingress.
            logger.exception("a subscription's sink failed", extra=about("sink_failed"))
            self._on_failure(exc)
