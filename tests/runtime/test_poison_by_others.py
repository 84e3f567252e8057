"""FAIL_ALL: a key that was poisoned by somebody who held no message of its lane.

An operator writes the record by hand; or a foreign producer has put a message of the key into
another lane, and whoever holds that one poisons it. The consumer that has handled messages of the
key before believes it to be clean, and must hear of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import Broker, MemoryConfig, Outcome, SequencedTopic, open_broker
from shove_actors.backends import Mark
from shove_actors.backends.nats import NatsBackend
from shove_actors.messaging import mark_name

from .fixtures import Clock
from .poisoning import gate_of, ledger, orders, settled, story
from .replaying import names
from .world import Journal, Order, Script, World, consuming, raw_publish


async def mark(broker: Broker, topic: SequencedTopic[Order], key: str) -> None:
    """As `nats kv put q-poison k-KEY ...` does, from another process."""
    found = await broker.backend.read_mark(topic.queue, mark_name(key))
    assert await broker.backend.write_mark(
        topic.queue, mark_name(key), b"see ticket 17", revision=found.revision
    )


async def test_a_key_marked_by_hand_is_not_handled_by_who_knows_it_as_clean(
    world: World, clock: Clock
) -> None:
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker, world.broker() as operator:
        async with consuming(broker, topic, script) as run:
            publisher = operator.publisher()
            for round_ in range(5):
                before = len(script.journal)
                await publisher.publish_batch(topic, orders("1", "2", "3"))
                await script.journal.until(before + 3)
                gate, reads = gate_of(run), gate_of(run).reads
                await mark(operator, topic, "k")
                await publisher.publish_batch(topic, orders("never", "never"))
                await publisher.publish(topic, Order("other", "o"))
                await script.journal.until(before + 4)
                assert gate.reads > reads
                assert await operator.release(topic, "k")
                letters = await world.kept(broker, topic.topology.dlq)
                assert len(letters) == 2 * (round_ + 1)
    assert names(script) == ["1", "2", "3", "other"] * 5
    assert set(story(letters)) == {("never", "sequence_failed")}


async def test_a_key_poisoned_in_a_wrong_lane_is_poisoned_in_its_own(
    world: World, clock: Clock
) -> None:
    """Two processes, one for each lane's message; the second one's knowledge is out of date."""
    topic = ledger(world, shards=2)
    wrong = topic.topology.shard_subject(1 - topic.shard_of("k"))
    script = Script(outcomes={"bad": [Outcome.REJECT]})
    headers = {"Shove-Key": "k"}
    async with world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("1", "k"))
            await script.journal.until(1)
            await raw_publish(broker, wrong, msgspec.json.encode(Order("bad", "k")), headers)
            await world.until_kept(broker, topic.topology.dlq, 1)
            await broker.publisher().publish(topic, Order("2", "k"))
            await world.until_kept(broker, topic.topology.dlq, 2)
    assert names(script) == ["1", "bad"]


async def test_what_was_read_before_an_announcement_is_not_remembered(
    memory_world: World, autojump_clock: trio.testing.MockClock, monkeypatch: Any
) -> None:
    """The answer "clean" is on its way when the announcement comes: it is out of date."""
    topic = ledger(memory_world)
    script = Script()
    async with memory_world.broker(topic) as broker, memory_world.broker() as operator:
        read = broker.backend.read_mark
        raced = False

        async def slowly(queue: str, name: str) -> Mark:
            nonlocal raced
            found = await read(queue, name)
            if not raced:
                raced = True
                await mark(operator, topic, "k")
                await trio.sleep(0.1)  # the announcement overtakes the answer
            return found

        monkeypatch.setattr(broker.backend, "read_mark", slowly)
        async with consuming(broker, topic, script):
            await operator.publisher().publish_batch(topic, orders("1", "2", "3"))
            await memory_world.until_kept(broker, topic.topology.dlq, 2)
    assert names(script) == ["1"]


async def test_nothing_is_believed_after_a_time_without_a_connection(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Announcements of that time are not heard."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    script = Script()
    async with (
        open_broker(MemoryConfig(server=memory, name="A")) as broker,
        memory_world.broker(topic) as operator,
    ):
        async with consuming(broker, topic, script, ack_wait=10.0):
            await operator.publisher().publish(topic, Order("1", "k"))
            await script.journal.until(1)
            memory.faults.disconnect("A")
            await mark(operator, topic, "k")
            memory.faults.reconnect("A")
            await operator.publisher().publish(topic, Order("2", "k"))
            await memory_world.until_kept(operator, topic.topology.dlq, 1)
    assert names(script) == ["1"]


async def test_who_has_ended_hears_nothing_any_more(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    async with memory_world.broker(topic) as broker:
        for number in range(3):
            async with consuming(broker, topic, Script()) as run:
                await settled(memory_world, broker, topic)
                news = gate_of(run)._news
                await mark(broker, topic, f"k{number}")
                await trio.sleep(1)
                assert gate_of(run)._news == news + 1
        await mark(broker, topic, "later")
        await trio.sleep(1)
        assert gate_of(run)._news == news + 1
        assert memory.marks._watchers[topic.queue] == []


async def test_who_loses_the_lease_while_it_poisons_writes_no_letter(
    memory_world: World, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of its key was on the wire when its lease ended, and somebody else acknowledged
    the message meanwhile. A letter of it would be handled again by a replay, out of turn."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    runs: Journal[tuple[str, str]] = Journal()

    def handler(who: str, outcome: Outcome) -> Callable[[Order], Awaitable[Outcome]]:
        async def handle(order: Order) -> Outcome:
            runs.add((who, order.name))
            return outcome

        return handle

    async with (
        memory_world.broker(topic) as two,
        open_broker(memory_world.config(name="one")) as one,
    ):
        write = one.backend.write_mark
        written = trio.Event()

        async def late(queue: str, name: str, value: bytes | None, *, revision: int) -> bool:
            memory.faults.stall("one", "up")
            await runs.until(2)
            memory.faults.unstall("one")
            done = await write(queue, name, value, revision=revision)
            written.set()
            return done

        monkeypatch.setattr(one.backend, "write_mark", late)
        async with consuming(one, topic, handler("A", Outcome.REJECT), ack_wait=2.0):
            await two.publisher().publish(topic, Order("1", "k"))
            await runs.until(1)
            async with consuming(two, topic, handler("B", Outcome.ACK), ack_wait=2.0):
                with trio.fail_after(60):
                    await written.wait()
                await trio.sleep(30)
        assert runs.entries == [("A", "1"), ("B", "1")]
        assert await memory_world.kept(two, topic.queue) == []
        assert await memory_world.kept(two, topic.topology.dlq) == []
        assert [found.key for found in await two.poisoned(topic)] == ["k"], "on the safe side"


@pytest.mark.slow
async def test_a_bucket_that_is_deleted_under_its_watchers_is_made_again(
    server_world: World,
) -> None:
    """Consumers watch the bucket, which is interest in its subjects: to a write, nobody answers,
    and the server does not say so. The shard stood still for ever."""
    topic = ledger(server_world)
    script = Script(outcomes={"bad": [Outcome.REJECT] * 9})
    async with server_world.broker(topic) as broker:
        assert isinstance(broker.backend, NatsBackend)
        async with consuming(broker, topic, script):
            await broker.backend.js.delete_stream(f"KV_{topic.queue}-poison")
            await broker.publisher().publish_batch(topic, orders("bad", "2"))
            letters = await server_world.until_kept(broker, topic.topology.dlq, 2)
            assert [found.key for found in await broker.poisoned(topic)] == [orders("bad")[0].key]
    assert story(letters) == [("bad", "rejected"), ("2", "sequence_failed")]
    assert [name for name, _ in script.journal.entries] == ["bad"]
