"""PC-073: the number of replicas changes while messages flow; nothing stays and nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from shove_actors import (
    NatsStreamConfig,
    Outcome,
    PublishUnknown,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    UnavailableError,
    open_broker,
)
from shove_actors.backends.nats._notes import write_note
from shove_actors.messaging import attempts_stream, bucket_stream
from tests.clusters import Cluster
from tests.runtime.world import Journal, Order, consuming
from tests.support import wait_until

from .test_three_nodes import LONG_S, config, js_of, queue

# Waits for real leases and elections; `pytest -m slow` (CI does).
pytestmark = pytest.mark.slow


@pytest.mark.limit(180)
async def test_pc073_replicas_changed_under_load(cluster: Cluster) -> None:
    name = queue("replicas")

    def with_replicas(number: int) -> Topic[Order]:
        settings = NatsStreamConfig(num_replicas=number)
        return Topic(Order, TopologyBuilder(name).dlq().nats_stream_config(settings).build())

    topic = with_replicas(1)
    done: Journal[str] = Journal()
    stop = trio.Event()
    published: list[str] = []

    async def handle(order: Order) -> Outcome:
        done.add(order.name)
        return Outcome.ACK

    async with open_broker(config(cluster), publish_timeout=LONG_S) as broker:
        await broker.declare(topic)
        js = js_of(broker)

        async def load() -> None:
            number = 0
            while not stop.is_set():
                order, number = Order(str(number)), number + 1
                try:
                    await broker.publisher().publish(topic, order, message_id=f"{name}-{number}")
                except PublishUnknown:
                    continue
                published.append(order.name)
                await trio.sleep(0.002)

        async def until_replicas(number: int) -> None:
            with trio.fail_after(LONG_S):
                while True:
                    answer = await js.api(f"STREAM.INFO.{name}")
                    cluster_info = answer.get("cluster", {})
                    replicas = cluster_info.get("replicas") or []
                    if len(replicas) == number - 1 and all(r.get("current") for r in replicas):
                        return
                    await trio.sleep(0.1)

        async with consuming(broker, topic, handle, prefetch=20, ack_wait=5.0) as run:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load)
                await done.until(50, within=LONG_S)
                for number in (3, 1):
                    await broker.declare(with_replicas(number))
                    await until_replicas(number)
                    seen = len(done)
                    await done.until(seen + 50, within=LONG_S)
                stop.set()
            with trio.fail_after(LONG_S):
                await wait_until(lambda: set(done.entries) >= set(published), timeout=LONG_S)
                while (await js.stream_info(name)).messages:  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(0.05)
            assert run.outcome is None
        assert (await js.stream_info(f"{name}-dlq")).messages == 0
    assert set(published) <= set(done.entries)
    again = sum(count - 1 for count in Counter(done.entries).values())
    print(f"\n{len(published)} published, {again} handled again")


async def test_pc073_more_replicas_than_servers(cluster: Cluster) -> None:
    topic = Topic(
        Order,
        TopologyBuilder(queue("five")).nats_stream_config(NatsStreamConfig(num_replicas=5)).build(),
    )
    async with open_broker(config(cluster)) as broker:
        with pytest.raises(UnavailableError, match=r"num_replicas=5.*lower"):
            await broker.declare(topic)


async def test_all_streams_of_a_topic_get_the_copies(cluster: Cluster) -> None:
    """A retry waits in a hold queue: with one copy there, it is lost with one node."""
    name = queue("copies")

    def with_replicas(number: int) -> SequencedTopic[Order]:
        return SequencedTopic(
            Order,
            key=lambda order: order.key,
            topology=TopologyBuilder(name)
            .sequenced(SequenceFailure.FAIL_ALL)
            .routing_shards(1)
            .hold_queue(5)
            .dlq()
            .nats_stream_config(NatsStreamConfig(num_replicas=number))
            .build(),
        )

    topology = with_replicas(1).topology
    async with open_broker(config(cluster)) as broker:
        js = js_of(broker)
        names = [*topology.stream_names(), bucket_stream(f"{name}-poison"), attempts_stream(name)]
        for number in (1, 3, 3):
            await broker.declare(with_replicas(number))
            if number == 1:
                await write_note(js, name, 1, b"a note")
            copies = [(await js.stream_info(each)).config.num_replicas for each in names]
            assert copies == [number] * len(names), dict(zip(names, copies, strict=True))
