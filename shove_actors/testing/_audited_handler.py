"""What is recorded of whatever `register` takes: also of a handler with audits around it.

`register` puts audits around a handler itself, when it knows the topic's consumer. A recorder is
outside of them, because a handler has ended when its record is written and not before; so it puts
them around the handler first.
"""

from __future__ import annotations

import time
from typing import Any

import trio
import trio.testing

from shove_actors.backends.memory._timers import DEFAULT_EPOCH_NS
from shove_actors.messaging import Topic
from shove_actors.runtime._audit import Audited, audits_of, resolve_audited
from shove_actors.runtime._handler import Resolved
from shove_actors.runtime._observer import TopicObserver


def resolve_handler(handler: object, topic: Topic[Any]) -> Resolved:
    """As `register` resolves it. Raises `HandlerError` naming what is wrong with it.

    A sink that has something to prepare does so before the first message, not before the group
    starts. The dates of audit records are this machine's; in virtual time, those of a server in
    memory that began when its clock did.
    """
    audits = audits_of(handler)
    resolved = resolve_audited(handler, _Job(topic))
    if not any(hasattr(audit.sink, "prepare") for audit in audits):
        return resolved
    return _Prepared(resolved, audits).resolved()


class _Job:
    """What an audit asks of the consumer that it is part of."""

    observer: TopicObserver | None = None

    def __init__(self, topic: Topic[Any]) -> None:
        self.topic = topic

    def now_ns(self) -> int:
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, trio.testing.MockClock):
            return DEFAULT_EPOCH_NS + round(clock.current_time() * 1e9)
        return time.time_ns()


class _Prepared:
    """Lets the sinks get ready first."""

    def __init__(self, inner: Resolved, audits: list[Audited]) -> None:
        self._inner = inner
        self._audits = audits
        self._lock = trio.Lock()

    def resolved(self) -> Resolved:
        inner = self._inner
        return Resolved(self._call, wants_metadata=True, in_thread=inner.in_thread, name=inner.name)

    async def _call(self, message: Any, metadata: Any, context: Any) -> Any:
        if self._audits:
            async with self._lock:
                while self._audits:
                    await self._audits[-1].prepare()
                    self._audits.pop()
        return await self._inner.call(message, metadata, context)
