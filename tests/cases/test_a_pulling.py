"""Section A of the cases, the part that needs no broken connection."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors import (
    MessageMetadata,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopicNotDeclared,
    TopologyBuilder,
)
from tests.runtime.fixtures import Clock
from tests.runtime.world import SOON_S, Journal, Order, World, ack, consuming

# ------------------------------------------------------------------ PC-008


async def test_pc008_prefetched_messages_do_not_outlive_their_lease(
    world: World, clock: Clock
) -> None:
    """Ten wait behind one another for three leases in all: each is delivered once."""
    topic = world.topic()
    runs: Journal[tuple[str, int]] = Journal()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        await trio.sleep(0.2)
        runs.add((order.name, metadata.num_delivered))
        return Outcome.ACK

    async with world.broker(topic) as one, world.broker() as two:
        await one.publisher().publish_batch(topic, [Order(str(n)) for n in range(10)])
        async with consuming(one, topic, handle, prefetch=10, ack_wait=0.6):
            # Another process is ready to take whatever the first one loses.
            async with consuming(two, topic, handle, prefetch=10, ack_wait=0.6):
                await runs.until(10)
                await world.until_settled(one, topic.queue)
    assert sorted(runs.entries) == [(str(n), 1) for n in range(10)]


@pytest.mark.parametrize(
    ("options", "most"),
    [({"prefetch": 3}, 3), ({"prefetch": 2, "consumers": 3}, 6), ({"prefetch": 1}, 1)],
)
async def test_pc006_pc008_no_more_in_hand_than_the_prefetch_allows(
    world: World, clock: Clock, options: dict[str, int], most: int
) -> None:
    topic = world.topic()
    let_go = trio.Event()

    async def handle(order: Order) -> Outcome:
        await let_go.wait()
        return Outcome.ACK

    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(20)])
        async with consuming(broker, topic, handle, **options):
            with trio.fail_after(SOON_S):
                while True:
                    backlog = await broker.backend.backlog(topic.queue, topic.topology.durable)
                    if backlog is not None and backlog.ack_pending == most:
                        break
                    await trio.sleep(0.02)
            await trio.sleep(0.2)
            backlog = await broker.backend.backlog(topic.queue, topic.topology.durable)
            assert backlog is not None
            assert (backlog.pending, backlog.ack_pending) == (20 - most, most)
            let_go.set()
            await world.until_kept(broker, topic.queue, 0)


# ------------------------------------------------------------------ PC-011


@pytest.mark.parametrize("kind", ["plain", "sequenced", "dead letters", "external"])
async def test_pc011_started_before_the_stream_exists(
    world: World, clock: Clock, kind: str
) -> None:
    queue = world.fresh()
    builder = TopologyBuilder(queue)
    async with world.broker() as broker:
        group = broker.consumer_group()
        if kind == "sequenced":
            topology = builder.sequenced(SequenceFailure.SKIP).hold_queue(1).dlq().build()
            group.register(SequencedTopic(Order, key=lambda o: o.key, topology=topology), ack)
        elif kind == "dead letters":
            group.register_dlq(world.topic(), ack)
        elif kind == "external":
            group.register(world.topic(lambda b: b.nats_external_stream()), ack)
        else:
            group.register(world.topic(), ack)
        name = group._registrations[0].topic.queue
        with trio.fail_after(SOON_S), pytest.raises(TopicNotDeclared, match=name):
            await group.serve()


async def test_pc011_consuming_works_once_it_is_declared(world: World, clock: Clock) -> None:
    topic = world.topic()
    done: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        done.add(order.name)
        return Outcome.ACK

    async with world.broker() as broker:
        group = broker.consumer_group()
        group.register(topic, handle)
        with pytest.raises(TopicNotDeclared):
            await group.serve()
        await broker.declare(topic)
        async with consuming(broker, topic, handle):
            await broker.publisher().publish(topic, Order("x"))
            await done.until(1)
