"""Batches and pipelines: the truth about each message."""

from __future__ import annotations

import sys

import pytest
import trio
import trio.testing

from shove_actors import (
    BatchError,
    MemoryConfig,
    PublishError,
    PublishReceipt,
    PublishRefused,
    StreamFull,
    open_broker,
)
from shove_actors._errors import NoResponders

from .fixtures import Clock
from .world import Order, World

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup
from .posts import ledger

# ------------------------------------------------------------------ batches


async def test_batch_is_stored_in_order(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic, max_pending=16) as broker:
        orders = [Order(str(n)) for n in range(100)]
        receipts = await broker.publisher().publish_batch(topic, orders)
        assert [receipt.sequence for receipt in receipts] == list(range(1, 101))
        kept = await world.kept(broker, topic.queue)
        assert [topic.decode(m.payload).name for m in kept] == [str(n) for n in range(100)]
        assert await broker.publisher().publish_batch(topic, []) == []


async def test_batch_tells_which_messages_were_stored(world: World, clock: Clock) -> None:
    """SW-52: what is stored is not forgotten because something else failed."""
    from shove_actors import NatsStreamConfig

    topic = world.topic(lambda b: b.nats_stream_config(NatsStreamConfig(max_messages=2)).dlq())
    async with world.broker(topic) as broker:
        with pytest.raises(BatchError, match="2 of 4") as caught:
            await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(4)])
        kept = await world.kept(broker, topic.queue)
        results = caught.value.results
        assert [type(result) for result in results] == [
            PublishReceipt, PublishReceipt, StreamFull, StreamFull,
        ]  # fmt: skip
        assert [r.sequence for r in results if isinstance(r, PublishReceipt)] == [1, 2]
        assert [topic.decode(m.payload).name for m in kept] == ["0", "1"]
        assert broker.publish_service.window.taken == 0


@pytest.mark.parametrize("way", ["batch", "pipeline"])
async def test_refusal_stops_its_key_and_no_other(
    memory_world: World, autojump_clock: trio.testing.MockClock, way: str
) -> None:
    assert memory_world.memory is not None
    topic = ledger(memory_world)
    orders = [Order(f"{key}{n}", key) for n in range(3) for key in "ab"]
    async with memory_world.broker(topic) as broker:
        refusal = PublishRefused("not now")
        memory_world.memory.faults.refuse_publish(topic.queue, refusal, times=1)
        if way == "batch":
            with pytest.raises(BatchError) as batch:
                await broker.publisher().publish_batch(topic, orders)
            failed = [
                order.name
                for order, result in zip(orders, batch.value.results, strict=True)
                if isinstance(result, PublishError)
            ]
        else:
            with pytest.raises(ExceptionGroup) as group:  # noqa: PT012
                async with broker.publisher().pipeline(topic) as pipe:
                    for order in orders:
                        await pipe.send(order)
            failed = [error.message.name for error in group.value.exceptions]  # type: ignore[attr-defined]
        kept = await memory_world.kept(broker, topic.queue)
        assert broker.publish_service.window.taken == 0
    assert failed == ["a0", "a1", "a2"]
    assert [topic.decode(m.payload).name for m in kept] == ["b0", "b1", "b2"]


@pytest.mark.parametrize("fault", ["answers lost", "disconnected", "no responders"])
async def test_order_of_a_key_survives_repetitions(
    memory_world: World, autojump_clock: trio.testing.MockClock, fault: str
) -> None:
    assert memory_world.memory is not None
    topic = ledger(memory_world)
    faults = memory_world.memory.faults
    orders = [Order(f"{n}", f"k{n % 3}") for n in range(60)]
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config) as broker, trio.open_nursery() as nursery:
        await broker.declare(topic)
        if fault == "answers lost":
            faults.sometimes(drop_puback=0.2)
        elif fault == "no responders":
            faults.refuse_publish(topic.queue, NoResponders("a leader is elected"), times=5)

        async def trouble() -> None:
            for _ in range(5):
                faults.stall("me")
                await trio.sleep(0.1)
                faults.disconnect("me")
                await trio.sleep(0.1)
                faults.reconnect("me")
                await trio.sleep(0.05)

        if fault == "disconnected":
            nursery.start_soon(trouble)
        async with broker.publisher().pipeline(topic) as pipe:
            for order in orders:
                await pipe.send(order)
                await trio.sleep(0.01)
        kept = [topic.decode(m.payload) for m in await memory_world.kept(broker, topic.queue)]
    for key in ("k0", "k1", "k2"):
        mine = [order.name for order in kept if order.key == key]
        assert mine == [order.name for order in orders if order.key == key]


