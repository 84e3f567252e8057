"""Looking at dead letters, putting them back, throwing them away; on both backends."""

from __future__ import annotations

import msgspec
import pytest
import trio

from shove_actors import (
    Broker,
    DeadLetter,
    LetterFilter,
    Outcome,
    Reject,
    SequencedTopic,
    SequenceFailure,
    StreamFull,
    Topic,
    TopicNotDeclared,
    TopologyBuilder,
    UsageError,
)
from shove_actors.backends import Kept
from shove_actors.runtime import _dead_letters
from shove_actors.runtime._dead_letters import (
    BEHIND,
    FOREIGN,
    NO_KEY,
    NO_SUBJECT,
    POISONED,
    browse,
    purge,
    replay,
)

from .fixtures import Clock
from .poisoning import ledger, orders
from .replaying import poison
from .world import Order, Script, World, consuming, raw_publish

ALL = LetterFilter()


def skipping(world: World, *, shards: int = 2) -> SequencedTopic[Order]:
    topology = (
        TopologyBuilder(world.fresh())
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(shards)
        .hold_queue(0.2)
        .dlq()
        .build()
    )
    return SequencedTopic(Order, key=lambda o: o.key, topology=topology)


async def bury(world: World, broker: Broker, topic: Topic[Order], *found: Order) -> None:
    """All of these become dead letters."""
    before = len(await world.kept(broker, topic.topology.dlq))

    async def reject(order: Order) -> Outcome:
        return Reject(reason=f"no {order.name}")

    await broker.publisher().publish_batch(topic, list(found))
    async with consuming(broker, topic, reject):
        await world.until_kept(broker, topic.topology.dlq, before + len(found))
        await world.until_kept(broker, topic.queue, 0)


async def looked(broker: Broker, topic: Topic[Order], selection: LetterFilter = ALL) -> list[str]:
    return [
        msgspec.json.decode(letter.payload, type=Order).name
        async for letter in browse(broker.backend, topic, selection)
    ]


async def again(world: World, broker: Broker, topic: Topic[Order], count: int) -> list[str]:
    script = Script()
    async with consuming(broker, topic, script):
        await script.journal.until(count)
    return [name for name, _ in script.journal.entries]


