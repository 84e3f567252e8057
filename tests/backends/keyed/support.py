"""Processes that own one keyed shard of a real server, or stand by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from shove_actors.backends import Delivery, KeyedSpec, LaneSpec, margins
from shove_actors.backends._keyed_lane import KeyedLane
from shove_actors.backends.nats import NatsBackend, NatsConfig
from shove_actors.embedded import ServerProcess
from shove_actors.messaging import SequenceFailure, TopologyBuilder, encode_headers
from tests.backends.world import Process

FAST: dict[str, Any] = {"reconnect_wait": 0.02, "reconnect_jitter": 0.0}
CREDIT = 64
LEASE_S = 3.0


def key_of(delivery: Delivery) -> str:
    return delivery.payload.decode().split("-")[0]


def spec(queue: str, **changes: Any) -> LaneSpec:
    settings: dict[str, Any] = {
        "stream": queue,
        "durable": f"{queue}-shard-0",
        "filter_subject": f"{queue}.shard.0",
        "credit": CREDIT,
        "max_ack_pending": CREDIT,
        "ack_wait_s": LEASE_S,
        "keyed": KeyedSpec(record="0", max_in_flight=8, key_of=key_of),
    }
    return LaneSpec(**{**settings, **changes})


class Owner:
    """One process with the shard's lane."""

    def __init__(self, process: Process, lane: KeyedLane, nursery: trio.Nursery) -> None:
        self.process = process
        self.lane = lane
        self.nursery = nursery
        self.running = trio.CancelScope()

    @property
    def backend(self) -> NatsBackend:
        assert isinstance(self.process.backend, NatsBackend)
        return self.process.backend

    async def publish(self, *payloads: str) -> None:
        block = encode_headers({"X": "y"})
        subject = f"{self.process.queue}.shard.0"
        await self.process.publish_all([(subject, p.encode(), block) for p in payloads])

    async def next(self, within: float = 10.0) -> Delivery:
        with trio.fail_after(within):
            return await self.lane.receive()

    async def take(self, count: int, within: float = 10.0) -> list[str]:
        """Receive and acknowledge one after another."""
        found = []
        for _ in range(count):
            delivery = await self.next(within)
            found.append(delivery.payload.decode())
            self.lane.ack(delivery)
        return found

    async def nothing(self, for_s: float = 0.3) -> bool:
        with trio.move_on_after(for_s):
            delivery = await self.lane.receive()
            raise AssertionError(f"{delivery!r} {delivery.payload!r}")
        return True

    async def settled(self) -> bool:
        """Whether the server soon has nothing of the shard any more."""
        spec = self.lane.spec
        for _ in range(200):
            backlog = await self.backend.backlog(spec.stream, spec.durable)
            if backlog is not None and backlog.pending + backlog.ack_pending == 0:
                return True
            await trio.sleep(0.05)
        return False

    async def run(self) -> None:
        with self.running:
            await self.lane.run()

    async def leave(self) -> None:
        await self.lane.close()
        with trio.fail_after(10):
            await self.lane.released()


@asynccontextmanager
async def owner(server: ServerProcess, queue: str, **changes: Any) -> AsyncIterator[Owner]:
    """A connected process that wants the shard."""
    backend = NatsConfig(server.url, **FAST).create_backend()
    topology = (
        TopologyBuilder(queue)
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(1)
        .allow_message_loss()
        .build()
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        await backend.declare([topology])
        lane = await backend.open_lane(spec(queue, **changes))
        assert isinstance(lane, KeyedLane)
        one = Owner(Process(backend, queue), lane, nursery)
        nursery.start_soon(one.run)
        try:
            yield one
        finally:
            with trio.move_on_after(5, shield=True):
                await lane.close()
                if not one.running.cancel_called:
                    await lane.released()
            one.running.cancel()
            backend.close()


__all__ = ["CREDIT", "LEASE_S", "Owner", "key_of", "margins", "owner", "spec"]
