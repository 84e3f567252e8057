"""Processes that own one keyed shard of a real server, or stand by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from shove_actors.backends import Backend, Delivery, KeyedSpec, LaneSpec
from shove_actors.backends._keyed_lane import KeyedLane
from shove_actors.backends.memory import MemoryConfig, MemoryServer
from shove_actors.backends.memory._backend import MemoryBackend
from shove_actors.backends.memory._keyed_lane import MemoryKeyedLane
from shove_actors.backends.memory._pins import PinnedDurable
from shove_actors.backends.nats import NatsBackend, NatsConfig
from shove_actors.embedded import EmbeddedServer, ServerProcess
from shove_actors.messaging import SequenceFailure, Topology, TopologyBuilder, encode_headers
from tests.backends.world import Process

Server = ServerProcess | EmbeddedServer | MemoryServer
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


def topology_of(queue: str) -> Topology:
    builder = TopologyBuilder(queue).sequenced(SequenceFailure.SKIP).routing_shards(1)
    return builder.allow_message_loss().build()


class Owner:
    """One process with the shard's lane."""

    def __init__(self, process: Process, lane: KeyedLane, nursery: trio.Nursery) -> None:
        self.process = process
        self.lane = lane
        self.nursery = nursery
        self.running = trio.CancelScope()

    @property
    def backend(self) -> Backend:
        return self.process.backend

    @property
    def nats(self) -> NatsBackend:
        assert isinstance(self.process.backend, NatsBackend)
        return self.process.backend

    async def unpin(self) -> None:
        """As an operator does it."""
        spec = self.lane.spec
        if isinstance(self.backend, NatsBackend):
            op = f"CONSUMER.UNPIN.{spec.stream}.{spec.durable}"
            await self.backend.js.call(op, {"group": "owner"})
        else:
            self._durable().unpin()

    async def rewind(self) -> None:
        """As an operator does it."""
        spec = self.lane.spec
        if isinstance(self.backend, NatsBackend):
            await self.backend.js.call(f"CONSUMER.RESET.{spec.stream}.{spec.durable}", {})
        else:
            self._durable().rewind()

    async def delete_stream(self) -> None:
        if isinstance(self.backend, NatsBackend):
            await self.backend.js.delete_stream(self.process.queue)
        else:
            self._server().delete_stream(self.process.queue)

    async def delete_durable(self) -> None:
        spec = self.lane.spec
        if isinstance(self.backend, NatsBackend):
            await self.backend.js.delete_consumer(spec.stream, spec.durable)
        else:
            self._server().delete_durable(spec.stream, spec.durable)

    async def declare(self) -> None:
        await self.backend.declare([topology_of(self.process.queue)])

    def _server(self) -> MemoryServer:
        assert isinstance(self.backend, MemoryBackend)
        return self.backend.server

    def _durable(self) -> PinnedDurable:
        assert isinstance(self.lane, MemoryKeyedLane)
        durable = self.lane.durable
        assert isinstance(durable, PinnedDurable)
        return durable

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
async def owner(server: Server, queue: str, **changes: Any) -> AsyncIterator[Owner]:
    """A connected process that wants the shard."""
    config = (
        MemoryConfig(server=server)
        if isinstance(server, MemoryServer)
        else NatsConfig(server.url, **FAST)
    )
    backend: Backend = config.create_backend()
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        await backend.declare([topology_of(queue)])
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
