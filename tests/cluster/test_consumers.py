"""The client's consumers on three nodes, with the consumer's leader killed: C15, C16, C19."""

from __future__ import annotations

import contextlib
import os

import pytest
import trio

from shove_actors._errors import ConnectionError, JetStreamError, RequestTimeout, ShoveError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Consumer, JetStream, Message, NatsConfig, Stream, connect
from tests.clusters import Cluster
from tests.support import wait_until

# Waits for elections; `pytest -m slow` (CI does).
pytestmark = [pytest.mark.slow, pytest.mark.limit(120.0)]

LONG_S = 60.0


def config(cluster: Cluster) -> NatsConfig:
    return NatsConfig(cluster.urls, reconnect_wait=0.1, reconnect_jitter=0.05)


async def make(js: JetStream) -> tuple[Stream, Consumer]:
    name = f"cons-{os.urandom(3).hex()}"
    stream = await js.create_stream(name=name, subjects=[f"{name}.*"], num_replicas=3)
    consumer = await stream.create_consumer(
        durable_name="d", num_replicas=3, ack_wait=60.0, max_ack_pending=10_000
    )
    return stream, consumer


async def store(js: JetStream, name: str, first: int, count: int) -> None:
    """Each with an id, again and again until it is stored."""
    for number in range(first, first + count):
        with trio.fail_after(LONG_S):
            while True:
                with contextlib.suppress(ShoveError):
                    await js.publish(f"{name}.a", b"%d" % number, msg_id=f"m{number}")
                    break
                await trio.sleep(0.05)


async def leader(cluster: Cluster, consumer: Consumer) -> ServerProcess:
    with trio.fail_after(LONG_S):
        while True:
            with contextlib.suppress(RequestTimeout, JetStreamError, ConnectionError):
                found = (await consumer.info()).cluster
                if found is not None and found.leader:
                    return cluster.node(found.leader)
            await trio.sleep(0.05)


async def test_c15_the_leader_is_killed_while_iterating(cluster: Cluster) -> None:
    async with connect(config(cluster)) as js, connect(config(cluster)) as publisher:
        stream, consumer = await make(js)
        found: list[int] = []

        async def read() -> None:
            async with consumer.messages(max_messages=20, expiry=4.0, heartbeat=1.0) as messages:
                async for message in messages:
                    found.append(int(message.data))
                    await message.ack()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await store(publisher, stream.name, 0, 50)
            await wait_until(lambda: len(found) == 50, timeout=LONG_S)
            node = await leader(cluster, consumer)
            await trio.to_thread.run_sync(node.kill)
            await store(publisher, stream.name, 50, 100)
            await wait_until(lambda: len(set(found)) == 150, timeout=LONG_S)
            nursery.cancel_scope.cancel()
        assert sorted(set(found)) == list(range(150))


async def test_c16_the_leader_stands_still(cluster: Cluster) -> None:
    """SIGSTOP: no word of farewell. The heartbeats that are missing tell, or the new leader."""
    async with connect(config(cluster)) as js, connect(config(cluster)) as publisher:
        stream, consumer = await make(js)
        notices: list[Exception] = []
        found: list[int] = []

        async def handle(message: Message) -> None:
            found.append(int(message.data))
            await message.ack()

        node = await leader(cluster, consumer)
        async with consumer.consume(
            handle, expiry=4.0, heartbeat=1.0, on_error=notices.append
        ) as loop:
            await store(publisher, stream.name, 0, 5)
            await wait_until(lambda: len(found) == 5, timeout=LONG_S)
            node.pause()
            try:
                # Without a message: only silence tells that something is wrong.
                await wait_until(lambda: notices, timeout=LONG_S)
            finally:
                node.resume()
            await store(publisher, stream.name, 5, 5)
            await wait_until(lambda: len(set(found)) == 10, timeout=LONG_S)
        assert set(found) == set(range(10))
        assert loop.notices == tuple(notices)


async def test_c19_two_share_while_the_leader_is_killed(cluster: Cluster) -> None:
    async with (
        connect(config(cluster)) as js,
        connect(config(cluster)) as second,
        connect(config(cluster)) as publisher,
    ):
        stream, consumer = await make(js)
        found: list[list[int]] = [[], []]

        async def read(mine: Consumer, numbers: list[int]) -> None:
            async with mine.messages(max_messages=5, expiry=4.0, heartbeat=1.0) as messages:
                async for message in messages:
                    numbers.append(int(message.data))
                    # Confirmed, so that it cannot come again after the kill.
                    with trio.move_on_after(10):
                        with contextlib.suppress(ShoveError):
                            await message.double_ack(timeout=2.0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, consumer, found[0])
            nursery.start_soon(read, await second.consumer(stream.name, "d"), found[1])
            await store(publisher, stream.name, 0, 100)
            node = await leader(cluster, consumer)
            await trio.to_thread.run_sync(node.kill)
            await store(publisher, stream.name, 100, 100)
            await wait_until(lambda: len({*found[0], *found[1]}) == 200, timeout=LONG_S)
            nursery.cancel_scope.cancel()
        assert all(found)
        assert {*found[0], *found[1]} == set(range(200))
        # Only what was on its way when the leader died may have come to both.
        assert len(found[0]) + len(found[1]) <= 200 + 10


async def test_c22_an_ordered_consumer_dies_with_its_node(cluster: Cluster) -> None:
    """It has one replica, in memory; the next one is made elsewhere and goes on without a gap."""
    async with connect(config(cluster)) as js, connect(config(cluster)) as publisher:
        stream, _ = await make(js)
        found: list[int] = []

        async with stream.ordered_consumer() as ordered:
            node = cluster.node(str((await ordered.info()).cluster.leader))  # type: ignore[union-attr]

            async def read() -> None:
                async with ordered.messages(
                    max_messages=20, expiry=4.0, heartbeat=1.0, stop_after=150
                ) as messages:
                    async for message in messages:
                        found.append(message.metadata.stream_sequence)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await store(publisher, stream.name, 0, 50)
                await wait_until(lambda: len(found) == 50, timeout=LONG_S)
                await trio.to_thread.run_sync(node.kill)
                await store(publisher, stream.name, 50, 100)
                with trio.fail_after(LONG_S):
                    await wait_until(lambda: len(found) == 150, timeout=LONG_S)
        assert found == list(range(1, 151))
