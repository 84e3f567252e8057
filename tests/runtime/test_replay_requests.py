"""Requests to replay a key that are not what they should be: misplaced, late, or read by others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import (
    Broker,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    TopologyError,
)
from shove_actors.messaging import Control, control_headers, encode_headers, origin_of
from shove_actors.runtime._poison import PoisonBook

from .fixtures import Clock
from .poisoning import ledger, orders, settled, story
from .replaying import names, poison, until_released
from .world import Journal, Order, Script, World, burying, consuming, raw_publish


def with_shards(topic: SequencedTopic[Order], shards: int) -> SequencedTopic[Order]:
    builder = TopologyBuilder(topic.queue).sequenced(SequenceFailure.FAIL_ALL)
    topology = builder.routing_shards(shards).hold_queue(0.2).dlq().build()
    return SequencedTopic(Order, key=topic.key_of, topology=topology)


def skipping(topic: SequencedTopic[Order]) -> SequencedTopic[Order]:
    """The same queue, in a program that says SKIP."""
    builder = TopologyBuilder(topic.queue).sequenced(SequenceFailure.SKIP)
    topology = builder.routing_shards(1).hold_queue(0.2).dlq().build()
    return SequencedTopic(Order, key=topic.key_of, topology=topology)


def moving_key(one: SequencedTopic[Order], other: SequencedTopic[Order]) -> str:
    """One that the two numbers of shards put into different lanes that both have."""
    return next(
        key
        for key in (f"k{n}" for n in range(1000))
        if one.shard_of(key) != other.shard_of(key) < one.topology.routing_shards
    )


async def request_for(broker: Broker, topic: SequencedTopic[Order], key: str) -> bytes:
    """The header block of a request to replay, as `release` makes it now."""
    entry = await PoisonBook(broker.backend, topic.queue).find(key)
    return encode_headers(
        control_headers(Control.REPLAY, key=key, poisoning=entry.poisoning, message_id="by-hand")
    )


# ---------------------------------------------------------------------------- misplaced


async def test_release_by_a_program_with_another_number_of_shards_is_refused(
    world: World, clock: Clock
) -> None:
    """It would replay in one lane while the key goes on in another."""
    topic = ledger(world, shards=8)
    old = with_shards(topic, 2)
    key = moving_key(topic, old)
    script = Script()
    async with world.broker(topic) as broker, world.broker() as other:
        await poison(world, broker, topic, "1", "2", key=key)
        with pytest.raises(TopologyError, match=r"has 8 shards.*routing_shards\(2\)"):
            await other.release(old, key, replay=True)
        assert await world.kept(broker, topic.queue) == []
        assert [found.key for found in await broker.poisoned(topic)] == [key]
        assert await broker.release(topic, key, replay=True)
        async with consuming(broker, topic, script):
            await until_released(broker, topic)
    assert names(script) == ["1", "2"]


async def test_a_request_in_another_lane_than_its_keys_is_dropped(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = ledger(world, shards=8)
    key = moving_key(topic, with_shards(topic, 2))
    wrong = topic.topology.shard_subject((topic.shard_of(key) + 1) % 8)
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2", key=key)
        await raw_publish(broker, wrong, b"", block=await request_for(broker, topic, key))
        async with consuming(broker, topic, script):
            await settled(world, broker, topic)
            assert [found.key for found in await broker.poisoned(topic)] == [key]
            assert await broker.release(topic, key, replay=True)
            await until_released(broker, topic)
    assert names(script) == ["1", "2"]
    assert caplog.text.count("not the lane of its key") == 1
    assert "routing_shards()" in caplog.text


# ---------------------------------------------------------------------------- late


async def test_a_request_for_an_earlier_poisoning_is_dropped(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Asked for a replay, then released without one; then the key was poisoned by another one."""
    topic = ledger(world)
    script = Script(outcomes={"bad": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2")
        await broker.publisher().publish_batch(topic, orders("bad", "3"))
        assert await broker.release(topic, "k", replay=True)
        assert await broker.release(topic, "k")
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 4)
            await settled(world, broker, topic)
            (found,) = await broker.poisoned(topic)
            assert found.sequence == 3
            assert names(script) == ["bad"], "nobody has looked at that one yet"
            # Asked for again, and meant.
            assert await broker.release(topic, "k", replay=True)
            await until_released(broker, topic)
        left = await world.kept(broker, topic.topology.dlq)
    assert names(script) == ["bad", "bad", "3"]
    assert [name for name, _ in story(left)] == ["1", "2"]
    assert caplog.text.count("released and poisoned again since it was sent") == 1


async def test_a_request_of_the_same_poisoning_counts_although_a_replay_has_stopped_since(
    world: World, clock: Clock
) -> None:
    """Two requests, both made before either was carried out: the second goes on."""
    topic = ledger(world)
    script = Script(outcomes={"2": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2", "3")
        assert await broker.release(topic, "k", replay=True)
        block = await request_for(broker, topic, "k")
        await raw_publish(broker, topic.topology.shard_subject(0), b"", block=block)
        async with consuming(broker, topic, script):
            await until_released(broker, topic)
    assert names(script) == ["1", "2", "2", "3"]


async def test_a_bucket_made_anew_does_not_revive_a_request(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Its revisions start over: the name of a poisoning has the store time of its message, too."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    script = Script(outcomes={"bad": [Outcome.REJECT]})
    async with memory_world.broker(topic) as broker:
        await poison(memory_world, broker, topic, "1")
        first = await PoisonBook(broker.backend, topic.queue).find("k")
        await broker.publisher().publish(topic, Order("bad", "k"))
        assert await broker.release(topic, "k", replay=True)
        memory.marks.delete(topic.queue)
        await trio.sleep(1)
        async with consuming(broker, topic, script):
            await memory_world.until_kept(broker, topic.topology.dlq, 2)
            await settled(memory_world, broker, topic)
        again = await PoisonBook(broker.backend, topic.queue).find("k")
        assert again.revision == first.revision
    assert names(script) == ["bad"]


# ---------------------------------------------------------------------------- read by others


async def test_programs_that_disagree_about_failed_keys_are_refused(
    world: World, clock: Clock
) -> None:
    topic = ledger(world)
    other = skipping(topic)
    async with world.broker(topic) as broker, world.broker() as elsewhere:
        for attempt in range(2):
            with pytest.raises(TopologyError, match=r"says SequenceFailure\.SKIP.*nats kv del"):
                await (broker, elsewhere)[attempt].declare(other)
        group = elsewhere.consumer_group()
        group.register(other, Script())
        with pytest.raises(TopologyError, match=r"FAIL_ALL\) here too"):
            await group.serve()
        await broker.declare(topic)


async def test_the_way_back_to_skip_is_to_delete_the_bucket(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2")
        await delete_bucket(world, broker, topic)
        other = skipping(topic)
        await broker.declare(other)
        await broker.publisher().publish(other, Order("3", "k"))
        async with consuming(broker, other, script):
            await script.journal.until(1)
        assert "had no bucket" not in caplog.text
        # And FAIL_ALL again: programs that say SKIP may still run, and cannot be seen.
        await broker.declare(topic)
        await broker.declare(topic)
    assert names(script) == ["3"]
    assert caplog.text.count("had no bucket") == 1


async def delete_bucket(world: World, broker: Broker, topic: SequencedTopic[Order]) -> None:
    if world.memory is not None:
        world.memory.marks.delete(topic.queue)
    else:
        await world.delete_stream(broker, f"KV_{topic.topology.poison_bucket}")


@pytest.mark.parametrize("empty", [True, False])
async def test_a_consumer_without_fail_all_neither_decodes_nor_handles_a_request(
    world: World, clock: Clock, empty: bool
) -> None:
    """One that ran already when the topic became FAIL_ALL. Also if it looks like a message."""
    decoded: list[bytes] = []

    class Noting:
        def encode(self, message: Order) -> bytes:
            return msgspec.json.encode(message)

        def decode(self, payload: bytes) -> Order:
            decoded.append(payload)
            return msgspec.json.decode(payload, type=Order)

    topic = ledger(world)
    plain = skipping(topic)
    other = SequencedTopic(Order, key=plain.key_of, topology=plain.topology, codec=Noting())
    script, dead = Script(), Script()
    payload = b"" if empty else msgspec.json.encode(Order("x", "k"))
    block = encode_headers(
        control_headers(Control.REPLAY, key="k", poisoning="1.0", message_id="by-hand")
    )
    async with world.broker(other) as broker:
        await raw_publish(broker, topic.topology.shard_subject(0), payload, block=block)
        await broker.publisher().publish(other, Order("1", "k"))
        async with consuming(broker, other, script):
            await script.journal.until(1)
            (letter,) = await world.until_kept(broker, topic.topology.dlq, 1)
        assert letter.headers["Shove-Death-Reason"] == "foreign_header"
        assert "does not obey" in letter.headers["Shove-Death-Detail"]
        # Nor is it a dead letter of the topic's messages.
        async with burying(broker, other, dead) as run:
            await world.until_settled(broker, str(topic.topology.dlq))
            assert run.group.statistics()[str(topic.topology.dlq)]["kept"] == 1
        assert len(await world.kept(broker, topic.topology.dlq)) == 1
    assert names(script) == ["1"]
    assert names(dead) == []
    assert decoded == [msgspec.json.encode(Order("1", "k"))]


async def test_a_dead_letter_that_was_a_request_does_not_stop_a_replay(
    world: World, clock: Clock
) -> None:
    topic = ledger(world)
    script = Script()
    unknown = {"Shove-Control": "of-a-later-version", "Shove-Key": "k"}
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1")
        await raw_publish(broker, topic.topology.shard_subject(0), b"", unknown)
        await broker.publisher().publish(topic, Order("2", "k"))
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 3)
            assert await broker.release(topic, "k", replay=True)
            await until_released(broker, topic)
        (left,) = await world.kept(broker, topic.topology.dlq)
    assert names(script) == ["1", "2"]
    assert left.headers["Shove-Control"] == "of-a-later-version"


async def test_a_request_that_others_have_swallowed_can_be_made_again(
    world: World, clock: Clock
) -> None:
    """Its id is that of the first one, which is gone: `release` may not say that all is well."""
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2")
        assert await broker.release(topic, "k", replay=True)
        request = await broker.backend.next_message(topic.queue, 1)
        assert request is not None
        # As a consumer does that does not know it.
        assert await broker.backend.delete_message(topic.queue, request.sequence)
        assert await broker.release(topic, "k", replay=True)
        assert await broker.release(topic, "k", replay=True)
        assert len(await world.kept(broker, topic.queue)) == 1
        async with consuming(broker, topic, script):
            await until_released(broker, topic)
    assert names(script) == ["1", "2"]


# ---------------------------------------------------------------------------- where to look


@pytest.mark.parametrize("anew", [False, True])
async def test_letters_are_looked_for_behind_where_the_queue_ended(
    world: World, clock: Clock, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless that was another stream: its sequences mean nothing in this one."""
    topic = ledger(world)
    dlq = str(topic.topology.dlq)
    script, first = Script(), Journal[int]()
    async with world.broker(topic) as broker:
        for number in range(3):
            await raw_publish(broker, dlq, b"%d" % number)
        await poison(world, broker, topic, "1", "2")
        if anew:
            await world.delete_stream(broker, dlq)
            await broker.declare(topic)
            async with consuming(broker, topic, script):
                await broker.publisher().publish_batch(topic, orders(*map(str, range(3, 9))))
                await world.until_kept(broker, dlq, 6)
        read = broker.backend.next_messages

        async def noting(stream: str, sequence: int) -> Any:
            first.add(sequence)
            return await read(stream, sequence)

        monkeypatch.setattr(broker.backend, "next_messages", noting)
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, script):
            await until_released(broker, topic)
    assert first.entries[0] == (1 if anew else 4)
    assert names(script) == ([*map(str, range(3, 9))] if anew else ["1", "2"])


async def test_a_stale_note_that_a_replay_has_failed_does_not_stop_it(
    world: World, clock: Clock
) -> None:
    """It was on its way when its writer lost the lease. Whoever has the request since has handled
    that letter, and could not remove the record because it had changed."""
    topic = ledger(world)
    dlq = topic.topology.dlq
    assert dlq is not None
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2", "3")
        assert await broker.release(topic, "k", replay=True)
        request = await broker.backend.next_message(topic.queue, 1)
        assert request is not None
        book = PoisonBook(broker.backend, topic.queue)
        entry = await book.find("k")
        assert entry.record is not None
        stale = msgspec.structs.replace(
            entry.record,
            replay=origin_of(request.sequence, request.timestamp_ns),
            began=entry.poisoning,
        )
        assert await book.put("k", stale, entry.revision)
        first, *_ = await world.kept(broker, dlq)
        await broker.backend.delete_message(dlq, first.sequence)
        async with consuming(broker, topic, script):
            await until_released(broker, topic)
            await settled(world, broker, topic)
        assert await world.kept(broker, dlq) == []
    assert names(script) == ["2", "3"]
