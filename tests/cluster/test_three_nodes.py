"""What only a cluster shows: replicas, leaders that die under load, lame ducks, found servers."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter, defaultdict

import pytest
import trio
import trio.lowlevel

from shove_actors import (
    Broker,
    NatsConfig,
    NatsStreamConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends.nats import NatsBackend
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream
from tests.clusters import Cluster
from tests.runtime.world import Journal, Order, consuming
from tests.support import wait_until

# Waits for real leases and elections; `pytest -m slow` (CI does).
pytestmark = pytest.mark.slow

LOAD = 2000
#: From the kill of a leader to the next acknowledgement: an election, and our reconnect.
LONG_S = 60.0


def config(cluster: Cluster) -> NatsConfig:
    return NatsConfig(cluster.urls, reconnect_wait=0.1, reconnect_jitter=0.1)


def js_of(broker: Broker) -> JetStream:
    assert isinstance(broker.backend, NatsBackend)
    return broker.backend.js


def queue(name: str) -> str:
    return f"{name}-{os.urandom(3).hex()}"


async def test_three_replicas_declared_by_eight_at_once(cluster: Cluster) -> None:
    settings = NatsStreamConfig(num_replicas=3)
    topic = Topic(
        Order,
        TopologyBuilder(queue("many")).hold_queue(5).dlq().nats_stream_config(settings).build(),
    )

    async def declare() -> None:
        async with open_broker(config(cluster)) as broker:
            await broker.declare(topic)
            await broker.declare(topic)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(declare)
    async with open_broker(config(cluster)) as broker:
        for name in topic.topology.stream_names():
            answer = await js_of(broker).api(f"STREAM.INFO.{name}")
            assert answer["config"]["num_replicas"] == 3
            assert len(answer["cluster"]["replicas"]) == 2


async def publish(
    broker: Broker, topic: Topic[Order], count: int, stalls: list[float], keys: int = 7
) -> list[str]:
    """Numbered orders, one after the other per burst; how long the longest acknowledgement took."""
    names: list[str] = []
    publisher = broker.publisher()
    for start in range(0, count, 20):
        orders = [Order(str(n), key=str(n % keys)) for n in range(start, start + 20)]
        began = trio.current_time()
        with trio.fail_after(LONG_S):
            while True:
                # Without its acknowledgement it is open whether it was stored; the same ids make
                # sending again harmless.
                ids = [f"{topic.queue}-{order.name}" for order in orders]
                try:
                    async with trio.open_nursery() as nursery:
                        for order, message_id in zip(orders, ids, strict=True):
                            await publisher.publish(topic, order, message_id=message_id)
                        nursery.cancel_scope.cancel()
                    break
                except Exception:
                    await trio.sleep(0.1)
        stalls.append(trio.current_time() - began)
        names += [order.name for order in orders]
    return names


async def test_a_killed_leader_under_load_loses_nothing(cluster: Cluster) -> None:
    settings = NatsStreamConfig(num_replicas=3)
    topic = Topic(Order, TopologyBuilder(queue("load")).dlq().nats_stream_config(settings).build())
    done: Journal[str] = Journal()
    stalls: list[float] = []

    async def handle(order: Order) -> Outcome:
        done.add(order.name)
        return Outcome.ACK

    async def kill_and_restart(js: JetStream) -> None:
        await done.until(LOAD // 4, within=LONG_S)
        leader = await cluster.leader_of(js, topic.queue)
        await trio.to_thread.run_sync(leader.kill)
        await done.until(LOAD // 2, within=LONG_S)
        await trio.to_thread.run_sync(leader.restart)

    async with open_broker(config(cluster)) as broker:
        await broker.declare(topic)
        async with (
            consuming(broker, topic, handle, prefetch=50, ack_wait=5.0),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(kill_and_restart, js_of(broker))
            names = await publish(broker, topic, LOAD, stalls)
            await wait_until(lambda: len(set(done.entries)) == LOAD, timeout=LONG_S)
            backlog = await broker.backend.backlog(topic.queue, topic.topology.durable)
        assert backlog is not None
        assert backlog.pending == 0
        assert len(await _stored(js_of(broker), topic.topology.dlq)) == 0
    assert set(done.entries) == set(names)
    repeated = sum(count - 1 for count in Counter(done.entries).values())
    print(f"\nleader killed: longest stall {max(stalls):.2f} s, {repeated} handled again")


async def _stored(js: JetStream, stream: str | None) -> range:
    assert stream is not None
    info = await js.stream_info(stream)
    return range(info.messages)


async def test_order_per_key_when_the_leader_dies(cluster: Cluster) -> None:
    topic = SequencedTopic(
        Order,
        key=lambda order: order.key,
        topology=TopologyBuilder(queue("order"))
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(4)
        .hold_queue(0.2)
        .dlq()
        .nats_stream_config(NatsStreamConfig(num_replicas=3))
        .build(),
    )
    seen: dict[str, list[int]] = defaultdict(list)
    done: Journal[str] = Journal()
    running: Counter[int] = Counter()

    async def handle(order: Order, metadata: object) -> Outcome:
        shard = metadata.shard  # type: ignore[attr-defined]
        running[shard] += 1
        assert running[shard] == 1, "two of one shard at once"
        seen[order.key].append(int(order.name))
        await trio.lowlevel.checkpoint()
        running[shard] -= 1
        done.add(order.name)
        return Outcome.ACK

    count = 600
    async with open_broker(config(cluster)) as broker, open_broker(config(cluster)) as other:
        await broker.declare(topic)
        async with (
            consuming(broker, topic, handle, ack_wait=5.0),
            consuming(other, topic, handle, ack_wait=5.0),
            trio.open_nursery() as nursery,
        ):

            async def kill() -> None:
                await done.until(count // 3, within=LONG_S)
                leader = await cluster.leader_of(js_of(broker), topic.queue)
                await trio.to_thread.run_sync(leader.kill)

            nursery.start_soon(kill)
            await publish(broker, topic, count, [])
            await wait_until(lambda: len(set(done.entries)) == count, timeout=LONG_S)
    for key, numbers in seen.items():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first), f"key {key}: {numbers}"
        # A repetition may only be of the message in hand when the leader died.
        for earlier, later in itertools.pairwise(numbers):
            assert later >= earlier, f"key {key} went back from {earlier} to {later}"


async def test_a_lame_duck_is_announced_and_left(cluster: Cluster) -> None:
    heard: list[str] = []
    topic = Topic(
        Order,
        TopologyBuilder(queue("duck"))
        .nats_stream_config(NatsStreamConfig(num_replicas=3))
        .dlq()
        .build(),
    )
    async with open_broker(
        NatsConfig(cluster.urls, dont_randomize=True, reconnect_wait=0.1)
    ) as broker:
        js_of(broker).connection.listen(lambda event: heard.append(event.kind))
        await broker.declare(topic)
        duck = _connected_to(cluster, broker)
        os.kill(duck.pid, signal.SIGUSR2)
        with trio.fail_after(LONG_S):
            for number in range(10_000):
                if "reconnected" in heard:
                    break
                # Between the two there is a moment without a server; it costs nobody anything.
                await broker.publisher().publish(topic, Order(str(number)))
        assert heard.index("lame_duck") < heard.index("disconnected") < heard.index("reconnected")
        assert _connected_to(cluster, broker) is not duck
        assert (await js_of(broker).stream_info(topic.queue)).messages == number
    await trio.to_thread.run_sync(duck.kill)


def _connected_to(cluster: Cluster, broker: Broker) -> ServerProcess:
    address = str(js_of(broker).connection.server)
    return next(node for node in cluster.nodes if str(node.port) in address)


async def test_servers_that_were_not_named_are_found(cluster: Cluster) -> None:
    topic = Topic(
        Order,
        TopologyBuilder(queue("found"))
        .nats_stream_config(NatsStreamConfig(num_replicas=3))
        .dlq()
        .build(),
    )
    only = cluster.nodes[0]
    async with open_broker(NatsConfig(only.url, reconnect_wait=0.1)) as broker:
        await broker.declare(topic)
        await broker.publisher().publish(topic, Order("before"))
        await trio.to_thread.run_sync(only.kill)
        with trio.fail_after(LONG_S):
            while True:
                try:
                    await broker.publisher().publish(topic, Order("after"), message_id="after")
                    break
                except Exception:
                    await trio.sleep(0.1)
        assert _connected_to(cluster, broker) is not only