async def test_looking_changes_nothing(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a", "b", "c"))
        assert sorted(await looked(broker, topic)) == ["a", "b", "c"]
        assert sorted(await looked(broker, topic)) == ["a", "b", "c"]
        letters = [letter async for letter in browse(broker.backend, topic, ALL)]
        about = letters[0].metadata
        assert (about.reason, about.original_queue) == ("rejected", topic.queue)
        assert (about.detail or "").startswith("no ")
        assert "rejected" in repr(letters[0])


async def test_filters(world: World, clock: Clock) -> None:
    topic = skipping(world)
    async with world.broker(topic) as broker:
        found = [Order(f"{key}{n}", key) for n in range(3) for key in "xyz"]
        await bury(world, broker, topic, *found)
        of_x = LetterFilter(keys=frozenset("x"))
        assert await looked(broker, topic, of_x) == ["x0", "x1", "x2"]
        assert len(await looked(broker, topic, LetterFilter(limit=4))) == 4
        assert await looked(broker, topic, LetterFilter(reasons=frozenset(["crashed"]))) == []
        assert len(await looked(broker, topic, LetterFilter(reasons=frozenset(["rejected"])))) == 9
        assert len(await looked(broker, topic, LetterFilter(sequences=frozenset([2, 4])))) == 2
        assert await looked(broker, topic, LetterFilter(older_than=3600)) == []
        assert len(await looked(broker, topic, LetterFilter(newer_than=3600))) == 9


async def test_replayed_with_a_fresh_budget_and_deleted(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a", "b", "c"))
        dry = await replay(broker.publish_service, topic, ALL, dry_run=True)
        assert dry.done == 3
        assert len(await world.kept(broker, topic.topology.dlq)) == 3
        assert (await replay(broker.publish_service, topic, ALL)).done == 3
        assert await world.kept(broker, topic.topology.dlq) == []
        kept = await world.kept(broker, topic.queue)
        assert {m.headers["Shove-Death-Count"] for m in kept} == {"1"}
        assert not any("Shove-Retry-Count" in m.headers for m in kept)
        assert sorted(await again(world, broker, topic, 3)) == ["a", "b", "c"]
        assert (await replay(broker.publish_service, topic, ALL)).done == 0


async def test_the_order_of_a_key_is_that_of_its_messages(world: World, clock: Clock) -> None:
    """Not that in which they died: letters are stored here in the reverse order."""
    topic = skipping(world)
    async with world.broker(topic) as broker:
        found = [Order(f"{key}{n}", key) for n in range(4) for key in "xy"]
        await bury(world, broker, topic, *found)
        letters = await world.kept(broker, topic.topology.dlq)
        await purge(broker.backend, topic, ALL)
        for letter in reversed(letters):
            copied = {k: v for k, v in letter.headers.items() if k != "Nats-Msg-Id"}
            await raw_publish(broker, str(topic.topology.dlq), letter.payload, copied)
        assert (await replay(broker.publish_service, topic, ALL)).done == 8
        handled = await again(world, broker, topic, 8)
        for key in "xy":
            assert [name for name in handled if name[0] == key] == [f"{key}{n}" for n in range(4)]


async def test_letters_of_a_poisoned_key_stay(world: World, clock: Clock) -> None:
    topic = ledger(world)
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "a", "b", key="bad")
        await poison(world, broker, topic, "c", key="other")
        assert await broker.release(topic, "other")
        done = await replay(broker.publish_service, topic, ALL)
        assert (done.done, dict(done.skipped)) == (1, {POISONED: 2})
        assert done.poisoned_keys == {"bad"}
        assert await looked(broker, topic) == ["a", "b"]
        assert await again(world, broker, topic, 1) == ["c"]


async def test_the_first_that_cannot_be_published_keeps_back_its_key(
    world: World, clock: Clock
) -> None:
    topic = skipping(world)
    async with world.broker(topic) as broker:
        found = [Order(f"{key}{n}", key) for n in range(3) for key in "xy"]
        await bury(world, broker, topic, *found)
        publish = broker.publish_service.publish
        stuck = topic.topology.shard_subject(topic.shard_of("x"))
        assert stuck != topic.topology.shard_subject(topic.shard_of("y"))

        async def full(subject: str, *rest: object) -> object:
            if subject == stuck:
                raise StreamFull("the stream is full")
            return await publish(subject, *rest)  # type: ignore[arg-type]

        broker.publish_service.publish = full  # type: ignore[assignment, method-assign]
        done = await replay(broker.publish_service, topic, ALL)
        assert (done.done, done.failure) == (3, "the stream is full")
        assert dict(done.skipped) == {BEHIND: 2}
        assert await looked(broker, topic) == ["x0", "x1", "x2"]


async def test_a_death_that_a_crash_stored_twice_is_replayed_once(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a"))
        [letter] = await world.kept(broker, topic.topology.dlq)
        twin = {k: v for k, v in letter.headers.items() if k != "Nats-Msg-Id"}
        await raw_publish(broker, str(topic.topology.dlq), letter.payload, twin)
        assert (await replay(broker.publish_service, topic, ALL)).done == 2
        assert len(await world.kept(broker, topic.queue)) == 1
        assert await world.kept(broker, topic.topology.dlq) == []


async def test_what_cannot_be_replayed_stays_and_says_why(world: World, clock: Clock) -> None:
    topic = skipping(world)
    async with world.broker(topic) as broker:
        dlq = str(topic.topology.dlq)
        await raw_publish(broker, dlq, b"{}", {"Shove-Original-Queue": "elsewhere"})
        await raw_publish(broker, dlq, b"nonsense", {})
        keyless = msgspec.json.encode(Order("a", "k"))
        await raw_publish(broker, dlq, keyless, {})
        done = await replay(broker.publish_service, topic, ALL)
        assert done.done == 1  # its payload says its key
        assert dict(done.skipped) == {FOREIGN: 1, NO_KEY: 1}
        [message] = await world.kept(broker, topic.queue)
        assert message.headers["Shove-Key"] == "k"
        assert message.subject == topic.topology.shard_subject(topic.shard_of("k"))


async def test_each_goes_back_to_its_own_subject(world: World, clock: Clock) -> None:
    queue = world.fresh()
    topology = TopologyBuilder(queue).nats_subjects([f"{queue}.in.*"]).dlq().build()
    topic = Topic(Order, topology)
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"), subject=f"{queue}.in.eu")

        async def reject(order: Order) -> Outcome:
            return Outcome.REJECT

        async with consuming(broker, topic, reject):
            await world.until_kept(broker, topology.dlq, 1)
            await world.until_kept(broker, topic.queue, 0)
        await raw_publish(broker, str(topology.dlq), b"{}", {})
        done = await replay(broker.publish_service, topic, ALL)
        assert (done.done, dict(done.skipped)) == (1, {NO_SUBJECT: 1})
        [message] = await world.kept(broker, topic.queue)
        assert message.subject == f"{queue}.in.eu"


async def test_purge(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a", "b", "c"))
        one = LetterFilter(limit=1)
        assert (await purge(broker.backend, topic, one, dry_run=True)).done == 1
        assert len(await world.kept(broker, topic.topology.dlq)) == 3
        assert (await purge(broker.backend, topic, one)).done == 1
        assert (await purge(broker.backend, topic, ALL)).done == 2
        assert await world.kept(broker, topic.topology.dlq) == []


async def test_usage(world: World, clock: Clock) -> None:
    without = world.topic(lambda builder: builder.allow_message_loss())
    async with world.broker(without) as broker:
        with pytest.raises(UsageError, match=r"Add \.dlq\(\)"):
            await replay(broker.publish_service, without, ALL)
        with pytest.raises(TopicNotDeclared):
            await looked(broker, world.topic())
    for wrong in ({"limit": 0}, {"older_than": -1.0}, {"newer_than": float("nan")}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            LetterFilter(**wrong)


def test_letters_sort_by_when_their_messages_were_stored() -> None:
    def letter(sequence: int, origin: str) -> DeadLetter:
        block = f"NATS/1.0\r\nShove-Origin: {origin}\r\n\r\n".encode() if origin else None
        return DeadLetter("q-dlq", Kept(sequence, "q-dlq", b"", block, 1000 + sequence))

    # A stream that was made again: its sequences start over, its time goes on.
    later, earlier = letter(1, "2.20"), letter(2, "900.10")
    assert sorted([later, earlier], key=lambda each: each.place) == [earlier, later]
    assert letter(3, "").place == (1003, 3)


async def test_what_dies_while_it_is_looked_at_is_not_seen(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        await bury(world, broker, topic, *orders("a", "b"))
        seen = 0
        async for _ in browse(broker.backend, topic, ALL):
            seen += 1
            await raw_publish(broker, str(topic.topology.dlq), b"{}", {})
        assert seen == 2
    assert _dead_letters.queue_of(topic) == topic.topology.dlq
    await trio.lowlevel.checkpoint()
