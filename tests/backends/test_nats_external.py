"""Streams of somebody else, end to end: read, retried and buried from, and never changed."""

from __future__ import annotations

import pytest
import trio

from shove_actors import (
    MessageMetadata,
    Outcome,
    PublishUnknown,
    Topic,
    TopologyBuilder,
    TopologyError,
)
from shove_actors.backends.nats import NatsBackend
from shove_actors.jetstream import ConsumerConfig, JetStream, StreamConfig
from tests.runtime.fixtures import server_world as server_world
from tests.runtime.world import Journal, Order, Script, World, consuming, raw_publish


def js_of(broker: object) -> JetStream:
    backend = getattr(broker, "backend", None)
    assert isinstance(backend, NatsBackend)
    return backend.js


def external(queue: str) -> Topic[Order]:
    return Topic(Order, TopologyBuilder(queue).nats_external_stream().hold_queue(0.2).dlq().build())


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
async def test_a_flow_among_others(server_world: World, retention: str) -> None:
    """Of several subjects the topic's is read, whatever the stream is for its owner."""
    queue = server_world.fresh()
    topic = external(queue)
    script = Script(outcomes={"again": [Outcome.RETRY], "bad": [Outcome.REJECT]})
    async with server_world.broker() as broker:
        js = js_of(broker)
        theirs = StreamConfig(
            name=queue,
            subjects=(queue, f"{queue}.theirs.>"),
            retention=retention,
            description="theirs",
            metadata={"owner": "them"},
            duplicate_window=30.0,
            extra={"compression": "s2"},
        )
        before = (await js.create_stream(theirs)).config
        await broker.declare(topic)
        async with consuming(broker, topic, script):
            await raw_publish(broker, f"{queue}.theirs.x", b"not for us")
            for name in ("well", "again", "bad"):
                await broker.publisher().publish(topic, Order(name))
            await script.journal.until(4)
            [dead] = await server_world.until_kept(broker, topic.topology.dlq, 1)
            assert topic.decode(dead.payload) == Order("bad")
            await server_world.until_settled(broker, queue)
            durable = await js.consumer_info(queue, f"{queue}-consumer")
            assert durable.config.filter_subject == queue
        assert sorted(script.journal.entries) == [
            ("again", 0),
            ("again", 1),
            ("bad", 0),
            ("well", 0),
        ]
        await broker.declare(topic)
        assert (await js.stream_info(queue)).config == before
        left = [kept.subject for kept in await server_world.kept(broker, queue)]
        # The messages that nobody of theirs consumes are the owner's business.
        assert left.count(f"{queue}.theirs.x") == (0 if retention == "interest" else 1)
        assert left.count(queue) == (4 if retention == "limits" else 0)


async def test_a_foreign_consumer_on_an_external_work_queue(server_world: World) -> None:
    """The server lets one read; that it is not us is said in words."""
    queue = server_world.fresh()
    topic = external(queue)
    async with server_world.broker() as broker:
        js = js_of(broker)
        await js.create_stream(
            StreamConfig(name=queue, subjects=(f"{queue}.>", queue), retention="workqueue")
        )
        await js.create_consumer(queue, ConsumerConfig(durable_name="theirs"))
        await broker.declare(topic)
        group = broker.consumer_group()
        group.register(topic, lambda order: Outcome.ACK)
        with trio.fail_after(10), pytest.raises(TopologyError, match=r"another consumer"):
            await group.run_until(trio.sleep_forever)
        assert (await js.consumer_info(queue, "theirs")).name == "theirs"


async def test_an_external_stream_that_does_not_acknowledge(server_world: World) -> None:
    """`no_ack`: the outcome is unknown, and the reason is given."""
    queue = server_world.fresh()
    topic = external(queue)
    async with server_world.broker(publish_timeout=1.0) as broker:
        await js_of(broker).create_stream(
            StreamConfig(name=queue, subjects=(queue,), extra={"no_ack": True})
        )
        await broker.declare(topic)
        with trio.fail_after(15), pytest.raises(PublishUnknown, match="does not acknowledge"):
            await broker.publisher().publish(topic, Order("x"))


async def test_wildcard_subjects(server_world: World) -> None:
    """Any literal subject below them; what cannot be one is refused before it is sent."""
    queue = server_world.fresh()
    topic = Topic(
        Order, TopologyBuilder(queue).nats_subjects([f"{queue}.*", f"{queue}.deep.>"]).build()
    )
    seen: Journal[tuple[str, str]] = Journal()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        seen.add((order.name, metadata.subject))
        return Outcome.ACK

    async with server_world.broker(topic) as broker:
        publisher = broker.publisher()
        for subject in (None, f"{queue}.*", queue, "elsewhere", f"{queue}.a.b", f"{queue}."):
            with pytest.raises(TopologyError):
                await publisher.publish(topic, Order("no"), subject=subject)
        async with consuming(broker, topic, handle):
            for name in ("a", "deep.b.c"):
                await publisher.publish(topic, Order(name), subject=f"{queue}.{name}")
            await seen.until(2)
        assert sorted(seen.entries) == [("a", f"{queue}.a"), ("deep.b.c", f"{queue}.deep.b.c")]
        assert await server_world.kept(broker, queue) == []
