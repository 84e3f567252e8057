"""Publishing: coalescing, back-pressure, cancellation, and the truth about each message."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from shove_actors import (
    BatchError,
    Broker,
    BrokerClosed,
    EncodeError,
    MemoryConfig,
    MessageTooLarge,
    NotConnected,
    Outcome,
    PublishError,
    PublishReceipt,
    PublishRefused,
    PublishUnknown,
    SequencedTopic,
    SequenceFailure,
    StreamFull,
    TopologyBuilder,
    TopologyError,
    UsageError,
    open_broker,
)
from shove_actors._errors import NoResponders
from shove_actors.backends import Post

from .fixtures import Clock
from .world import SOON_S, Order, Script, World, consuming, raw_publish

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


def ledger(world: World) -> SequencedTopic[Order]:
    builder = TopologyBuilder(world.fresh()).sequenced(SequenceFailure.SKIP).routing_shards(2)
    return SequencedTopic(Order, key=lambda o: o.key, topology=builder.hold_queue(1).dlq().build())


def count_posts(broker: Broker) -> list[int]:
    """The size of each batch that is handed to the backend from now on."""
    sizes: list[int] = []
    post = broker.backend.post

    def counting(batch: Sequence[Post]) -> None:
        sizes.append(len(batch))
        if len(sizes) > 5000:
            # In virtual time a hot loop would never come to an end by itself.
            raise RuntimeError("a hot loop")
        post(batch)

    broker.backend.post = counting  # type: ignore[method-assign]
    return sizes


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


# ------------------------------------------------------------------ repetitions


async def test_connection_lost_in_flight_stores_once(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Stored, and the answer went down with the connection."""
    assert memory_world.memory is not None
    topic = memory_world.topic()
    faults = memory_world.memory.faults
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config) as broker, trio.open_nursery() as nursery:
        await broker.declare(topic)
        receipts: list[PublishReceipt] = []

        async def publish() -> None:
            receipts.extend(await broker.publisher().publish_batch(topic, [Order("1"), Order("2")]))

        faults.drop_puback(2)
        nursery.start_soon(publish)
        await trio.sleep(0.1)
        assert len(await memory_world.kept(broker, topic.queue)) == 2
        faults.disconnect("me")
        await trio.sleep(3)
        assert receipts == []
        faults.reconnect("me")
        await trio.sleep(0.5)
        assert [receipt.sequence for receipt in receipts] == [1, 2]
        assert len(await memory_world.kept(broker, topic.queue)) == 2
        assert broker.publish_service.repeated >= 2


async def test_server_killed_in_flight(own_server: object) -> None:
    """On a real server: nothing is lost and nothing is there twice, however often it dies."""
    from shove_actors import NatsConfig, Topic
    from shove_actors.embedded import ServerProcess

    assert isinstance(own_server, ServerProcess)
    topic = Topic(Order, TopologyBuilder("q").dlq().build())
    world = World(lambda: "q", url=own_server.url)
    config = NatsConfig(own_server.url, reconnect_wait=0.05)
    async with open_broker(config, publish_timeout=30) as broker, trio.open_nursery() as nursery:
        await broker.declare(topic)
        stop = trio.Event()

        async def trouble() -> None:
            for _ in range(3):
                await trio.sleep(0.15)
                await trio.to_thread.run_sync(own_server.kill)
                await trio.to_thread.run_sync(own_server.restart)
            stop.set()

        nursery.start_soon(trouble)
        count = 0
        async with broker.publisher().pipeline(topic, max_pending=200) as pipe:
            while not stop.is_set():
                await pipe.send(Order(str(count)))
                count += 1
                if count % 50 == 0:
                    await trio.sleep(0.005)
        assert pipe.stored == count
        assert (await _count(broker, topic.queue)) == count
        assert world.url


async def _count(broker: Broker, stream: str) -> int:
    from shove_actors.backends.nats import NatsBackend

    assert isinstance(broker.backend, NatsBackend)
    return (await broker.backend.js.stream_info(stream)).messages


