"""Publishing: coalescing, back-pressure, cancellation, and what is refused."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from shove_actors import (
    EncodeError,
    MemoryConfig,
    MessageTooLarge,
    Outcome,
    PublishReceipt,
    SequencedTopic,
    TopologyError,
    UsageError,
    open_broker,
)

from .fixtures import Clock
from .posts import count_posts, ledger
from .world import Order, Script, World, consuming, raw_publish

# ------------------------------------------------------------------ coalescing, back-pressure


async def test_concurrent_publishes_make_few_writes(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        publisher, sizes = broker.publisher(), count_posts(broker)
        receipts: list[PublishReceipt] = []

        async def one(number: int) -> None:
            receipts.append(await publisher.publish(topic, Order(str(number))))

        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(one, number)
        assert sum(sizes) == 1000
        assert len(sizes) <= 20
        assert sorted(receipt.sequence for receipt in receipts) == list(range(1, 1001))
        kept = await world.kept(broker, topic.queue)
        assert len({message.headers["Nats-Msg-Id"] for message in kept}) == 1000


async def test_a_lonely_publish_waits_for_no_batch(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        before = trio.current_time()
        for number in range(10):
            await broker.publisher().publish(topic, Order(str(number)))
        assert trio.current_time() == before


async def test_at_most_max_pending_are_unacknowledged(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config, max_pending=3) as broker:
        await broker.declare(topic)
        sizes, done = count_posts(broker), 0

        async def one(number: int) -> None:
            nonlocal done
            await broker.publisher().publish(topic, Order(str(number)))
            done += 1

        memory_world.memory.faults.stall("me")
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(one, number)
            await trio.sleep(0.1)
            assert (sum(sizes), done) == (3, 0)
            memory_world.memory.faults.unstall("me")
        assert done == 10
        assert broker.publish_service.window.taken == 0


# ------------------------------------------------------------------ cancellation


async def test_cancelled_while_waiting_for_room_has_sent_nothing(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config, max_pending=1) as broker:
        await broker.declare(topic)
        publisher = broker.publisher()
        memory_world.memory.faults.stall("me")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.publish, topic, Order("first"))
            await trio.sleep(0.1)
            with trio.move_on_after(0.1):
                await publisher.publish(topic, Order("never"))
            memory_world.memory.faults.unstall("me")
        assert broker.publish_service.window.taken == 0
        [only] = await memory_world.kept(broker, topic.queue)
        assert b"first" in only.payload


async def test_cancelled_while_waiting_for_the_answer_is_sent_once(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config) as broker:
        await broker.declare(topic)
        memory_world.memory.faults.stall("me")
        with trio.move_on_after(0.1) as scope:
            await broker.publisher().publish(topic, Order("sent"))
        assert scope.cancelled_caught
        memory_world.memory.faults.unstall("me")
        await trio.sleep(20)
        assert broker.publish_service.window.taken == 0
        assert broker.publish_service.idle
        assert len(await memory_world.kept(broker, topic.queue)) == 1


@pytest.mark.parametrize("seed", range(5))
async def test_any_cancellations_leak_no_place_and_split_no_message(
    memory_world: World, autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    assert memory_world.memory is not None
    rng = random.Random(seed)
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    told: set[str] = set()
    async with open_broker(config, max_pending=4) as broker:
        await broker.declare(topic)

        async def one(number: int, patience: float) -> None:
            with trio.move_on_after(patience):
                await broker.publisher().publish(topic, Order(str(number)))
                told.add(str(number))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one, number, rng.random())
                if number % 10 == 0:
                    memory_world.memory.faults.stall("me")
                    await trio.sleep(rng.random() / 2)
                    memory_world.memory.faults.unstall("me")
                    await trio.lowlevel.checkpoint()
        await trio.sleep(20)
        assert broker.publish_service.window.taken == 0
        assert broker.publish_service.idle
        kept = await memory_world.kept(broker, topic.queue)
    stored = [topic.decode(message.payload).name for message in kept]
    assert len(stored) == len(set(stored))
    assert told <= set(stored)


# ------------------------------------------------------------------ what the caller did wrong


async def test_wrong_messages_are_refused_before_anything_is_sent(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sequenced = memory_world.topic(), ledger(memory_world)
    broken = SequencedTopic(Order, key=lambda o: o.nothing, topology=sequenced.topology)  # type: ignore[attr-defined]
    number = SequencedTopic(Order, key=lambda o: 7, topology=sequenced.topology)  # type: ignore[arg-type, return-value]
    async with memory_world.broker(topic, sequenced) as broker:
        publisher, sizes = broker.publisher(), count_posts(broker)
        with pytest.raises(TypeError):
            await publisher.publish(topic, "no order")  # type: ignore[arg-type]
        with pytest.raises(EncodeError):
            await publisher.publish_batch(topic, [Order("well"), 7])  # type: ignore[list-item]
        with pytest.raises(TopologyError):
            await publisher.publish(topic, Order("x"), subject="another")
        with pytest.raises(TopologyError):
            await publisher.publish(sequenced, Order("x"), subject="another")
        with pytest.raises(AttributeError):
            await publisher.publish(broken, Order("x"))
        with pytest.raises(UsageError):
            await publisher.publish(number, Order("x"))
        with pytest.raises(UsageError, match="max_pending=0"):
            publisher.pipeline(topic, max_pending=0)
        assert sizes == []
        assert broker.publish_service.window.taken == 0
        # An empty key is a key.
        receipt = await publisher.publish(sequenced, Order("x", ""))
        assert receipt.sequence == 1


@pytest.mark.parametrize(
    "options", [{"max_pending": 0}, {"publish_timeout": 0}, {"publish_timeout": -1.0}]
)
async def test_options_that_cannot_work(memory_world: World, options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        async with memory_world.broker(**options):
            pass


async def test_a_literal_subject_among_several(world: World, clock: Clock) -> None:
    name = world.fresh()
    topic = world.topic(lambda b: b.nats_subjects([f"{name}.a", f"{name}.b.>"]).dlq())
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        await publisher.publish(topic, Order("default"))
        await publisher.publish(topic, Order("chosen"), subject=f"{name}.b.x.y")
        kept = await world.kept(broker, topic.queue)
    assert [message.subject for message in kept] == [f"{name}.a", f"{name}.b.x.y"]


# ------------------------------------------------------------------ the limit of header blocks


@pytest.mark.parametrize("what", ["header", "message_id"])
async def test_headers_beyond_what_a_stream_stores_are_refused_before_sending(
    world: World, clock: Clock, what: str
) -> None:
    """JetStream stores 64 KiB of headers (10097), however large `max_payload` is."""
    topic = world.topic(lambda b: b.hold_queue(0.05).dlq())
    async with world.broker(topic) as broker:
        publisher, sizes = broker.publisher(), count_posts(broker)

        async def publish(size: int) -> None:
            if what == "header":
                await publisher.publish(topic, Order("x"), headers={"X-Large": "v" * size})
            else:
                await publisher.publish(topic, Order("x"), message_id="i" * size)

        async def send(size: int) -> None:
            async with publisher.pipeline(topic) as pipe:
                if what == "header":
                    await pipe.send(Order("x"), headers={"X-Large": "v" * size})
                else:
                    await pipe.send(Order("x"), message_id="i" * size)

        for size in (70_000, 65_536, 65_450) if what == "header" else (70_000, 40_000, 32_700):
            with pytest.raises(MessageTooLarge, match=r"65,535.*64 KiB") as caught:
                await publish(size)
            assert caught.value.stored is False
            assert topic.queue in str(caught.value)
            with pytest.raises(MessageTooLarge):
                await send(size)
        assert sizes == []


@pytest.mark.parametrize("what", ["header", "message_id"])
async def test_largest_headers_accepted_can_be_retried_and_buried(
    server_world: World, what: str
) -> None:
    topic = server_world.topic(lambda b: b.hold_queue(0.05).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY, Outcome.REJECT]})
    async with server_world.broker(topic) as broker:
        size = 65_000
        while True:
            text = "v" * size
            try:
                if what == "header":
                    await broker.publisher().publish(topic, Order("x"), headers={"X-Large": text})
                else:
                    await broker.publisher().publish(topic, Order("x"), message_id=text)
                break
            except MessageTooLarge:
                size -= 64
        assert size > 30_000
        async with consuming(broker, topic, script):
            [dead] = await server_world.until_kept(broker, topic.topology.dlq, 1)
            await server_world.until_kept(broker, topic.queue, 0)
    assert script.attempts("x") == [0, 1]
    assert dead.headers["Shove-Death-Reason"] == "rejected"


async def test_foreign_headers_that_cannot_grow_are_buried_without_them(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    script = Script(outcomes={"x": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        large = {"X-Large": "v" * 65_450}
        await raw_publish(broker, topic.queue, b'{"name":"x"}', large)
        async with consuming(broker, topic, script):
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
            await world.until_kept(broker, topic.queue, 0)
    assert dead.payload == b'{"name":"x"}'
    assert dead.headers["Shove-Death-Reason"] == "rejected"
    assert dead.headers["Shove-Original-Queue"] == topic.queue
    assert "X-Large" not in dead.headers
    assert len(script.journal) == 1
