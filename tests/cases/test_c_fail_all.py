"""Section C of the cases: what becomes of a key after a permanent failure, and afterwards."""

from __future__ import annotations

import pytest
import trio

from shove_actors import (
    Broker,
    MessageMetadata,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    UsageError,
)
from tests.runtime.fixtures import Clock
from tests.runtime.world import Order, Script, World, consuming


def lanes(world: World, policy: SequenceFailure, *, shards: int = 1) -> SequencedTopic[Order]:
    builder = TopologyBuilder(world.fresh()).sequenced(policy).routing_shards(shards)
    return SequencedTopic(
        Order, key=lambda o: o.key, topology=builder.hold_queue(0.2).dlq().build()
    )


async def settled(world: World, broker: Broker, topic: SequencedTopic[Order]) -> None:
    for shard in range(topic.topology.routing_shards):
        await world.until_settled(broker, topic.queue, topic.topology.shard_durable(shard))


# ------------------------------------------------------------------ PC-043


@pytest.mark.parametrize("shards", [1, 8])
@pytest.mark.parametrize("policy", list(SequenceFailure))
async def test_pc043_skip_or_fail_the_rest(
    world: World, clock: Clock, policy: SequenceFailure, shards: int
) -> None:
    """Key A: 1, 2, 3, 4 with 2 rejected; key B: 1, 2. The process is another one after 2."""
    topic = lanes(world, policy, shards=shards)
    script = Script(outcomes={"A2": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        for name in ("A1", "B1", "A2"):
            await broker.publisher().publish(topic, Order(name, name[0]))
        async with consuming(broker, topic, script):
            await settled(world, broker, topic)
    async with world.broker(topic) as broker:
        for name in ("A3", "B2", "A4"):
            await broker.publisher().publish(topic, Order(name, name[0]))
        async with consuming(broker, topic, script):
            await settled(world, broker, topic)
        dead = [topic.decode(m.payload).name for m in await world.kept(broker, topic.topology.dlq)]
        handled = [name for name, _ in script.journal.entries]
        assert [name for name in handled if name[0] == "B"] == ["B1", "B2"]
        if policy is SequenceFailure.SKIP:
            assert [name for name in handled if name[0] == "A"] == ["A1", "A2", "A3", "A4"]
            assert dead == ["A2"]
            return
        assert [name for name in handled if name[0] == "A"] == ["A1", "A2"]
        assert dead == ["A2", "A3", "A4"]
        # Until a person clears the key.
        assert [found.key for found in await broker.poisoned(topic)] == ["A"]
        assert await broker.release(topic, "A")
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("A5", "A"))
        async with consuming(broker, topic, script):
            await settled(world, broker, topic)
        assert await broker.poisoned(topic) == ()
    assert script.journal.entries[-1] == ("A5", 0)


# ------------------------------------------------------------------ PC-045


async def test_pc045_redriving_keeps_the_order_and_can_be_told(world: World, clock: Clock) -> None:
    """1 dies, 2 follows it, 3 comes after the redrive: 1, 2, 3, whatever was published when."""
    topic = lanes(world, SequenceFailure.FAIL_ALL)
    script = Script(outcomes={"1": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        await publisher.publish_batch(topic, [Order("1", "k"), Order("2", "k")])
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 2)
            assert await broker.release(topic, "k", replay=True)
            await publisher.publish(topic, Order("3", "k"))
            await script.journal.until(4)
            await settled(world, broker, topic)
    assert [name for name, _ in script.journal.entries] == ["1", "1", "2", "3"]
    assert [m.replayed for m in script.seen] == [False, True, True, False]


async def test_pc045_where_later_messages_went_on_a_redrive_is_refused(
    world: World, clock: Clock
) -> None:
    topic = lanes(world, SequenceFailure.SKIP)
    script = Script(outcomes={"1": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("1", "k"), Order("2", "k")])
        async with consuming(broker, topic, script):
            await script.journal.until(2)
        with pytest.raises(UsageError, match="FAIL_ALL"):
            await broker.release(topic, "k", replay=True)
    assert [name for name, _ in script.journal.entries] == ["1", "2"]


# ------------------------------------------------------------------ PC-047


async def test_pc047_a_poisoned_key_keeps_its_shard_waiting_only_while_it_is_replayed(
    world: World, clock: Clock
) -> None:
    """As documented: a replay holds the lane, like a retry in place; poison alone does not."""
    topic = lanes(world, SequenceFailure.FAIL_ALL)
    script = Script(outcomes={"1": [Outcome.REJECT]})
    started, go_on = trio.Event(), trio.Event()

    async def slow(order: Order, metadata: MessageMetadata) -> object:
        if order.name == "1":
            started.set()
            await go_on.wait()
        return await script.handle(order, metadata, None)

    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        await publisher.publish(topic, Order("1", "k"))
        await publisher.publish(topic, Order("neighbour-1", "other"))
        async with consuming(broker, topic, script):
            await script.journal.until(2)
            await settled(world, broker, topic)
        assert await broker.release(topic, "k", replay=True)
        await publisher.publish(topic, Order("neighbour-2", "other"))
        async with consuming(broker, topic, slow):
            await started.wait()
            await trio.sleep(0.3)
            assert len(script.journal) == 2
            go_on.set()
            await script.journal.until(4)
    assert [name for name, _ in script.journal.entries] == [
        "1", "neighbour-1", "1", "neighbour-2",
    ]  # fmt: skip
