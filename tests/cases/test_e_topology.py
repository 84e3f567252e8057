"""Section E of the cases, as far as declaring against a real server goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio

from shove_actors import (
    NatsConfig,
    NatsStreamConfig,
    Outcome,
    Retention,
    SequencedTopic,
    SequenceFailure,
    Storage,
    Topic,
    TopologyBuilder,
    TopologyError,
    open_broker,
)
from shove_actors.backends.nats import NatsBackend
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConsumerConfig, JetStream
from tests.runtime.world import Journal, Order, World, consuming


def js_of(broker: Any) -> JetStream:
    assert isinstance(broker.backend, NatsBackend)
    return broker.backend.js


# ------------------------------------------------------------------ PC-066, PC-067


def bounded(queue: str, **settings: Any) -> Topic[Order]:
    config = NatsStreamConfig(**settings)
    return Topic(Order, TopologyBuilder(queue).dlq().nats_stream_config(config).build())


async def test_pc066_declare_again(server_world: World) -> None:
    queue = server_world.fresh()
    async with server_world.broker(bounded(queue, max_age=60.0)) as broker:
        js = js_of(broker)
        updates: list[bytes] = []
        async with server_world.broker() as witness:
            connection = js_of(witness).connection
            connection.subscribe(b"$JS.API.STREAM.*.>", lambda subj, *rest: updates.append(subj))
            await connection.flush()
            await broker.declare(bounded(queue, max_age=60.0))
            await js.account_info()
            await connection.flush()
            changing = [s for s in updates if b".INFO." not in s]
            assert updates
            assert changing == []
        await broker.declare(bounded(queue, max_age=90.0, max_messages=5))
        config = (await js.stream_info(queue)).config
        assert (config.max_age, config.max_msgs) == (90.0, 5)
        for settings, words in (
            ({"retention": Retention.INTEREST}, ("retention", "'workqueue'", "'interest'")),
            ({"storage": Storage.MEMORY}, ("storage", "'file'", "'memory'")),
        ):
            with pytest.raises(TopologyError) as caught:
                await broker.declare(bounded(queue, **settings))
            assert all(word in str(caught.value) for word in (*words, queue))


async def test_pc067_what_an_operator_set_survives(server_world: World) -> None:
    queue = server_world.fresh()
    async with server_world.broker(bounded(queue)) as broker:
        js = js_of(broker)
        config = (await js.stream_info(queue)).config
        operators = await js.update_stream(
            replace(
                config,
                allow_direct=True,
                description="see the runbook",
                metadata={"team": "payments"},
                compression="s2",
            )
        )
        await broker.declare(bounded(queue, max_messages=7))
        after = (await js.stream_info(queue)).config
        assert after == replace(operators.config, max_msgs=7)
        assert (after.allow_direct, after.compression) == (True, "s2")


# ------------------------------------------------------------------ PC-068


def one_shard(queue: str) -> SequencedTopic[Order]:
    builder = TopologyBuilder(queue).sequenced(SequenceFailure.SKIP).routing_shards(1)
    topology = builder.allow_message_loss().build()
    return SequencedTopic(Order, key=lambda order: order.key, topology=topology)


async def test_pc068_in_flight_limit_is_corrected_first(server_world: World) -> None:
    """The durable was made by hand with ten in flight; two processes read it."""
    topic = one_shard(server_world.fresh())
    queue = topic.queue
    active = most = 0
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await trio.sleep(0.01)
        active -= 1
        seen.add(order.name)
        return Outcome.ACK

    async with server_world.broker(topic) as broker, server_world.broker(topic) as other:
        durable = f"{queue}-shard-0"
        await js_of(broker).create_consumer(
            queue,
            ConsumerConfig(
                durable_name=durable,
                filter_subject=f"{queue}.shard.0",
                max_ack_pending=10,
                ack_wait=30.0,
            ),
        )
        for number in range(12):
            await broker.publisher().publish(topic, Order(str(number)))
        async with consuming(broker, topic, handle), consuming(other, topic, handle):
            assert await seen.until(12) == [str(number) for number in range(12)]
        assert most == 1
        assert (await js_of(broker).consumer_info(queue, durable)).config.max_ack_pending == 1


async def test_pc068_another_filter_is_refused(server_world: World) -> None:
    topic = one_shard(server_world.fresh())
    queue = topic.queue
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with server_world.broker(topic) as broker:
        config = ConsumerConfig(durable_name=f"{queue}-shard-0", filter_subject=f"{queue}.shard.>")
        await js_of(broker).create_consumer(queue, config)
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, handle)
        with trio.fail_after(15), pytest.raises(TopologyError, match=f"{queue}-shard-0.*filters"):
            await group.run_until(trio.sleep_forever)
        assert len(seen) == 0


# ------------------------------------------------------------------ PC-071


async def test_pc071_same_name_shares_the_work(server_world: World) -> None:
    topic = server_world.topic()
    seen: Journal[tuple[str, str]] = Journal()

    def handler(where: str) -> Any:
        async def handle(order: Order) -> Outcome:
            seen.add((where, order.name))
            await trio.sleep(0.005)
            return Outcome.ACK

        return handle

    async with server_world.broker(topic) as one, server_world.broker(topic) as two:
        async with (
            consuming(one, topic, handler("one"), prefetch=2),
            consuming(two, topic, handler("two"), prefetch=2),
        ):
            for number in range(40):
                await one.publisher().publish(topic, Order(str(number)))
            await seen.until(40)
    assert sorted(int(name) for _, name in seen.entries) == list(range(40))
    assert {where for where, _ in seen.entries} == {"one", "two"}


async def test_pc071_different_name_is_refused_in_words(server_world: World) -> None:
    topic = server_world.topic()
    async with server_world.broker(topic) as broker:
        await js_of(broker).create_consumer(
            topic.queue, ConsumerConfig(durable_name="somebody-else")
        )
        group = broker.consumer_group()
        group.register(topic, lambda order: Outcome.ACK)
        with trio.fail_after(15), pytest.raises(TopologyError, match=r"work queue.*LIMITS"):
            await group.run_until(trio.sleep_forever)


async def test_pc071_restart_after_a_hard_kill(own_server: ServerProcess) -> None:
    topic = Topic(Order, TopologyBuilder("q").dlq().build())
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    for name in ("first", "second"):
        async with open_broker(NatsConfig(own_server.url)) as broker:
            await broker.declare(topic)
            async with consuming(broker, topic, handle):
                await broker.publisher().publish(topic, Order(name))
                await seen.until(1 if name == "first" else 2)
        await trio.to_thread.run_sync(own_server.kill)
        await trio.to_thread.run_sync(own_server.restart)
    assert seen.entries == ["first", "second"]
