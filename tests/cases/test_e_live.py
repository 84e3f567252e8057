"""Section E of the cases: changes of a topic in use, and dead letters that are looked at."""

from __future__ import annotations

from dataclasses import replace

import nats
import pytest
import trio
import trio_asyncio

from shove_actors import (
    Broker,
    NatsStreamConfig,
    Outcome,
    Reject,
    Retention,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    TopologyError,
)
from shove_actors.backends.nats import NatsBackend
from shove_actors.jetstream import JetStream
from tests.runtime.fixtures import Clock
from tests.runtime.world import Journal, Order, Script, World, burying, consuming, running


def js_of(broker: Broker) -> JetStream:
    assert isinstance(broker.backend, NatsBackend)
    return broker.backend.js


# ------------------------------------------------------------------ PC-073
# Replicas are changed in tests/cluster/test_pc073_replicas.py.


async def test_pc073_subjects_added_and_taken_away_while_messages_flow(
    server_world: World,
) -> None:
    """The durable reads the whole stream: it is not touched, and skips nothing."""
    queue = server_world.fresh()
    few, many = ([f"{queue}.{letter}" for letter in letters] for letters in ("a", "abc"))
    small = Topic(Order, TopologyBuilder(queue).nats_subjects(few).build())
    large = Topic(Order, TopologyBuilder(queue).nats_subjects(many).build())
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        await trio.sleep(0.002)
        return Outcome.ACK

    async with server_world.broker(small) as broker:
        js, publisher = js_of(broker), broker.publisher()
        async with consuming(broker, small, handle):
            made = (await js.consumer_info(queue, f"{queue}-consumer")).created

            async def flow(topic: Topic[Order], subject: str, names: range) -> None:
                for number in names:
                    await publisher.publish(topic, Order(str(number)), subject=subject)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(flow, small, few[0], range(100))
                await seen.until(20)
                await broker.declare(large)
                nursery.start_soon(flow, large, many[1], range(100, 150))
                nursery.start_soon(flow, large, many[2], range(150, 200))
            await broker.declare(small)  # what is stored on the others is handled all the same
            await seen.until(200)
            await server_world.until_settled(broker, queue)
            info = await js.consumer_info(queue, f"{queue}-consumer")
            assert info.created == made
            assert not info.config.filter_subject
            assert not info.config.filter_subjects
    assert sorted(map(int, seen.entries)) == list(range(200))
    async with server_world.broker() as broker:
        assert await server_world.kept(broker, queue) == []


@pytest.mark.parametrize("sequenced", [False, True], ids=["plain", "sequenced"])
async def test_pc073_a_filter_is_never_edited_in_place(
    server_world: World, sequenced: bool
) -> None:
    """Somebody narrowed the durable's filter while the group was away: refused, not widened."""
    queue = server_world.fresh()
    builder = TopologyBuilder(queue)
    if sequenced:
        topic: Topic[Order] = SequencedTopic(
            Order,
            key=lambda order: order.key,
            topology=builder.sequenced(SequenceFailure.SKIP)
            .routing_shards(1)
            .allow_message_loss()
            .build(),
        )
        durable, narrow = f"{queue}-shard-0", f"{queue}.shard.>"
    else:
        topic = Topic(Order, builder.nats_subjects([f"{queue}.a", f"{queue}.b"]).build())
        durable, narrow = f"{queue}-consumer", f"{queue}.a"
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with server_world.broker(topic) as broker:
        js = js_of(broker)
        async with consuming(broker, topic, handle):
            await broker.publisher().publish(topic, Order("1"))
            await seen.until(1)
        config = (await js.consumer_info(queue, durable)).config
        changed = replace(config, name=durable, filter_subject=narrow)
        await js.create_consumer(queue, changed, action=None)
        await broker.publisher().publish(topic, Order("2"))
        group = broker.consumer_group()
        group.register(topic, handle)
        with (
            trio.fail_after(15),
            pytest.raises(TopologyError, match=f"{durable}.*filters.*{narrow}"),
        ):
            await group.run_until(trio.sleep_forever)
        assert (await js.consumer_info(queue, durable)).config.filter_subject == narrow
        # The way out that the message names.
        await js.delete_consumer(queue, durable)
        async with consuming(broker, topic, handle):
            await seen.until(2)
    assert seen.entries == ["1", "2"]


