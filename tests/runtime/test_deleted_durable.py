"""A shard's durable is deleted under a running handler: still one message of it at a time.

The deletion ends the lease, and the durable that takes its place delivers the message again, to
whoever asks first. The handlers of the old one have to be over by then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from shove_actors import (
    Broker,
    MemoryConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends.nats import NatsBackend

from .fixtures import Clock
from .world import Journal, Order, World, consuming

#: Of handlers that are cancelled: less than everybody is given.
UNWIND_S = 0.2
LEASE_S = 3.0


def lanes(world: World) -> SequencedTopic[Order]:
    builder = TopologyBuilder(world.fresh()).sequenced(SequenceFailure.SKIP).routing_shards(1)
    topology = builder.hold_queue(0.2).dlq().build()
    return SequencedTopic(Order, key=lambda order: order.key, topology=topology)


async def delete(world: World, broker: Broker, topic: SequencedTopic[Order]) -> None:
    """As an operator does: `nats consumer rm`."""
    durable = topic.topology.shard_durable(0)
    if world.memory is not None:
        world.memory.delete_durable(topic.queue, durable)
    else:
        assert isinstance(broker.backend, NatsBackend)
        await broker.backend.js.delete_consumer(topic.queue, durable)


class Watched:
    """Handlers of several processes, and how many of them ran at a time."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.overlaps: list[tuple[str, ...]] = []
        self.runs: Journal[tuple[str, str]] = Journal()

    def handler(self, who: str) -> Callable[[Order], Awaitable[Outcome]]:
        async def handle(order: Order) -> Outcome:
            self.running.append(who)
            if len(self.running) > 1:
                self.overlaps.append(tuple(self.running))
            self.runs.add((who, order.name))
            try:
                if len(self.runs) == 1:
                    await trio.sleep_forever()
                await trio.sleep(0.05)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(UNWIND_S if len(self.runs) == 1 else 0)
                self.running.remove(who)
            return Outcome.ACK

        return handle


async def test_no_second_handler_begins_before_the_first_has_ended(
    world: World, clock: Clock
) -> None:
    topic, watched = lanes(world), Watched()
    async with world.broker(topic) as one, world.broker() as two:
        await one.publisher().publish_batch(topic, [Order(str(n), "k") for n in range(3)])
        async with consuming(one, topic, watched.handler("A"), ack_wait=LEASE_S):
            await watched.runs.until(1)
            async with consuming(two, topic, watched.handler("B"), ack_wait=LEASE_S):
                await delete(world, one, topic)
                await watched.runs.until(4)
                await world.until_settled(one, topic.queue, topic.topology.shard_durable(0))
    assert watched.overlaps == []
    assert [name for _, name in watched.runs.entries] == ["0", "0", "1", "2"]


async def test_who_starts_after_the_deletion_waits_too(world: World, clock: Clock) -> None:
    topic, watched = lanes(world), Watched()
    async with world.broker(topic) as one, world.broker() as two:
        await one.publisher().publish(topic, Order("before", "k"))

        async def ack(order: Order) -> Outcome:
            return Outcome.ACK

        async with consuming(one, topic, ack):
            await world.until_settled(one, topic.queue, topic.topology.shard_durable(0))
        await one.publisher().publish_batch(topic, [Order(str(n), "k") for n in range(3)])
        async with consuming(one, topic, watched.handler("A"), ack_wait=LEASE_S):
            await watched.runs.until(1)
            await delete(world, one, topic)
            async with consuming(two, topic, watched.handler("B"), ack_wait=LEASE_S):
                await watched.runs.until(4)
    assert watched.overlaps == []


@asynccontextmanager
async def named(world: World, name: str) -> AsyncIterator[Broker]:
    assert world.memory is not None
    async with open_broker(MemoryConfig(server=world.memory, name=name)) as broker:
        yield broker


@pytest.mark.parametrize("how", ["stalled", "cut"])
async def test_who_does_not_hear_of_the_deletion_has_ended_by_its_lease(
    memory_world: World, autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """Two things at once: the process is cut off when the durable is deleted."""
    topic, memory, watched = lanes(memory_world), memory_world.memory, Watched()
    assert memory is not None
    async with named(memory_world, "A") as one, named(memory_world, "B") as two:
        await two.declare(topic)
        await two.publisher().publish_batch(topic, [Order(str(n), "k") for n in range(3)])
        options = {"ack_wait": 12.0, "handler_timeout": None}
        async with consuming(one, topic, watched.handler("A"), **options):
            await watched.runs.until(1)
            async with consuming(two, topic, watched.handler("B"), **options):
                await trio.sleep(30)
                if how == "stalled":
                    memory.faults.stall("A")
                else:
                    memory.faults.disconnect("A")
                await delete(memory_world, two, topic)
                await watched.runs.until(4, within=60)
    assert watched.overlaps == []
