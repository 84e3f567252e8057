"""The client's consumers on three nodes, with the consumer's leader killed: C15, C16, C19."""

from __future__ import annotations

import contextlib
import os

import pytest
import trio

from shove_actors._errors import (
    ConnectionError,
    JetStreamError,
    LeadershipChanged,
    NoHeartbeat,
    NoResponders,
    RequestTimeout,
    ShoveError,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Consumer, JetStream, Message, NatsConfig, Stream, connect
from tests.clusters import Cluster
from tests.jetstream.kit import lag
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


async def leader(
    cluster: Cluster, consumer: Consumer, *, but: ServerProcess | None = None
) -> ServerProcess:
    """The node that leads the consumer; with `but`, as soon as it is another one."""
    with trio.fail_after(LONG_S):
        while True:
            with contextlib.suppress(RequestTimeout, JetStreamError, ConnectionError):
                found = (await consumer.info()).cluster
                if found is not None and found.leader:
                    node = cluster.node(found.leader)
                    if node is not but:
                        return node
            await trio.sleep(0.05)


def first_to(cluster: Cluster, node: ServerProcess) -> NatsConfig:
    """Connected to that one of the nodes, as long as it is there."""
    others = [other.url for other in cluster.nodes if other is not node]
    return NatsConfig(
        [node.url, *others], dont_randomize=True, reconnect_wait=0.1, reconnect_jitter=0.05
    )


async def test_c15_the_leader_is_killed_while_iterating(cluster: Cluster) -> None:
    """The reader is connected to the node that dies. All arrives, the first within 2 s of the
    moment from which on it can: reconnected, stored, and another server leads the consumer."""
    async with connect(config(cluster)) as publisher:
        stream, consumer = await make(publisher)
        node = await leader(cluster, consumer)
        found: list[int] = []
        ready: list[float] = []
        first: list[float] = []

        async with connect(first_to(cluster, node)) as js, trio.open_nursery() as nursery:
            back = trio.Event()
            js.connection.listen(lambda event: event.kind == "reconnected" and back.set())
            reader = await js.consumer(stream.name, "d")

            async def read() -> None:
                async with reader.messages(max_messages=20, expiry=4.0, heartbeat=1.0) as messages:
                    async for message in messages:
                        if int(message.data) >= 50:
                            first.append(trio.current_time())
                        found.append(int(message.data))
                        await message.ack()

            nursery.start_soon(read)
            await store(publisher, stream.name, 0, 50)
            await wait_until(lambda: len(found) == 50, timeout=LONG_S)
            await trio.to_thread.run_sync(node.kill)
            async with lag() as late:
                await store(publisher, stream.name, 50, 1)
                with trio.fail_after(LONG_S):
                    await back.wait()
                await leader(cluster, consumer, but=node)
                ready.append(trio.current_time())
                await wait_until(lambda: first, timeout=LONG_S)
            await store(publisher, stream.name, 51, 99)
            await wait_until(lambda: len(set(found)) == 150, timeout=LONG_S)
            nursery.cancel_scope.cancel()
        assert sorted(set(found)) == list(range(150))
        assert first[0] - ready[0] < 2.0 + late.seconds


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_c16_the_leader_falls_silent(cluster: Cluster, how: str) -> None:
    """SIGSTOP or SIGKILL: no word of farewell, to a reader that is connected to another node. The
    heartbeats that are missing tell, or the new leader."""
    async with connect(config(cluster)) as publisher:
        stream, consumer = await make(publisher)
        notices: list[Exception] = []
        found: list[int] = []

        async def handle(message: Message) -> None:
            found.append(int(message.data))
            await message.ack()

        node = await leader(cluster, consumer)
        other = next(one for one in cluster.nodes if one is not node)
        async with connect(first_to(cluster, other)) as js:
            reader = await js.consumer(stream.name, "d")
            async with reader.consume(
                handle, expiry=4.0, heartbeat=1.0, on_error=notices.append
            ) as loop:
                await store(publisher, stream.name, 0, 5)
                await wait_until(lambda: len(found) == 5, timeout=LONG_S)
                if how == "killed":
                    await trio.to_thread.run_sync(node.kill)
                else:
                    node.pause()
                try:
                    # Without a message: only silence tells that something is wrong.
                    await wait_until(lambda: notices, timeout=LONG_S)
                finally:
                    if how == "stopped":
                        node.resume()
                await store(publisher, stream.name, 5, 5)
                await wait_until(lambda: len(set(found)) == 10, timeout=LONG_S)
            assert js.connection.reconnects == 0
        assert set(found) == set(range(10))
        assert loop.notices == tuple(notices)
        assert {type(notice) for notice in notices} <= {
            NoHeartbeat,
            LeadershipChanged,
            NoResponders,
        }


async def test_c19_two_share_while_the_leader_is_killed(cluster: Cluster) -> None:
    """All 200 arrive, and both get some. "No repeats" is true of one server (`test_c19_sharing`).

    With the leader killed it cannot be: what was delivered and not yet confirmed when it died, the
    next leader does not know to have been delivered, and delivers it. What can be asked for is that
    nothing comes again whose acknowledgement was confirmed before.
    """
    async with (
        connect(config(cluster)) as js,
        connect(config(cluster)) as second,
        connect(config(cluster)) as publisher,
    ):
        stream, consumer = await make(js)
        found: list[list[int]] = [[], []]
        confirmed: set[int] = set()
        repeated: list[int] = []
        unconfirmed: list[int] = []

        async def read(mine: Consumer, numbers: list[int]) -> None:
            async with mine.messages(max_messages=5, expiry=4.0, heartbeat=1.0) as messages:
                async for message in messages:
                    number = int(message.data)
                    if number in confirmed:
                        repeated.append(number)
                    numbers.append(number)
                    try:
                        await message.double_ack(timeout=2.0)
                    except ShoveError:
                        unconfirmed.append(number)
                    else:
                        confirmed.add(number)

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
        assert repeated == []
        # And only what was on its way when the leader died, five for each reader at most, is open.
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
