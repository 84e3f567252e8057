"""FAIL_ALL: what an operator sees and does."""

from __future__ import annotations

import msgspec
import pytest

from shove_actors import (
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopicNotDeclared,
    TopologyBuilder,
    UsageError,
)
from shove_actors.messaging import mark_name

from .fixtures import Clock
from .poisoning import ledger, orders, story
from .world import Journal, Order, Script, World, burying, consuming, raw_publish


async def test_release_lets_new_messages_go_on_and_leaves_the_letters(
    world: World, clock: Clock
) -> None:
    topic = ledger(world)
    script = Script(outcomes={"1": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        async with consuming(broker, topic, script):
            await publisher.publish_batch(topic, orders("1", "2"))
            await world.until_kept(broker, topic.topology.dlq, 2)
            assert await broker.release(topic, "k")
            await publisher.publish_batch(topic, orders("3", "4"))
            await script.journal.until(3)
        assert len(await world.kept(broker, topic.topology.dlq)) == 2
    assert [name for name, _ in script.journal.entries] == ["1", "3", "4"]


async def test_poisoned_lists_every_key(world: World, clock: Clock) -> None:
    topic = ledger(world, shards=4)
    keys = [f"key-{n}" for n in range(20)]
    script = Script(outcomes={"bad": [Outcome.REJECT] * 20})
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("bad", key) for key in keys])
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 20)
        found = await broker.poisoned(topic)
    assert {each.key for each in found} == set(keys)
    assert all(each.shard == topic.shard_of(each.key) for each in found)


async def test_usage_errors_name_the_rule_and_the_fix(world: World, clock: Clock) -> None:
    topic = ledger(world)
    skipping = SequencedTopic(
        Order,
        key=lambda o: o.key,
        topology=TopologyBuilder(world.fresh())
        .sequenced(SequenceFailure.SKIP)
        .hold_queue(1)
        .dlq()
        .build(),
    )
    async with world.broker() as broker:
        for other in (skipping, world.topic()):
            for call in (broker.poisoned(other), broker.release(other, "k")):
                with pytest.raises(UsageError, match=r"sequenced\(SequenceFailure.FAIL_ALL\)"):
                    await call
        for call in (broker.poisoned(topic), broker.release(topic, "k")):
            with pytest.raises(TopicNotDeclared, match=topic.queue):
                await call
        await broker.declare(topic)
        with pytest.raises(UsageError, match="a key is a str"):
            await broker.release(topic, 7)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="takes a topic"):
            await broker.poisoned("orders")  # type: ignore[arg-type]
        assert await broker.poisoned(topic) == ()
        assert await broker.release(topic, "k", replay=True) is False
        assert await world.kept(broker, topic.queue) == []


async def test_a_mark_that_somebody_else_made_poisons_too(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """`nats kv put q-poison k-acc-1 "see ticket 17"`: on the safe side."""
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        written = await broker.backend.write_mark(
            topic.queue, mark_name("acc-1"), b"see ticket 17", revision=0
        )
        assert written
        await broker.publisher().publish_batch(topic, [Order("1", "acc-1"), Order("2", "acc-2")])
        async with consuming(broker, topic, script):
            (letter,) = await world.until_kept(broker, topic.topology.dlq, 1)
            await script.journal.until(1)
        (found,) = await broker.poisoned(topic)
        assert (found.key, found.reason, found.since) == ("acc-1", "", None)
        assert await broker.release(topic, "acc-1")
    assert letter.headers["Shove-Death-Reason"] == "sequence_failed"
    assert [name for name, _ in script.journal.entries] == ["2"]


async def test_unknown_control_messages_reach_nobody_and_poison_nothing(
    world: World, clock: Clock
) -> None:
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        subject = topic.topology.shard_subject(0)
        good = msgspec.json.encode(Order("x", "k"))
        for headers in (
            {"Shove-Control": "later-version", "Shove-Key": "k"},
            {"Shove-Control": "replay"},
        ):
            await raw_publish(broker, subject, good, headers)
        await broker.publisher().publish(topic, Order("1", "k"))
        async with consuming(broker, topic, script):
            await script.journal.until(1)
            letters = await world.until_kept(broker, topic.topology.dlq, 2)
        assert await broker.poisoned(topic) == ()
    assert {m.headers["Shove-Death-Reason"] for m in letters} == {"foreign_header"}
    assert script.journal.entries == [("1", 0)]


async def test_acknowledged_dead_letters_of_fail_all_are_deleted(
    world: World, clock: Clock
) -> None:
    """What is left in the dead-letter queue is what is not done."""
    topic = ledger(world)
    script = Script(outcomes={"1": [Outcome.REJECT]})
    seen: Journal[str] = Journal()

    async def bury(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.REJECT if order.name == "2" else Outcome.ACK

    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, orders("1", "2", "3"))
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 3)
        async with burying(broker, topic, bury, max_retries=0):
            await seen.until(3)
            letters = await world.until_kept(broker, topic.topology.dlq, 1)
    assert [name for name, _ in story(letters)] == ["2"]
