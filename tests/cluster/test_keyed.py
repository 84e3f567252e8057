"""Keyed shards whose leaders die during a takeover."""

from __future__ import annotations

from collections import defaultdict

import pytest
import trio

from shove_actors import (
    NatsStreamConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    open_broker,
)
from shove_actors._errors import ShoveError
from tests.clusters import Cluster
from tests.runtime.world import Journal, Order, consuming

from .test_three_nodes import LONG_S, config, js_of, publish, queue

# Waits for real leases and elections; `pytest -m slow` (CI does).
pytestmark = pytest.mark.slow

COUNT, KEYS, SHARDS = 600, 20, 2


@pytest.mark.limit(240)
@pytest.mark.parametrize("whose", ["topic", "owners"])
async def test_a_leader_dies_during_a_takeover(cluster: Cluster, whose: str) -> None:
    """All shards are unpinned, and the leader of a stream dies in the same moment."""
    topic = SequencedTopic(
        Order,
        key=lambda order: order.key,
        topology=TopologyBuilder(queue("keyed"))
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(SHARDS)
        .keyed(max_in_flight=32)
        .hold_queue(0.2)
        .dlq()
        .nats_stream_config(NatsStreamConfig(num_replicas=3))
        .build(),
    )
    stream = topic.queue if whose == "topic" else f"KV_{topic.topology.owners_bucket}"
    running: set[str] = set()
    twice: list[str] = []
    handled: dict[str, list[int]] = defaultdict(list)
    done: Journal[int] = Journal()

    async def handle(order: Order) -> Outcome:
        if order.key in running:
            twice.append(order.name)
        running.add(order.key)
        try:
            await trio.sleep(0.01)
        finally:
            running.discard(order.key)
        if int(order.name) not in handled[order.key]:
            handled[order.key].append(int(order.name))
            done.add(int(order.name))
        return Outcome.ACK

    async with open_broker(config(cluster)) as one, open_broker(config(cluster)) as two:
        await one.declare(topic)
        assert (await js_of(one).stream_info(stream)).config.num_replicas == 3
        async with (
            consuming(one, topic, handle, ack_wait=5.0),
            consuming(two, topic, handle, ack_wait=5.0),
            trio.open_nursery() as nursery,
        ):

            async def take_over() -> None:
                await done.until(COUNT // 3, within=LONG_S)
                leader = await cluster.leader_of(js_of(one), stream)
                for shard in range(SHARDS):
                    op = f"CONSUMER.UNPIN.{topic.queue}.{topic.topology.shard_durable(shard)}"
                    try:
                        await js_of(one).call(op, {"group": "owner"})
                    except ShoveError:
                        continue  # as good as done: the leader dies next
                await trio.to_thread.run_sync(leader.kill)

            nursery.start_soon(take_over)
            await publish(one, topic, COUNT, [], keys=KEYS)
            await done.until(COUNT, within=LONG_S)
    assert twice == []
    for key in map(str, range(KEYS)):
        assert handled[key] == [n for n in range(COUNT) if n % KEYS == int(key)], key
