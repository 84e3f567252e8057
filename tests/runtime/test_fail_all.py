"""FAIL_ALL: what poisons a key, who is kept from handling it, and what goes wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import (
    MemoryConfig,
    Outcome,
    PublishRefused,
    Reject,
    RequestTimeout,
    SequencedTopic,
    UsageError,
    open_broker,
)
from shove_actors.runtime import _poison

from .fixtures import Clock
from .poisoning import gate_of, ledger, orders, settled, story
from .world import Order, Script, World, ack, consuming, raw_publish

# ---------------------------------------------------------------------------- what poisons


REASONS = ["rejected", "max_retries_exceeded", "undecodable", "oversize", "foreign_header"]


@pytest.mark.parametrize("reason", REASONS)
async def test_each_final_end_poisons_its_key(world: World, clock: Clock, reason: str) -> None:
    topic = ledger(world)
    subject = topic.topology.shard_subject(0)
    script = Script(
        outcomes={"bad": [Reject(reason="no\nsuch account")]}
        if reason == "rejected"
        else {"bad": [Outcome.RETRY] * 2}
    )
    good = msgspec.json.encode(Order("bad", "k"))
    raw = {
        "undecodable": (b"{", {"Shove-Key": "k"}),
        "oversize": (b'{"name":"bad","key":"k","x":"' + b"x" * 500 + b'"}', {"Shove-Key": "k"}),
        "foreign_header": (good, {"Shove-Key": "k", "Shove-Retry-Count": "many"}),
    }
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        if reason in raw:
            await raw_publish(broker, subject, *raw[reason])
        else:
            await publisher.publish(topic, Order("bad", "k"), message_id="the-bad-one")
        for order in [*orders("2", "3"), *orders("1", "2", key="other")]:
            await publisher.publish(topic, order)
        options: dict[str, Any] = {"max_retries": 1, "retry_delay": 0.1, "max_message_size": 400}
        async with consuming(broker, topic, script, **options):
            dead = await world.until_kept(broker, topic.topology.dlq, 3)
            await settled(world, broker, topic)
        (found,) = await broker.poisoned(topic)
    assert [m.headers["Shove-Death-Reason"] for m in dead] == [
        reason,
        "sequence_failed",
        "sequence_failed",
    ]
    assert [m.headers["Shove-Original-Sequence"] for m in dead] == ["1", "2", "3"]
    for letter in dead[1:]:
        assert letter.headers["Shove-Death-Detail"] == f"message 1 of this key ended as {reason}"
        assert letter.headers["Shove-Key"] == "k"
    handled = [name for name, _ in script.journal.entries]
    assert handled == ["bad"] * {"rejected": 1, "max_retries_exceeded": 2}.get(reason, 0) + [
        "1",
        "2",
    ]
    assert (found.key, found.shard, found.reason, found.sequence) == ("k", 0, reason, 1)
    assert found.since is not None
    if reason == "rejected":
        assert found.message_id == "the-bad-one"
        assert found.cause == "reject"
        assert found.detail == "no such account"


async def test_crashed_poisons_its_key(autojump_clock: trio.testing.MockClock) -> None:
    """A message that ends its process every time takes its key along, not its neighbours."""
    world = World(iter(["q"]).__next__)
    memory = world.memory
    assert memory is not None
    topic = ledger(world)
    started: list[str] = []

    for number in range(5):
        name = f"process-{number}"

        async def handle(order: Order, name: str = name) -> Outcome:
            started.append(order.key + order.name)
            if order.name == "bad":
                memory.faults.crash(name)
                await trio.sleep_forever()
            return Outcome.ACK

        with trio.move_on_after(100):
            async with open_broker(MemoryConfig(server=memory, name=name)) as broker:
                await broker.declare(topic)
                if not number:
                    await broker.publisher().publish_batch(
                        topic, [*orders("bad", "2"), *orders("1", key="other")]
                    )
                async with consuming(broker, topic, handle, max_retries=1, ack_wait=10.0):
                    await trio.sleep(40)
        await trio.sleep(60)
    assert started == ["kbad"] * 3 + ["other1"]
    async with world.broker(topic) as broker:
        assert story(await world.kept(broker, topic.topology.dlq)) == [
            ("bad", "crashed"),
            ("2", "sequence_failed"),
        ]
        assert [found.reason for found in await broker.poisoned(topic)] == ["crashed"]


async def test_other_keys_of_the_shard_go_on(world: World, clock: Clock) -> None:
    topic = ledger(world)
    script = Script(outcomes={"a2": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        for number in range(1, 5):
            for key in "abc":
                await publisher.publish(topic, Order(f"{key}{number}", key))
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 3)
            await settled(world, broker, topic)
    handled = [name for name, _ in script.journal.entries]
    assert handled == ["a1", "b1", "c1", "a2", "b2", "c2", "b3", "c3", "b4", "c4"]


@pytest.mark.parametrize(
    "key", ["", "a.b c", "x" * 10_000, "ключ", "*", ">", "\ud800", "k-a", "%41", "tab\tnewline\n"]
)
async def test_any_key_can_be_poisoned_and_released(world: World, clock: Clock, key: str) -> None:
    topic = ledger(world)
    # JSON cannot carry a lone surrogate: the name stands for the key.
    topic = SequencedTopic(Order, key=lambda o: key, topology=topic.topology)
    script = Script(outcomes={"1": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        await publisher.publish_batch(topic, [Order("1"), Order("2")])
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 2)
            assert [found.key for found in await broker.poisoned(topic)] == [key]
            assert await broker.release(topic, key + "!") is False
            assert await broker.release(topic, key) is True
            assert await broker.release(topic, key) is False
            assert await broker.poisoned(topic) == ()
            await publisher.publish(topic, Order("3"))
            await script.journal.until(2)
    assert [name for name, _ in script.journal.entries] == ["1", "3"]


async def test_without_a_dead_letter_queue_the_rest_is_discarded(
    world: World, clock: Clock
) -> None:
    topic = ledger(world, build=lambda b: b.allow_message_loss())
    script = Script(outcomes={"1": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [*orders("1", "2"), *orders("x", key="o")])
        async with consuming(broker, topic, script) as run:
            await script.journal.until(2)
            await settled(world, broker, topic)
            assert run.group.statistics()[topic.queue]["discarded"] == 2
        assert [found.key for found in await broker.poisoned(topic)] == ["k"]
        with pytest.raises(UsageError, match="no dead-letter queue"):
            await broker.release(topic, "k", replay=True)
        assert await broker.release(topic, "k")
    assert [name for name, _ in script.journal.entries] == ["1", "x"]


# ---------------------------------------------------------------------------- foreign producers


async def test_foreign_messages_have_the_key_of_the_topics_function(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = ledger(world)
    subject, encode = topic.topology.shard_subject(0), msgspec.json.encode
    script = Script(outcomes={"2": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        for name in ("1", "2", "3"):
            await raw_publish(broker, subject, encode(Order(name, "k")))
        # Their keys cannot be had: nothing is poisoned, and said so once.
        await raw_publish(broker, subject, b"{")
        await raw_publish(broker, subject, b"{")
        await raw_publish(broker, subject, encode(Order("4", "other")))
        async with consuming(broker, topic, script):
            dead = await world.until_kept(broker, topic.topology.dlq, 4)
            await settled(world, broker, topic)
        assert [found.key for found in await broker.poisoned(topic)] == ["k"]
    assert [name for name, _ in script.journal.entries] == ["1", "2", "4"]
    assert [m.headers["Shove-Death-Reason"] for m in dead] == [
        "rejected",
        "sequence_failed",
        "undecodable",
        "undecodable",
    ]
    assert [m.headers.get("Shove-Key") for m in dead] == ["k", "k", None, None]
    assert caplog.text.count("without poisoning a key") == 1


async def test_a_key_function_that_raises_is_an_unreadable_message(
    world: World, clock: Clock
) -> None:
    topic = ledger(world)

    def key(order: Order) -> str:
        if order.name == "bad":
            raise KeyError("secret")
        return order.key

    topic = SequencedTopic(Order, key=key, topology=topic.topology)
    script = Script()
    async with world.broker(topic) as broker:
        await raw_publish(broker, topic.topology.shard_subject(0), b'{"name":"bad"}')
        await broker.publisher().publish(topic, Order("1", "k"))
        async with consuming(broker, topic, script):
            (letter,) = await world.until_kept(broker, topic.topology.dlq, 1)
            await script.journal.until(1)
        assert await broker.poisoned(topic) == ()
    assert letter.headers["Shove-Death-Reason"] == "undecodable"
    assert "KeyError" in letter.headers["Shove-Death-Detail"]
    assert "secret" not in letter.headers["Shove-Death-Detail"]


async def test_a_decoder_that_ends_the_process_does_so_once_more_and_is_found_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A foreign message without its key, whose payload kills whoever decodes it.

    Convicted of crashing, it has to be decoded for its key, which kills once more. That was noted,
    so the next process does not try again.
    """
    world = World(iter(["q"]).__next__)
    memory = world.memory
    assert memory is not None
    plain = ledger(world)
    decoded: list[str] = []
    current = ""

    class Deadly:
        def encode(self, message: Order) -> bytes:
            return msgspec.json.encode(message)

        def decode(self, payload: bytes) -> Order:
            if b"bad" in payload:
                decoded.append(current)
                memory.faults.crash(current)
                raise ValueError
            return msgspec.json.decode(payload, type=Order)

    topic = SequencedTopic(Order, key=lambda o: o.key, topology=plain.topology, codec=Deadly())
    for number in range(6):
        current = f"process-{number}"
        with trio.move_on_after(100):
            async with open_broker(MemoryConfig(server=memory, name=current)) as broker:
                await broker.declare(topic)
                if not number:
                    await raw_publish(broker, topic.topology.shard_subject(0), b'{"name":"bad"}')
                async with consuming(broker, topic, ack, max_retries=1, ack_wait=10.0):
                    await trio.sleep(40)
        await trio.sleep(60)
    # Twice, once under suspicion, once for the key. (The model's dead processes run on a little.)
    assert sorted(set(decoded)) == [f"process-{number}" for number in range(4)]
    async with world.broker(topic) as broker:
        (letter,) = await world.kept(broker, topic.topology.dlq)
        assert letter.headers["Shove-Death-Reason"] == "crashed"
        assert await broker.poisoned(topic) == ()


