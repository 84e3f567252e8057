"""`Broker.dead_letters`, `replay_dead_letters`, `purge_dead_letters`, as a user calls them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import trio

from shove_actors import (
    Broker,
    BrokerClosed,
    DeadLettersDone,
    DeathReason,
    LetterFilter,
    Outcome,
    Reject,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopicNotDeclared,
    TopologyBuilder,
    TopologyError,
    UsageError,
)
from shove_actors.runtime._dead_letters import POISONED

from .fixtures import Clock
from .poisoning import ledger, orders
from .replaying import poison
from .test_dead_letters import bury, skipping
from .world import Order, Script, World, burying, consuming, raw_publish, until


async def names(broker: Broker, topic: Topic[Order], *which: LetterFilter) -> list[str]:
    return [topic.decode(each.payload).name async for each in broker.dead_letters(topic, *which)]


async def handled(broker: Broker, topic: Topic[Order], count: int) -> list[str]:
    script = Script()
    async with consuming(broker, topic, script):
        await script.journal.until(count)
    return [name for name, _ in script.journal.entries]


def numbered(count: int, keys: str = "xy") -> list[Order]:
    return [Order(f"{key}{n}", key) for n in range(count) for key in keys]


async def test_looking_replaying_and_throwing_away(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a", "b", "c"))
        assert sorted(await names(broker, topic)) == ["a", "b", "c"]
        [first] = [each async for each in broker.dead_letters(topic, LetterFilter(limit=1))]
        one = LetterFilter(sequences={first.sequence}, reasons={DeathReason.REJECTED})
        assert await broker.replay_dead_letters(topic, one, dry_run=True) == DeadLettersDone(done=1)
        assert len(await names(broker, topic)) == 3
        done = await broker.replay_dead_letters(topic, one)
        assert (done.done, done.is_complete) == (1, True)
        assert await handled(broker, topic, 1) == [topic.decode(first.payload).name]
        everything = LetterFilter()
        assert (await broker.purge_dead_letters(topic, everything, dry_run=True)).done == 2
        assert (await broker.purge_dead_letters(topic, everything)).done == 2
        assert await names(broker, topic) == []
        assert (await broker.replay_dead_letters(topic)).done == 0


async def test_leaving_the_loop_early_needs_no_care(world: World, clock: Clock) -> None:
    """Trio warns of an async generator that is left alone, and warnings are errors here."""
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a", "b"))
        async for letter in broker.dead_letters(topic):
            assert letter.metadata.reason == "rejected"
            break
        gc.collect()
        await trio.lowlevel.checkpoint()
        walk = broker.dead_letters(topic)
        assert [each.sequence async for each in walk] == [1, 2]
        assert [each.sequence async for each in walk] == []


async def test_more_than_are_read_at_a_time(world: World, clock: Clock) -> None:
    topic = world.topic()
    dlq, count = str(topic.topology.dlq), 1_203
    async with world.broker(topic) as broker:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(raw_publish, broker, dlq, topic.encode(Order("a")))
        for n in (1, 500, 501, 1_000, count):
            await broker.backend.delete_message(dlq, n)
        left = [n for n in range(1, count + 1) if n not in (1, 500, 501, 1_000, count)]
        assert [each.sequence async for each in broker.dead_letters(topic)] == left
        some = LetterFilter(sequences={500, 502, 700, 900})
        assert [each.sequence async for each in broker.dead_letters(topic, some)] == [502, 700, 900]
        assert await names(broker, topic, LetterFilter(sequences={501})) == []
        assert await names(broker, topic, LetterFilter(sequences={77})) == ["a"]
        assert await names(broker, topic, LetterFilter(sequences={9_999})) == []
        assert (await broker.purge_dead_letters(topic, LetterFilter(limit=70))).done == 70
        assert len(await names(broker, topic)) == len(left) - 70


async def test_order_of_each_key_after_a_replay(world: World, clock: Clock) -> None:
    topic = skipping(world)
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *numbered(5))
        assert (await broker.replay_dead_letters(topic, LetterFilter(keys={"x"}))).done == 5
        assert (await broker.replay_dead_letters(topic)).done == 5
        seen = await handled(broker, topic, 10)
        for key in "xy":
            assert [name for name in seen if name[0] == key] == [f"{key}{n}" for n in range(5)]


async def test_a_replay_that_is_cancelled_is_repeated(world: World, clock: Clock) -> None:
    """Nothing is lost and nothing stored twice, whichever step of a letter it was cut off at."""
    topic = skipping(world)
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *numbered(4))
        delete = broker.backend.delete_message
        scope = trio.CancelScope()
        deleted: list[int] = []

        async def cut_off(stream: str, sequence: int) -> bool:
            """At the third letter, which has been stored again and is not deleted yet."""
            if len(deleted) == 2:
                scope.cancel()
                await trio.lowlevel.checkpoint()
            deleted.append(sequence)
            return await delete(stream, sequence)

        broker.backend.delete_message = cut_off  # type: ignore[method-assign]
        with scope:
            await broker.replay_dead_letters(topic)
        assert scope.cancelled_caught
        broker.backend.delete_message = delete  # type: ignore[method-assign]
        assert len(await names(broker, topic)) == 6
        assert (await broker.replay_dead_letters(topic)).done == 6
        assert len(await world.kept(broker, topic.queue)) == 8
        seen = await handled(broker, topic, 8)
        for key in "xy":
            assert [name for name in seen if name[0] == key] == [f"{key}{n}" for n in range(4)]


async def test_two_replays_at_once_store_each_message_once(world: World, clock: Clock) -> None:
    topic = skipping(world)
    async with world.broker(topic) as one, world.broker(topic) as other:
        await bury(world, one, topic, *numbered(6))
        async with trio.open_nursery() as nursery:
            for broker in (one, other):
                nursery.start_soon(broker.replay_dead_letters, topic)
        assert await names(one, topic) == []
        seen = await handled(one, topic, 12)
        assert len(await world.kept(one, topic.queue)) == 0
        assert sorted(seen) == sorted(order.name for order in numbered(6))
        for key in "xy":
            assert [name for name in seen if name[0] == key] == [f"{key}{n}" for n in range(6)]


async def test_letters_that_are_taken_away_meanwhile_are_not_replayed(
    world: World, clock: Clock
) -> None:
    topic = skipping(world)
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *numbered(3, "x"))
        publish = broker.publish_service.publish

        async def and_purge(*given: Any) -> Any:
            receipt = await publish(*given)
            await broker.purge_dead_letters(topic, LetterFilter(sequences={2, 3}))
            return receipt

        broker.publish_service.publish = and_purge  # type: ignore[assignment, method-assign]
        assert (await broker.replay_dead_letters(topic)).done == 1
        assert len(await world.kept(broker, topic.queue)) == 1


async def test_the_key_of_a_poisoned_letter_is_named(world: World, clock: Clock) -> None:
    topic = ledger(world)
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "a", "b", key="bad")
        done = await broker.replay_dead_letters(topic)
        assert done == DeadLettersDone(
            done=0, skipped={POISONED: 2}, poisoned_keys=frozenset({"bad"})
        )
        assert not done.is_complete
        [*letters] = [each async for each in broker.dead_letters(topic)]
        assert {each.key for each in letters} == {"bad"}


async def test_what_a_consumer_of_dead_letters_acknowledged_is_still_there(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a"))
        dead = Script()
        async with burying(broker, topic, dead.handle):
            await dead.journal.until(1)
            await world.until_settled(broker, str(topic.topology.dlq))
        assert await names(broker, topic) == ["a"]
        assert (await broker.replay_dead_letters(topic)).done == 1


async def test_a_replayed_message_that_dies_again_counts_its_deaths(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a"))
        replayed: list[bool] = []

        async def reject(order: Order, metadata: Any) -> Outcome:
            replayed.append(metadata.replayed)
            return Reject(reason="again")

        await broker.replay_dead_letters(topic)
        async with consuming(broker, topic, reject):
            await world.until_kept(broker, topic.topology.dlq, 1)
        [letter] = [each async for each in broker.dead_letters(topic)]
        assert replayed == [True]
        assert (letter.metadata.death_count, letter.metadata.detail) == (2, "again")


async def test_while_the_topic_is_consumed(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a", "b"))
        seen: set[str] = set()

        async def handle(order: Order) -> Outcome:
            seen.add(order.name)
            return Outcome.ACK

        async with consuming(broker, topic, handle):
            await broker.replay_dead_letters(topic)
            await until(lambda: seen == {"a", "b"})
        assert await names(broker, topic) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"reasons": "rejected"},
        {"keys": "acc-7"},
        {"keys": b"acc-7"},
        {"keys": 7},
        {"sequences": {"1"}},
        {"limit": True},
        {"limit": 0},
        {"older_than": "15m"},
        {"newer_than": -1},
        {"newer_than": float("nan")},
    ],
    ids=str,
)
def test_filters_that_cannot_be_meant(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        LetterFilter(**wrong)


async def test_usage(world: World, clock: Clock) -> None:
    topic = world.topic()
    without = world.topic(lambda builder: builder.allow_message_loss())
    wrong: Any = {"rejected"}
    async with world.broker(without) as broker:
        with pytest.raises(UsageError, match=r"Add \.dlq\(\)"):
            broker.dead_letters(without)
        with pytest.raises(UsageError, match="dead_letters takes a topic, not str"):
            broker.dead_letters("orders")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"LetterFilter\(\.\.\.\), not set"):
            await broker.replay_dead_letters(topic, wrong)
        with pytest.raises(UsageError, match=r"LetterFilter\(\.\.\.\), not set"):
            await broker.purge_dead_letters(topic, wrong)
        with pytest.raises(TopicNotDeclared):
            await names(broker, topic)
    with pytest.raises(BrokerClosed):
        broker.dead_letters(without)
    with pytest.raises(BrokerClosed):
        await broker.purge_dead_letters(without, LetterFilter())


async def test_another_number_of_shards_is_refused(world: World, clock: Clock) -> None:
    topic = skipping(world, shards=2)
    builder = TopologyBuilder(topic.queue).sequenced(SequenceFailure.SKIP).routing_shards(4)
    other = SequencedTopic(
        Order, key=lambda o: o.key, topology=builder.hold_queue(0.2).dlq().build()
    )
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *numbered(1))
        async with world.broker() as foreign:
            with pytest.raises(TopologyError, match="shards"):
                await foreign.replay_dead_letters(other)
        assert sorted(await names(broker, topic)) == ["x0", "y0"]


@pytest.mark.parametrize("method", ["dead_letters", "replay_dead_letters", "purge_dead_letters"])
async def test_arguments_that_do_not_fit_are_told_with_the_filter(
    world: World, clock: Clock, method: str
) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        call: Any = getattr(broker, method)
        with pytest.raises(UsageError, match=method) as caught:
            call(topic, limit=1)
        assert f"{method}(topic, LetterFilter(limit=1))" in str(caught.value)
        assert "Desk" not in str(caught.value)


async def test_what_is_purged_has_to_be_said(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a"))
        purge: Any = broker.purge_dead_letters
        with pytest.raises(UsageError, match=r"'which'.*means all"):
            await purge(topic)
        assert await names(broker, topic) == ["a"]
