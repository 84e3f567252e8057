"""A server, and what it is asked to change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream, connect
from shove_actors.messaging import NatsStreamConfig, Topology, TopologyBuilder

Fresh = Callable[[], str]


class Requests:
    """API requests that change something, as the server sees them."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def take(self) -> list[str]:
        seen, self.seen = self.seen, []
        return sorted(seen)


@asynccontextmanager
async def watched(server: ServerProcess) -> AsyncIterator[tuple[JetStream, Requests]]:
    """A connection, and what a second one hears it ask for."""
    requests = Requests()

    def heard(subject: bytes, *rest: object) -> None:
        requests.seen.append(subject.decode().removeprefix("$JS.API."))

    async with connect(server.url) as witness, connect(server.url) as js:
        for verb in ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "CONSUMER.CREATE"):
            witness.connection.subscribe(f"$JS.API.{verb}.>".encode(), heard)
        await witness.connection.flush()
        yield js, requests


async def settled(js: JetStream, requests: Requests) -> list[str]:
    """What was asked for since the last look. An answer proves that the witness has heard it."""
    await js.account_info()
    await trio.testing.wait_all_tasks_blocked(0.01)
    return requests.take()


def bounded(queue: str, **settings: Any) -> Topology:
    return TopologyBuilder(queue).nats_stream_config(NatsStreamConfig(**settings)).build()