async def test_publishing_while_disconnected_waits_for_the_connection(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config) as broker, trio.open_nursery() as nursery:
        await broker.declare(topic)
        memory_world.memory.faults.disconnect("me")
        nursery.start_soon(broker.publisher().publish, topic, Order("patient"))
        await trio.sleep(5)
        memory_world.memory.faults.reconnect("me")
        await trio.sleep(0.5)
        assert len(await memory_world.kept(broker, topic.queue)) == 1


@pytest.mark.parametrize("timeout", [0.3, 3.0, 10.0])
async def test_not_connected_says_that_nothing_was_sent(
    memory_world: World, autojump_clock: trio.testing.MockClock, timeout: float
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config, publish_timeout=timeout) as broker:
        await broker.declare(topic)
        memory_world.memory.faults.disconnect("me")
        before = trio.current_time()
        with pytest.raises(NotConnected) as caught:
            await broker.publisher().publish(topic, Order("x"))
        assert caught.value.stored is False
        assert timeout <= trio.current_time() - before <= timeout + 0.5
        assert broker.publish_service.window.taken == 0


@pytest.mark.parametrize("timeout", [0.3, 3.0, 10.0])
@pytest.mark.parametrize("fault", ["no answer", "lost in flight"])
async def test_unknown_says_that_nobody_knows(
    memory_world: World, autojump_clock: trio.testing.MockClock, timeout: float, fault: str
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    faults = memory_world.memory.faults
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config, publish_timeout=timeout) as broker:
        await broker.declare(topic)
        before = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                with pytest.raises(PublishUnknown) as caught:
                    await broker.publisher().publish(topic, Order("x"), message_id="X")
                assert caught.value.stored is None
                assert timeout <= trio.current_time() - before <= timeout + 1.0

            faults.sometimes(drop_puback=1.0)
            nursery.start_soon(publish)
            if fault == "lost in flight":
                await trio.sleep(0.1)
                faults.disconnect("me")
        if fault == "lost in flight":
            faults.reconnect("me")
        faults.sometimes()
        # As promised: asking again with the same id is safe, and tells.
        receipt = await broker.publisher().publish(topic, Order("x"), message_id="X")
        assert receipt.duplicate
        assert len(await memory_world.kept(broker, topic.queue)) == 1


