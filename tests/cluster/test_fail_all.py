"""FAIL_ALL where the leaders of the topic, and of the bucket of poisoned keys, die under load."""

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
from tests.clusters import Cluster
from tests.runtime.world import Journal, Order, consuming

from .test_three_nodes import LONG_S, config, js_of, publish, queue

# Waits for real leases and elections; `pytest -m slow` (CI does).
pytestmark = pytest.mark.slow

COUNT, KEYS = 600, 20
#: The first message of a key from here on is rejected; messages are numbered through, so this is
#: in the middle of the load.
FAILS_FROM = {str(key): 150 + 10 * key for key in range(0, KEYS, 2)}


@pytest.mark.limit(240)
@pytest.mark.parametrize("whose", ["topic", "bucket", "dead letters"])
async def test_no_later_message_is_handled_when_a_leader_dies(cluster: Cluster, whose: str) -> None:
    topic = SequencedTopic(
        Order,
        key=lambda order: order.key,
        topology=TopologyBuilder(queue("fail-all"))
        .sequenced(SequenceFailure.FAIL_ALL)
        .routing_shards(4)
        .hold_queue(0.2)
        .dlq()
        .nats_stream_config(NatsStreamConfig(num_replicas=3))
        .build(),
    )
    stream = {
        "topic": topic.queue,
        "bucket": f"KV_{topic.topology.poison_bucket}",
        "dead letters": str(topic.topology.dlq),
    }[whose]
    handled: dict[str, list[int]] = defaultdict(list)
    done: Journal[int] = Journal()

    async def handle(order: Order) -> Outcome:
        number = int(order.name)
        handled[order.key].append(number)
        done.add(number)
        await trio.lowlevel.checkpoint()
        return Outcome.REJECT if number >= FAILS_FROM.get(order.key, COUNT) else Outcome.ACK

    async with open_broker(config(cluster)) as one, open_broker(config(cluster)) as two:
        await one.declare(topic)
        assert (await js_of(one).stream_info(stream)).config.num_replicas == 3
        async with (
            consuming(one, topic, handle, ack_wait=5.0),
            consuming(two, topic, handle, ack_wait=5.0),
            trio.open_nursery() as nursery,
        ):

            async def kill() -> None:
                await done.until(COUNT // 3, within=LONG_S)
                leader = await cluster.leader_of(js_of(one), stream)
                await trio.to_thread.run_sync(leader.kill)

            nursery.start_soon(kill)
            await publish(one, topic, COUNT, [], keys=KEYS)
            with trio.fail_after(LONG_S):
                for shard in range(4):
                    while True:
                        durable = topic.topology.shard_durable(shard)
                        try:
                            backlog = await one.backend.backlog(topic.queue, durable)
                        except Exception:  # no leader yet
                            backlog = None
                        if backlog and not backlog.pending and not backlog.ack_pending:
                            break
                        await trio.sleep(0.05)
        poisoned = {found.key for found in await one.poisoned(topic)}
        buried: dict[str, set[int]] = defaultdict(set)
        dlq, sequence = str(topic.topology.dlq), 1
        while (letter := await one.backend.next_message(dlq, sequence)) is not None:
            sequence = letter.sequence + 1
            order = topic.decode(letter.payload)
            buried[order.key].add(int(order.name))
    assert poisoned == set(FAILS_FROM)
    for key in map(str, range(KEYS)):
        mine = [number for number in range(COUNT) if number % KEYS == int(key)]
        first = next((n for n in mine if n >= FAILS_FROM.get(key, COUNT)), COUNT)
        assert sorted(set(handled[key])) == [n for n in mine if n <= first], key
        assert sorted(buried[key]) == [n for n in mine if n >= first], key