async def test_pc073_other_live_changes_are_refused_and_disturb_nobody(
    server_world: World,
) -> None:
    """Retention, and replicas that the server has not: the group that runs goes on."""
    topic = server_world.topic()
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with server_world.broker(topic) as broker, consuming(broker, topic, handle):
        for settings, word in (
            (NatsStreamConfig(retention=Retention.LIMITS), "retention"),
            (NatsStreamConfig(num_replicas=3), "num_replicas"),
        ):
            other = Topic(Order, TopologyBuilder(topic.queue).nats_stream_config(settings).build())
            before = (await js_of(broker).stream_info(topic.queue)).config
            await broker.publisher().publish(topic, Order(word))
            with pytest.raises(TopologyError, match=word):
                await broker.declare(other)
            assert (await js_of(broker).stream_info(topic.queue)).config == before
        await seen.until(2)
        await server_world.until_settled(broker, topic.queue)


# ------------------------------------------------------------------ PC-077


async def test_pc077_dead_letters_are_listed_without_being_taken(
    world: World, clock: Clock
) -> None:
    """The last ten of fifteen; the handler of dead letters gets all fifteen, before and after."""
    topic = world.topic()
    script = Script(outcomes={f"bad-{n}": [Reject(reason=f"no {n}")] for n in range(15)})
    read: list[str] = []
    buried: Journal[str] = Journal()

    async with world.broker(topic) as broker:
        dlq = topic.topology.dlq
        assert dlq is not None
        async with consuming(broker, topic, script):
            for number in range(15):
                await broker.publisher().publish(topic, Order(f"bad-{number}"))
            await world.until_kept(broker, dlq, 15)

        async def look() -> list[str]:
            """Straight from the stream, as `nats stream get` does."""
            backend, found = broker.backend, []
            last = await backend.last_sequence(dlq)
            sequence = max(1, last - 9)
            while (kept := await backend.next_message(dlq, sequence)) is not None:
                found.append(topic.decode(kept.payload).name)
                sequence = kept.sequence + 1
            return found

        async def bury(order: Order) -> None:
            buried.add(order.name)

        read = await look()
        assert read == [f"bad-{n}" for n in range(5, 15)]
        async with burying(broker, topic, bury):
            await buried.until(15)
            assert sorted(buried.entries) == sorted(f"bad-{n}" for n in range(15))
        assert await look() == await look()


async def test_pc077_any_client_may_browse(server_world: World) -> None:
    """A consumer of nats-py's beside ours: the stream is no work queue, which would forbid it."""
    topic = server_world.topic()
    script = Script(outcomes={"bad": [Outcome.REJECT]})
    buried: Journal[str] = Journal()
    assert server_world.url is not None

    async def browse(url: str, dlq: str) -> list[bytes]:
        client = await nats.connect(url)
        try:
            js = client.jetstream()
            subscription = await js.subscribe(dlq, ordered_consumer=True)
            return [(await subscription.next_msg(timeout=10)).data]
        finally:
            await client.close()

    async def bury(order: Order) -> None:
        buried.add(order.name)

    async with server_world.broker(topic) as broker:
        dlq = topic.topology.dlq
        assert dlq is not None
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("bad"))
            await server_world.until_kept(broker, dlq, 1)
        group = broker.consumer_supervisor()
        group.register_dlq(topic, bury)
        for _ in range(2):
            async with trio_asyncio.open_loop():
                [payload] = await trio_asyncio.aio_as_trio(browse)(server_world.url, dlq)
            assert topic.decode(payload) == Order("bad")
        async with running(group):
            await buried.until(1)
