"""A broker on an old server: the common paths end to end, and every refusal with its version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from shove_actors import (
    Broker,
    FeatureUnavailable,
    NatsConfig,
    NatsStreamConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    StreamFull,
    Topic,
    TopologyBuilder,
    TopologyError,
    open_broker,
)
from shove_actors.backends.nats import NatsBackend
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream
from tests.runtime.world import Journal, Order, Script, World, burying, consuming

Fresh = Callable[[], str]


@pytest.fixture
def old_world(server: ServerProcess, fresh_queue: Fresh) -> World:
    return World(fresh_queue, url=server.url)


def js_of(broker: Broker) -> JetStream:
    assert isinstance(broker.backend, NatsBackend)
    return broker.backend.js


def bounded(queue: str, **settings: Any) -> Topic[Order]:
    config = NatsStreamConfig(**settings)
    return Topic(Order, TopologyBuilder(queue).nats_stream_config(config).build())


async def test_it_is_old(server: ServerProcess) -> None:
    """Or everything below would prove nothing."""
    async with open_broker(NatsConfig(server.url)) as broker:
        assert isinstance(broker.backend, NatsBackend)
        assert broker.backend.connection.server_version.startswith("2.9.")


async def test_retries_holds_and_dead_letters(old_world: World) -> None:
    topic = old_world.topic()
    script = Script(outcomes={"again": [Outcome.RETRY] * 2, "bad": [Outcome.REJECT]})
    buried: Journal[str] = Journal()

    async def bury(order: Order) -> None:
        buried.add(order.name)

    async with old_world.broker(topic) as broker:
        async with consuming(broker, topic, script), burying(broker, topic, bury):
            for name in ("well", "again", "bad"):
                await broker.publisher().publish(topic, Order(name))
            await script.journal.until(5)
            await buried.until(1)
            await old_world.until_settled(broker, topic.queue)
        assert script.attempts("again") == [0, 1, 2]
        assert await old_world.kept(broker, topic.queue) == []


async def test_more_copies_than_there_are_servers(old_world: World) -> None:
    """This server takes it for a stream that exists, and keeps one copy: refused here."""
    queue = old_world.fresh()
    async with old_world.broker(bounded(queue, num_replicas=1)) as broker:
        with pytest.raises(TopologyError, match=r"num_replicas=3 \(it has 1\), but the server"):
            await broker.declare(bounded(queue, num_replicas=3))
        assert (await js_of(broker).stream_info(queue)).config.num_replicas == 1


@pytest.mark.parametrize("failure", list(SequenceFailure))
async def test_order_per_key(old_world: World, failure: SequenceFailure) -> None:
    topic = SequencedTopic(
        Order,
        key=lambda order: order.key,
        topology=TopologyBuilder(old_world.fresh())
        .sequenced(failure)
        .routing_shards(3)
        .hold_queue(0.2)
        .dlq()
        .build(),
    )
    script = Script(outcomes={"a-1": [Outcome.RETRY], "b-1": [Outcome.REJECT]})
    skips = failure is SequenceFailure.SKIP
    async with old_world.broker(topic) as broker, consuming(broker, topic, script):
        for number in range(4):
            for key in "ab":
                await broker.publisher().publish(topic, Order(f"{key}-{number}", key=key))
        await old_world.until_kept(broker, topic.topology.dlq, 1 if skips else 3)
        await old_world.until_kept(broker, topic.queue, 0)
        if not skips:
            assert [poisoned.key for poisoned in await broker.poisoned(topic)] == ["b"]
    handled = [name for name, _ in script.journal.entries]
    assert [n for n in handled if n[0] == "a"] == ["a-0", "a-1", "a-1", "a-2", "a-3"]
    assert [n for n in handled if n[0] == "b"] == ["b-0", "b-1", *(["b-2", "b-3"] if skips else [])]


async def test_what_is_handed_back_is_delivered_again(old_world: World) -> None:
    """At the latest when its lease ends: 2.9 forgets what is given back while nobody asks."""
    topic = old_world.topic()
    started, seen = trio.Event(), Journal[str]()

    async def block(order: Order) -> Outcome:
        started.set()
        await trio.sleep_forever()
        return Outcome.ACK

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with old_world.broker(topic) as broker:
        for number in range(5):
            await broker.publisher().publish(topic, Order(str(number)))
        async with consuming(broker, topic, block, drain_timeout=0.1, ack_wait=3.0):
            await started.wait()
        async with consuming(broker, topic, handle, ack_wait=3.0):
            await seen.until(5)
            await old_world.until_kept(broker, topic.queue, 0)
    assert set(seen.entries) == set("01234")


async def test_full_by_count(old_world: World) -> None:
    topic = bounded(old_world.fresh(), max_messages=3)
    async with old_world.broker(topic) as broker:
        for number in range(3):
            await broker.publisher().publish(topic, Order(str(number)))
        with pytest.raises(StreamFull):
            await broker.publisher().publish(topic, Order("x"))
        assert len(await old_world.kept(broker, topic.queue)) == 3


async def test_full_by_bytes_would_delete_and_is_refused(old_world: World) -> None:
    topic = bounded(old_world.fresh(), max_bytes=500)
    async with old_world.broker() as broker:
        refused = r"max_bytes needs nats-server 2\.10\.5.*is 2\.9.*max_messages"
        with pytest.raises(FeatureUnavailable, match=refused):
            await broker.declare(topic)


async def test_a_lower_limit_would_delete_and_is_refused(old_world: World) -> None:
    queue = old_world.fresh()
    topic = bounded(queue)
    async with old_world.broker(topic) as broker:
        for number in range(3):
            await broker.publisher().publish(topic, Order(str(number)))
        await broker.declare(bounded(queue, max_messages=3))
        with pytest.raises(FeatureUnavailable, match=r"below what is stored.*2\.10\.5.*drain"):
            await broker.declare(bounded(queue, max_messages=2))
        assert len(await old_world.kept(broker, queue)) == 3
        await broker.declare(bounded(queue, max_messages=10))


async def test_the_number_of_shards_is_not_changed_in_use(old_world: World) -> None:
    queue = old_world.fresh()

    def shards(number: int) -> SequencedTopic[Order]:
        return SequencedTopic(
            Order,
            key=lambda order: order.key,
            topology=TopologyBuilder(queue)
            .sequenced(SequenceFailure.SKIP)
            .routing_shards(number)
            .allow_message_loss()
            .build(),
        )

    async with old_world.broker(shards(2)) as broker:
        with pytest.raises(FeatureUnavailable, match=r"reshard needs nats-server 2\.10\.0.*drain"):
            await broker.reshard(shards(4), timeout=5)
        subjects = (await js_of(broker).stream_info(queue)).config.subjects
        assert len(subjects) == 2
        await broker.declare(shards(4))  # the way out: nothing is stored
        subjects = (await js_of(broker).stream_info(queue)).config.subjects
        assert len(subjects) == 4