# ------------------------------------------------------------------ pipelines


async def test_pipeline_waits_for_every_acknowledgement(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        async with broker.publisher().pipeline(topic, max_pending=32) as pipe:
            for number in range(500):
                await pipe.send(Order(str(number)), message_id=f"id-{number % 400}")
                assert pipe.pending <= 32
        assert (pipe.pending, pipe.stored, pipe.duplicates) == (0, 500, 100)
        assert len(await world.kept(broker, topic.queue)) == 400


async def test_pipeline_of_many_tasks_keeps_its_limit(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config, max_pending=4) as broker:
        await broker.declare(topic)
        worst = 0
        async with broker.publisher().pipeline(topic, max_pending=6) as pipe:

            async def sender() -> None:
                nonlocal worst
                for number in range(5):
                    await pipe.send(Order(str(number)))
                    worst = max(worst, pipe.pending)

            memory_world.memory.faults.stall("me")
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(sender)
                await trio.sleep(0.5)
                worst = max(worst, pipe.pending)
                memory_world.memory.faults.unstall("me")
        assert worst <= 6
        assert pipe.stored == 100
        assert broker.publish_service.window.taken == 0


async def test_pipeline_raises_each_failure_with_its_message(world: World, clock: Clock) -> None:
    from shove_actors import NatsStreamConfig

    topic = world.topic(lambda b: b.nats_stream_config(NatsStreamConfig(max_messages=2)).dlq())
    async with world.broker(topic) as broker:
        with pytest.raises(ExceptionGroup, match="3 messages") as caught:  # noqa: PT012
            async with broker.publisher().pipeline(topic) as pipe:
                for number in range(5):
                    await pipe.send(Order(str(number)))
        errors = caught.value.exceptions
        assert [type(error) for error in errors] == [StreamFull] * 3
        assert [error.message for error in errors] == [Order("2"), Order("3"), Order("4")]  # type: ignore[attr-defined]
        assert len({id(error) for error in errors}) == 3
        assert pipe.stored == 2


async def test_error_of_the_block_and_failures_come_together(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        publisher = broker.publisher()
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012
            async with publisher.pipeline(topic) as pipe:
                await pipe.send(Order("x"))
                raise ValueError("mine")
        assert (pipe.stored, pipe.pending) == (1, 0)
        memory_world.memory.faults.refuse_publish(topic.queue, StreamFull("full"))
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
            async with publisher.pipeline(topic) as pipe:
                await pipe.send(Order("x"))
                raise ValueError("mine")
        own, failures = caught.value.exceptions
        assert isinstance(own, ValueError)
        assert isinstance(failures, ExceptionGroup)
        assert isinstance(failures.exceptions[0], StreamFull)


async def test_cancelled_pipeline_leaks_nothing(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config) as broker:
        await broker.declare(topic)
        memory_world.memory.faults.stall("me")
        for limit in (2, 10):
            with trio.move_on_after(0.5) as scope:
                async with broker.publisher().pipeline(topic, max_pending=limit) as pipe:
                    for number in range(4):
                        await pipe.send(Order(str(number)))
            assert scope.cancelled_caught
        memory_world.memory.faults.unstall("me")
        await trio.sleep(20)
        assert pipe.pending == 0
        assert broker.publish_service.window.taken == 0
        # Sent were the two that had room, then all four.
        assert len(await memory_world.kept(broker, topic.queue)) == 6