# ---------------------------------------------------------------------------- trouble


async def test_a_record_that_cannot_be_written_keeps_the_message(
    memory_world: World, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    script = Script(outcomes={"bad": [Outcome.REJECT] * 100})
    async with memory_world.broker(topic) as broker:
        bucket = f"KV_{topic.queue}-poison"
        memory.faults.refuse_publish(bucket, PublishRefused("no room"))
        await broker.publisher().publish_batch(topic, [*orders("bad", "2"), Order("1", "other")])
        async with consuming(broker, topic, script) as run:
            await trio.sleep(120)
            assert {name for name, _ in script.journal.entries} == {"bad"}
            assert 4 <= len(script.journal) <= 12, "a growing pause, no hot loop"
            assert await memory_world.kept(broker, topic.topology.dlq) == []
            assert run.group.statistics()[topic.queue]["stuck"] == len(script.journal)
            assert await broker.poisoned(topic) == ()
            memory.faults.accept_publish(bucket)
            letters = await memory_world.until_kept(broker, topic.topology.dlq, 2)
    assert story(letters) == [("bad", "rejected"), ("2", "sequence_failed")]
    assert script.journal.entries[-1][0] == "1"
    assert "could not be moved on" in caplog.text


async def test_a_full_dead_letter_queue_calls_the_handler_once(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The record is there, so what was decided is gone on with: no second attempt."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    dlq = topic.topology.dlq
    assert dlq is not None
    script = Script(outcomes={"bad": [Reject(reason="why")]})
    async with memory_world.broker(topic) as broker:
        memory.faults.refuse_publish(dlq, PublishRefused("no permission"))
        await broker.publisher().publish_batch(topic, orders("bad", "2"))
        async with consuming(broker, topic, script, max_retries=1):
            await trio.sleep(300)
            assert script.attempts("bad") == [0]
            memory.faults.accept_publish(dlq)
            letters = await memory_world.until_kept(broker, dlq, 2)
    assert story(letters) == [("bad", "rejected"), ("2", "sequence_failed")]
    assert letters[0].headers["Shove-Death-Detail"] == "why"
    assert letters[0].headers["Shove-Death-Cause"] == "reject"
    assert script.attempts("bad") == [0]


async def test_what_cannot_be_looked_up_waits_and_costs_nothing(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = ledger(memory_world)
    script = Script()
    async with memory_world.broker(topic) as broker:
        read, failures = broker.backend.read_mark, iter(range(6))

        async def flaky(queue: str, name: str) -> Any:
            if next(failures, None) is not None:
                raise RequestTimeout("no answer")
            return await read(queue, name)

        monkeypatch.setattr(broker.backend, "read_mark", flaky)
        await broker.publisher().publish_batch(topic, orders("1", "2"))
        async with consuming(broker, topic, script, max_retries=2):
            await script.journal.until(2, within=200)
            await settled(memory_world, broker, topic)
        assert await memory_world.kept(broker, topic.topology.dlq) == []
    assert script.journal.entries == [("1", 0), ("2", 0)]


async def test_reading_is_rare_within_a_tenure_and_memory_is_bounded(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_poison, "REMEMBERED", 3)
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        names = [Order(str(n), f"key-{n % 3}") for n in range(30)]
        await broker.publisher().publish_batch(topic, names)
        async with consuming(broker, topic, script) as run:
            await script.journal.until(30)
            gate = gate_of(run)
            assert gate.reads == 3
            await broker.publisher().publish_batch(
                topic, [Order(str(n), f"more-{n}") for n in range(10)]
            )
            await script.journal.until(40)
            assert gate.reads == 13
            assert len(gate._clean) == 3
            # The least recently used went first.
            await broker.publisher().publish(topic, Order("again", "more-9"))
            await broker.publisher().publish(topic, Order("again", "key-0"))
            await script.journal.until(42)
            assert gate.reads == 14


async def test_a_key_in_another_lane_is_looked_up_every_time(world: World, clock: Clock) -> None:
    """A foreign producer's mistake: who holds messages of the key's own lane may poison it."""
    topic = ledger(world, shards=2)
    wrong = topic.topology.shard_subject(1 - topic.shard_of("k"))
    script = Script()
    async with world.broker(topic) as broker:
        for name in ("1", "2", "3"):
            await raw_publish(
                broker, wrong, msgspec.json.encode(Order(name, "k")), {"Shove-Key": "k"}
            )
        async with consuming(broker, topic, script) as run:
            await script.journal.until(3)
            assert gate_of(run).reads == 3


async def test_a_redelivery_is_not_what_a_key_is_known_by(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """It was in other hands before. Whatever they decided may be on its way still."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    started, script = trio.Event(), Script()

    async def hang(order: Order) -> Outcome:
        started.set()
        await trio.sleep_forever()
        raise AssertionError

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, orders("1", "2", "3"))
        with trio.move_on_after(60):
            async with open_broker(MemoryConfig(server=memory, name="A")) as one:
                async with consuming(one, topic, hang, ack_wait=10.0):
                    await started.wait()
                    memory.faults.crash("A")
                    await trio.sleep(1)
                    async with consuming(broker, topic, script, ack_wait=10.0) as run:
                        await script.journal.until(3)
                        assert gate_of(run).reads == 2
    assert [name for name, _ in script.journal.entries] == ["1", "2", "3"]