async def test_stream_without_a_leader_is_asked_again_but_not_in_a_hot_loop(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        sizes = count_posts(broker)
        memory_world.memory.faults.refuse_publish(topic.queue, NoResponders("no leader"))
        with trio.fail_after(SOON_S), pytest.raises(PublishUnknown):
            await broker.publisher().publish(topic, Order("x"))
        assert 10 <= sum(sizes) <= 60
        memory_world.memory.faults.refuse_publish(topic.queue, NoResponders("no leader"), times=8)
        assert not (await broker.publisher().publish(topic, Order("y"))).duplicate


async def test_late_answer_counts(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The link stands still for longer than an acknowledgement is waited for."""
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config, publish_timeout=60) as broker, trio.open_nursery() as nursery:
        await broker.declare(topic)
        receipts: list[PublishReceipt] = []

        async def publish() -> None:
            receipts.append(await broker.publisher().publish(topic, Order("x")))

        memory_world.memory.faults.stall("me")
        nursery.start_soon(publish)
        await trio.sleep(2.1)  # given up, about to be sent again
        memory_world.memory.faults.unstall("me")
        await trio.sleep(5)
        assert len(receipts) == 1
        assert not receipts[0].duplicate
        assert len(await memory_world.kept(broker, topic.queue)) == 1


# ------------------------------------------------------------------ the actor's own end


@pytest.mark.parametrize("sent", [False, True])
async def test_crashed_publisher_posts_again_with_the_same_id(
    memory_world: World, autojump_clock: trio.testing.MockClock, sent: bool
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        post, crashes = broker.backend.post, 0

        def crashing(batch: Sequence[Post]) -> None:
            nonlocal crashes
            if crashes == 0:
                crashes += 1
                if sent:
                    post(batch)
                raise RuntimeError("broken")
            post(batch)

        broker.backend.post = crashing  # type: ignore[method-assign]
        with trio.fail_after(SOON_S):
            receipts = await broker.publisher().publish_batch(
                topic, [Order(str(n)) for n in range(5)]
            )
        assert crashes == 1
        assert [receipt.sequence for receipt in receipts] == [1, 2, 3, 4, 5]
        assert len(await memory_world.kept(broker, topic.queue)) == 5
        assert broker.publish_service.window.taken == 0
        await trio.sleep(1)
        [publisher] = [n for n in _nodes(broker.snapshot()) if n.name == "publisher"]  # type: ignore[attr-defined]
        assert publisher.restarts == 1  # type: ignore[attr-defined]


def _nodes(node: object) -> list[object]:
    found = [node]
    for child in node.children:  # type: ignore[attr-defined]
        found += _nodes(child)
    return found


async def test_publisher_that_is_beyond_repair_leaves_nobody_waiting(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The failure ends the block; who published from elsewhere hears of it, too."""
    topic = memory_world.topic()
    heard: list[BaseException] = []
    ready, broker_box = trio.Event(), []

    async def elsewhere() -> None:
        await ready.wait()
        try:
            await broker_box[0].publisher().publish(topic, Order("x"))
        except PublishError as exc:
            heard.append(exc)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(elsewhere)
            with pytest.raises(BaseException) as caught:  # noqa: PT011, PT012 - looked at below
                async with memory_world.broker(topic) as broker:
                    broker_box.append(broker)

                    def crashing(batch: Sequence[Post]) -> None:
                        raise RuntimeError("broken")

                    broker.backend.post = crashing  # type: ignore[method-assign]
                    ready.set()
                    await trio.sleep_forever()
    assert caught.value.subgroup(RuntimeError) is not None  # type: ignore[attr-defined]
    assert [type(error) for error in heard] == [PublishUnknown]


async def test_closing_waits_for_what_was_accepted(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    results: list[object] = []

    async def publish(broker: Broker, number: int) -> None:
        results.append(await broker.publisher().publish(topic, Order(str(number))))

    async with trio.open_nursery() as nursery:
        async with open_broker(config) as broker:
            await broker.declare(topic)
            memory_world.memory.faults.stall("me")
            for number in range(3):
                nursery.start_soon(publish, broker, number)
            await trio.sleep(0.1)

            async def later() -> None:
                await trio.sleep(1)
                memory_world.memory.faults.unstall("me")

            nursery.start_soon(later)
    assert len(results) == 3
    assert len(memory_world.memory.messages(topic.queue)) == 3


async def test_closing_tells_who_could_not_be_served(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    config = MemoryConfig(server=memory_world.memory, name="me")
    heard: list[Exception] = []

    async def publish(broker: Broker) -> None:
        try:
            await broker.publisher().publish(topic, Order("x"))
        except PublishError as exc:
            heard.append(exc)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with open_broker(config, publish_timeout=3600) as broker:
                await broker.declare(topic)
                memory_world.memory.faults.stall("me")
                nursery.start_soon(publish, broker)
                await trio.sleep(0.1)
    assert [type(error) for error in heard] == [PublishUnknown]


async def test_publisher_used_after_the_block(world: World, clock: Clock) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
    with pytest.raises(BrokerClosed):
        await publisher.publish(topic, Order("x"))
    with pytest.raises(BrokerClosed):
        await publisher.publish_batch(topic, [Order("x")])
    with pytest.raises(BrokerClosed):
        async with publisher.pipeline(topic) as pipe:
            await pipe.send(Order("x"))
    with pytest.raises(BrokerClosed):
        broker.publisher()
    assert broker.publish_service.window.taken == 0


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
