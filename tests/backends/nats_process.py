"""One process over a real server, for tests that look into it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from shove_actors.backends.nats import NatsBackend, NatsConfig
from shove_actors.backends.nats._lane import NatsLane
from shove_actors.embedded import ServerProcess
from shove_actors.messaging import TopologyBuilder

from .world import Process

Fresh = Callable[[], str]


FAST: dict[str, Any] = {"reconnect_wait": 0.02, "reconnect_jitter": 0.0}


@asynccontextmanager
async def process(server: ServerProcess, queue: str, **changes: Any) -> AsyncIterator[Process]:
    """A connected backend with the topic's stream."""
    backend = NatsConfig(server.url, **{**FAST, **changes}).create_backend()
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        one = Process(backend, queue)
        try:
            await backend.declare([TopologyBuilder(queue).build()])
            yield one
        finally:
            with trio.move_on_after(10, shield=True):
                await one.close_lanes()
            backend.close()


def of(one: Process) -> NatsBackend:
    assert isinstance(one.backend, NatsBackend)
    return one.backend


async def open_lane(one: Process, **spec: Any) -> NatsLane:
    lane = await one.lane(**spec)
    assert isinstance(lane, NatsLane)
    return lane


def kinds(one: Process) -> list[str]:
    return [event.kind for event in one.events]


async def waiting(one: Process, count: int) -> None:
    """Until the server has this many pulls of the main durable."""
    with trio.fail_after(10):
        while True:
            info = await of(one).js.consumer_info(one.queue, f"{one.queue}-consumer")
            if info.num_waiting == count:
                return
            await trio.sleep(0.01)
