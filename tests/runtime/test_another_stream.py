"""A subject that another stream binds: refused, where it used to be stored for nobody."""

from __future__ import annotations

import sys

import msgspec
import pytest

from shove_actors import (
    BatchError,
    NatsConfig,
    Outcome,
    Topic,
    TopicNotDeclared,
    TopologyBuilder,
    TopologyError,
    jetstream,
    open_broker,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import StreamConfig

from .fixtures import Clock
from .world import Order, Script, World, consuming, until

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


def topic(queue: str, *subjects: str) -> Topic[str]:
    builder = TopologyBuilder(queue).hold_queue(1).dlq()
    return Topic(str, (builder.nats_subjects(subjects) if subjects else builder).build())


@pytest.mark.server
async def test_publishing(own_server: ServerProcess) -> None:
    url = own_server.url
    async with jetstream.connect(url) as js, open_broker(NatsConfig(url)) as broker:
        await js.create_stream(StreamConfig(name="OTHER", subjects=("orders", "events.>")))
        publisher = broker.publisher()
        with pytest.raises(TopologyError, match="another stream takes"):
            await broker.declare(topic("orders"))
        with pytest.raises(TopicNotDeclared, match="'orders' belongs to another stream"):
            await publisher.publish(topic("orders"), "lost?")
        never_declared = topic("things", "events.things")
        with pytest.raises(TopicNotDeclared, match=r"'events.things' belongs to another stream"):
            await publisher.publish(never_declared, "lost?", headers={"x": "1"})
        with pytest.raises(BatchError, match="belongs to another stream"):
            await publisher.publish_batch(never_declared, ["a", "b"])
        with pytest.raises(ExceptionGroup) as caught:
            async with publisher.pipeline(never_declared) as pipe:
                await pipe.send("a")
        assert caught.group_contains(TopicNotDeclared)
        assert (await js.stream_info("OTHER")).messages == 0


@pytest.mark.server
async def test_an_external_topic(own_server: ServerProcess) -> None:
    url = own_server.url
    async with jetstream.connect(url) as js, open_broker(NatsConfig(url)) as broker:
        await js.create_stream(StreamConfig(name="EXT", subjects=("EXT", "ext.>")))
        await js.create_stream(StreamConfig(name="OTHER", subjects=("other.>",)))
        external = Topic(str, TopologyBuilder("EXT").nats_external_stream().dlq().build())
        await broker.declare(external)
        receipt = await broker.publisher().publish(external, "here", subject="ext.a")
        assert receipt.stream == "EXT"
        with pytest.raises(TopicNotDeclared, match="publish on a subject that it binds"):
            await broker.publisher().publish(external, "lost?", subject="other.a")
        assert (await js.stream_info("OTHER")).messages == 0


async def test_a_hop_into_another_stream_is_none(world: World, clock: Clock) -> None:
    """The hold queue is gone, and somebody else binds its subject: the message stays."""
    topic = world.topic()
    hold = topic.topology.holds[0].name
    foreign = f"{topic.queue}-foreign"
    async with world.broker(topic) as broker:
        script = Script(outcomes={"a": [Outcome.RETRY]})
        async with consuming(broker, topic, script) as run:
            await world.delete_stream(broker, hold)
            await world.foreign_stream(broker, foreign, hold)
            await broker.publisher().publish(topic, Order("a"))
            await until(lambda: run.group.statistics()[topic.queue].get("stuck", 0) > 0)
        assert await world.kept(broker, foreign) == []
        (stayed,) = await world.kept(broker, topic.queue)
        assert msgspec.json.decode(stayed.payload, type=Order) == Order("a")
