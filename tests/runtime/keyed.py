"""A keyed topic, on a real server or on the model of one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from shove_actors import (
    Broker,
    ConsumerGroup,
    MemoryConfig,
    MemoryServer,
    NatsConfig,
    SequencedTopic,
    open_broker,
)
from shove_actors.embedded import ServerProcess
from shove_actors.messaging import SequenceFailure, TopologyBuilder
from tests.support import wait_until

Server = ServerProcess | MemoryServer


@dataclass(frozen=True)
class Note:
    key: str
    number: int


def topic(
    queue: str,
    *,
    failure: SequenceFailure = SequenceFailure.SKIP,
    shards: int = 2,
    keyed: int = 16,
) -> SequencedTopic[Note]:
    builder = TopologyBuilder(queue).sequenced(failure).routing_shards(shards).keyed(keyed)
    return SequencedTopic(Note, key=lambda n: n.key, topology=builder.hold_queue(1).dlq().build())


@asynccontextmanager
async def broker(server: Server) -> AsyncIterator[Broker]:
    config = (
        MemoryConfig(server=server)
        if isinstance(server, MemoryServer)
        else NatsConfig(server.url, reconnect_wait=0.02)
    )
    async with open_broker(config) as opened:
        yield opened


@asynccontextmanager
async def serving(
    opened: Broker, subject: SequencedTopic[Note], handler: Callable[..., Any], **options: Any
) -> AsyncIterator[ConsumerGroup]:
    """A group that consumes the topic; drained at the end."""
    group = opened.consumer_group()
    group.register(subject, handler, **{"ack_wait": 3.0, "retry_delay": 0.1, **options})
    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        try:
            yield group
        finally:
            group.stop()


class Log:
    """What handlers did."""

    def __init__(self) -> None:
        self.handled: list[Note] = []
        self.running: dict[str, int] = {}
        self.most = 0

    def begin(self, note: Note) -> None:
        self.running[note.key] = self.running.get(note.key, 0) + 1
        assert self.running[note.key] == 1, f"two of {note.key} at once"
        self.most = max(self.most, sum(self.running.values()))

    def end(self, note: Note) -> None:
        self.running[note.key] -= 1
        self.handled.append(note)

    async def until(self, count: int, within: float = 20.0) -> None:
        with trio.fail_after(within):
            await wait_until(lambda: len(self.handled) >= count)

    def of(self, key: str) -> list[int]:
        return [note.number for note in self.handled if note.key == key]
