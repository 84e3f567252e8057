"""The state of a running process: for its own view, and for whoever asks it over NATS.

Asking: a message on `SUBJECT` with a reply subject, in the account of the process. Each process
that was started with `run --answer` replies with one JSON object. Nothing listens unless it was
asked to, and an answer holds no payloads and no error texts: names, states, numbers.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from shove_actors.backends.nats._backend import NatsBackend

from ._render import tree_state
from ._resources import resident_bytes
from ._running import Running
from ._watching import Watching

SUBJECT: Final = "shove_actors.top"
#: An answer keeps so many bytes below the server's limit.
ROOM: Final = 4096


class Process:
    """One running application, as `state` describes it."""

    def __init__(self, running: Running) -> None:
        assert running.broker is not None
        self._running = running
        self._broker = running.broker
        self._began = trio.current_time()
        self.watching = Watching.install(running.broker)

    def state(self) -> dict[str, Any]:
        """JSON: what it is, its connection, its topics, its tree."""
        running, broker, now = self._running, self._broker, trio.current_time()
        statistics: dict[str, dict[str, int]] = {}
        scale: dict[str, dict[str, int]] = {}
        for group in running.groups:
            statistics |= group.statistics()
            scale |= group.scale()
        topics = []
        for name, watch in self.watching.topics.items():
            topics.append(
                {
                    "queue": name,
                    "consumers": scale.get(name, {}).get("consumers", 0),
                    "busy": watch.busy(),
                    "attempts": watch.attempts,
                    "outcomes": statistics.get(name, {}),
                    "dead": dict(watch.dead),
                    "latency": watch.latency(),
                }
            )
        return {
            "target": running.app.target,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "uptime": round(now - self._began, 3),
            "cpu_seconds": round(time.process_time(), 3),
            "memory_bytes": resident_bytes(),
            "stopping": running.stop.is_set(),
            "connection": self._connection(),
            "topics": topics,
            "scaling": [
                {"ago": round(now - at, 1), "queue": queue, "before": before, "after": after}
                for at, queue, before, after in self.watching.decisions
            ],
            "troubles": dict(self.watching.troubles),
            "tree": tree_state(broker.snapshot()),
        }

    def _connection(self) -> dict[str, Any]:
        backend = self._broker.backend
        found: dict[str, Any] = {
            "backend": backend.capabilities.name,
            "connected": backend.connected,
        }
        if isinstance(backend, NatsBackend):
            found["server"] = backend.connection.server
            found["reconnects"] = backend.connection.reconnects
        return found

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answers on `SUBJECT` for the length of the block; in memory there is nobody to ask."""
        backend = self._broker.backend
        if not isinstance(backend, NatsBackend):
            yield
            return
        connection = backend.connection

        def asked(subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes) -> None:
            if reply:
                connection.publish(reply, self._answer(connection.max_payload - ROOM))

        sid = connection.subscribe(SUBJECT.encode(), asked)
        try:
            yield
        finally:
            await connection.unsubscribe(sid)

    def _answer(self, room: int) -> bytes:
        state = self.state()
        text = json.dumps(state).encode()
        if len(text) > room:
            # Thousands of shards: the counts say what matters.
            state["tree"] = {**state["tree"], "children": [], "truncated": True}
            text = json.dumps(state).encode()
        return text
