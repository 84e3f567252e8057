"""Publishing over lost connections and crashes: stored once, or said so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from shove_actors import (
    Broker,
    BrokerClosed,
    MemoryConfig,
    NotConnected,
    PublishError,
    PublishReceipt,
    PublishUnknown,
    TopologyBuilder,
    open_broker,
)
from shove_actors._errors import NoResponders
from shove_actors.backends import Post

from .fixtures import Clock
from .posts import count_posts
from .world import SOON_S, Order, World

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
