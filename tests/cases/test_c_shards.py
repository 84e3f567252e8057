"""Section C of the cases: what has expired comes back in order; the number of shards."""

from __future__ import annotations

import pytest
import trio

from shove_actors import SequencedTopic, SequenceFailure, TopologyBuilder, TopologyError
from shove_actors.backends import LaneSpec
from tests.runtime.fixtures import Clock
from tests.runtime.world import Order, Script, World, consuming

LEASE_S = 1.5


def lanes(world: World, shards: int, queue: str | None = None) -> SequencedTopic[Order]:
    builder = TopologyBuilder(queue or world.fresh()).sequenced(SequenceFailure.SKIP)
    topology = builder.routing_shards(shards).hold_queue(0.2).dlq().build()
    return SequencedTopic(Order, key=lambda order: order.key, topology=topology)


def a_key_of_each_shard(topic: SequencedTopic[Order]) -> list[str]:
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(topic.shard_of(f"k{number}"), f"k{number}")
    return [found[shard] for shard in range(topic.topology.routing_shards)]


async def test_pc037_what_has_expired_comes_back_in_the_order_of_the_stream(
    world: World, clock: Clock
) -> None:
    """Four are asked for, one comes, and nobody settles it. Its lease ends, and somebody else asks
    for four."""
    topic = lanes(world, 1)
    spec = LaneSpec(
        stream=topic.queue,
        durable=topic.topology.shard_durable(0),
        filter_subject=topic.topology.shard_subject(0),
        credit=4,
        max_ack_pending=1,
        ack_wait_s=LEASE_S,
    )
    async with world.broker(topic) as broker, world.broker() as other:
        orders = [Order(str(n), "k") for n in range(4)]
        stored = await broker.publisher().publish_batch(topic, orders)
        [lane] = await broker.backend.open_lanes([spec])
        first = await lane.receive()
        await trio.sleep(LEASE_S / 5)
        with pytest.raises(trio.WouldBlock):
            lane.receive_nowait()
        await lane.close()
        [lane] = await other.backend.open_lanes([spec])
        came = []
        for _ in orders:
            delivery = await lane.receive()
            came.append((delivery.sequence, delivery.num_delivered))
            lane.ack(delivery)
        await lane.close()
    assert first.sequence == stored[0].sequence
    assert [sequence for sequence, _ in came] == [receipt.sequence for receipt in stored]
    assert [times for _, times in came] == [2, 1, 1, 1]


async def test_pc038_two_processes_with_different_numbers_of_shards(
    world: World, clock: Clock
) -> None:
    """The second one is refused, and its key is handled from one place before and after."""
    topic = lanes(world, 3)
    [key, *_] = a_key_of_each_shard(topic)
    script = Script()
    async with world.broker(topic) as one, world.broker() as two:
        await one.publisher().publish(topic, Order("before", key))
        with pytest.raises(TopologyError, match=r"routing_shards.*2"):
            await two.declare(lanes(world, 2, topic.queue))
        await one.publisher().publish(topic, Order("after", key))
        async with consuming(one, topic, script):
            await script.journal.until(2)
            await world.until_kept(one, topic.queue, 0)
    assert script.journal.entries == [("before", 0), ("after", 0)]
    assert len({metadata.shard for metadata in script.seen}) == 1


async def test_pc039_fewer_shards_strand_nothing(world: World, clock: Clock) -> None:
    topic = lanes(world, 3)
    keys = a_key_of_each_shard(topic)
    script = Script()
    async with world.broker(topic) as one, world.broker() as two:
        for key in keys:
            await one.publisher().publish(topic, Order("x", key))
        with pytest.raises(TopologyError, match="drain"):
            await two.declare(lanes(world, 2, topic.queue))
        async with consuming(one, topic, script):
            await script.journal.until(3)
            await world.until_kept(one, topic.queue, 0)
    assert sorted(metadata.key or "" for metadata in script.seen) == sorted(keys)
