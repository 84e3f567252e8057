"""Section A of the cases: pulls, connections and servers that go away."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio

from shove_actors import (
    AuthenticationError,
    Broker,
    ConnectionError,
    JetStreamNotEnabled,
    NatsConfig,
    Outcome,
    PublishError,
    SequencedTopic,
    SequenceFailure,
    ShoveError,
    Topic,
    TopologyBuilder,
    UnavailableError,
    open_broker,
)
from shove_actors.backends import BackendEvent
from shove_actors.backends.nats import NatsBackend, _backend, _demand
from shove_actors.embedded import ServerProcess
from shove_actors.messaging import Topology
from tests.jetstream.kit import texts_of
from tests.runtime.world import Journal, Order, ack, consuming
from tests.secured import SecuredServer

FAST: dict[str, Any] = {"reconnect_wait": 0.02, "reconnect_jitter": 0.0}


def plain(queue: str) -> Topic[Order]:
    return Topic(Order, TopologyBuilder(queue).dlq().build())


def js_of(broker: Broker) -> Any:
    assert isinstance(broker.backend, NatsBackend)
    return broker.backend.js


def events_of(broker: Broker) -> Journal[BackendEvent]:
    events: Journal[BackendEvent] = Journal()
    broker.backend.listen(events.add)
    return events


async def until_pulling(
    broker: Broker, topology: Topology, count: int = 1, durable: str | None = None
) -> None:
    """Until the server has that many pulls of the durable."""
    with trio.fail_after(10):
        while True:
            info = await js_of(broker).consumer_info(topology.queue, durable or topology.durable)
            if info.num_waiting >= count:
                return
            await trio.sleep(0.01)


# ------------------------------------------------------------------ PC-001


async def test_pc001_pull_in_flight_when_the_server_dies(own_server: ServerProcess) -> None:
    topic = plain("q")
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with open_broker(NatsConfig(own_server.url, **FAST)) as broker:
        await broker.declare(topic)
        async with consuming(broker, topic, handle):
            await until_pulling(broker, topic.topology)
            await trio.to_thread.run_sync(own_server.kill)
            await trio.to_thread.run_sync(own_server.restart)
            await broker.backend.wait_connected()
            await broker.publisher().publish(topic, Order("after"))
            # Far below the pull's own expiry (30 s) and its heartbeats (20 s).
            assert await seen.until(1, within=5.0) == ["after"]


# ------------------------------------------------------------------ PC-002, PC-003


async def test_pc002_durable_deleted_while_the_group_runs(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    topic = plain(fresh_queue())
    queue, durable = topic.queue, topic.topology.durable
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        events = events_of(broker)
        async with consuming(broker, topic, handle, ack_wait=9.0):
            await until_pulling(broker, topic.topology)
            before = (await js_of(broker).consumer_info(queue, durable)).config
            await js_of(broker).delete_consumer(queue, durable)
            await broker.publisher().publish(topic, Order("after"))
            assert await seen.until(1, within=5.0) == ["after"]
            assert (await js_of(broker).consumer_info(queue, durable)).config == before
            assert [event.kind for event in events.entries] == ["lane_recreated"]


async def test_pc003_stream_deleted_and_made_again(
    server: ServerProcess, fresh_queue: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = plain(fresh_queue())
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        events = events_of(broker)
        asked: list[float] = []
        ensure = broker.backend.ensure_durable  # type: ignore[attr-defined]

        async def counting(spec: object) -> bool:
            asked.append(trio.current_time())
            return bool(await ensure(spec))

        async with consuming(broker, topic, handle):
            await until_pulling(broker, topic.topology)
            monkeypatch.setattr(broker.backend, "ensure_durable", counting)
            await js_of(broker).delete_stream(topic.queue)
            await events.until(1)
            with trio.move_on_after(1.0):
                await seen.until(1)
            pauses = [b - a for a, b in itertools.pairwise(asked)]
            assert len(asked) <= 4
            assert all(pause > 0.2 for pause in pauses)
            await broker.declare(topic)
            await broker.publisher().publish(topic, Order("after"))
            assert await seen.until(1, within=10.0) == ["after"]
            kinds = [event.kind for event in events.entries]
            assert kinds == ["lane_waiting", "lane_recreated"]


# ------------------------------------------------------------------ PC-004, PC-006


async def test_pc004_cancelled_pull_steals_nothing(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    """Two processes on one shard; the first one's pull waits longest, and it leaves."""
    queue = fresh_queue()
    topic = SequencedTopic(
        Order,
        key=lambda order: order.key,
        topology=TopologyBuilder(queue)
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(1)
        .allow_message_loss()
        .build(),
    )
    seen: Journal[tuple[str, str]] = Journal()

    def handler(where: str) -> Any:
        async def handle(order: Order) -> Outcome:
            seen.add((where, order.name))
            return Outcome.ACK

        return handle

    config = NatsConfig(server.url)
    async with open_broker(config) as second, open_broker(config) as first:
        await second.declare(topic)
        await first.declare(topic)
        async with consuming(first, topic, handler("first")) as run:
            await first.publisher().publish(topic, Order("one"))
            await seen.until(1)
            async with consuming(second, topic, handler("second")):
                await until_pulling(second, topic.topology, 2, f"{queue}-shard-0")
                await run.stop()
                for name in ("two", "three"):
                    await second.publisher().publish(topic, Order(name))
                # Far below the lease of 30 s.
                assert await seen.until(3, within=5.0) == [
                    ("first", "one"),
                    ("second", "two"),
                    ("second", "three"),
                ]


async def test_pc006_limit_holds_after_a_cancelled_larger_batch(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    topic = plain(fresh_queue())
    active: set[str] = set()
    seen: Journal[str] = Journal()
    most = 0

    async def handle(order: Order) -> Outcome:
        nonlocal most
        active.add(order.name)
        most = max(most, len(active))
        await trio.sleep(0.01)
        active.discard(order.name)
        seen.add(order.name)
        return Outcome.ACK

    options: dict[str, Any] = {"concurrent_processing": True}
    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        async with consuming(broker, topic, handle, prefetch=5, **options):
            await until_pulling(broker, topic.topology)
        async with consuming(broker, topic, handle, prefetch=2, **options):
            for number in range(20):
                await broker.publisher().publish(topic, Order(str(number)))
                # Of this process: the server's count may lag behind acknowledgements under way.
                assert max(len(lane.held) for lane in broker.leases._lanes) <= 2
            await seen.until(20)
        assert most <= 2
        assert sorted(seen.entries, key=int) == [str(number) for number in range(20)]


# ------------------------------------------------------------------ PC-009


async def test_pc009_handler_longer_than_two_heartbeats(
    server: ServerProcess, fresh_queue: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_demand, "PULL_HEARTBEAT_S", 0.25)
    monkeypatch.setattr(_backend, "WATCH_S", 0.05)
    topic = plain(fresh_queue())
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        await trio.sleep(0.8 if order.name == "slow" else 0)
        seen.add(order.name)
        return Outcome.ACK

    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        events = events_of(broker)
        async with consuming(broker, topic, handle, prefetch=1):
            for name in ("slow", "second", "slow", "fourth"):
                await broker.publisher().publish(topic, Order(name))
            assert await seen.until(4, within=8.0) == ["slow", "second", "slow", "fourth"]
        assert events.entries == []


# ------------------------------------------------------------------ PC-012


async def test_pc012_without_jetstream() -> None:
    topic = plain("q")
    with ServerProcess(jetstream=False) as process:
        async with open_broker(NatsConfig(process.url), publish_timeout=5.0) as broker:
            for call in (
                lambda: broker.declare(topic),
                lambda: broker.publisher().publish(topic, Order("x")),
            ):
                with trio.fail_after(10), pytest.raises(JetStreamNotEnabled) as caught:
                    await call()
                assert "-js" in str(caught.value)
                assert process.url in str(caught.value)


async def test_pc012_told_apart_from_a_missing_stream(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    async with open_broker(NatsConfig(server.url)) as broker:
        with pytest.raises(ShoveError, match="declare") as caught:
            await broker.publisher().publish(plain(fresh_queue()), Order("x"))
        assert not isinstance(caught.value, UnavailableError)


# ------------------------------------------------------------------ PC-013, PC-015


async def test_pc013_reconnect_budget_spent(own_server: ServerProcess) -> None:
    """Whoever uses the connection hears of it, and the block ends with one connection error."""
    topic = plain("q")
    config = NatsConfig(own_server.url, max_reconnect_attempts=2, **FAST)
    publishing: list[BaseException] = []

    async def use() -> None:
        async with open_broker(config, publish_timeout=1.0) as broker:
            await broker.declare(topic)

            async def publish() -> None:
                try:
                    while True:
                        await broker.publisher().publish(topic, Order("x"))
                except PublishError as exc:
                    publishing.append(exc)

            async with consuming(broker, topic, ack), trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                await until_pulling(broker, topic.topology)
                await trio.to_thread.run_sync(own_server.kill)
                await trio.sleep_forever()

    with trio.fail_after(15), pytest.raises(BaseException) as caught:  # noqa: PT011
        await use()
    assert not isinstance(caught.value, trio.TooSlowError)
    told = [text for text in texts_of(caught.value) if "gave up after 2 reconnect" in text]
    assert told


async def test_pc015_first_connect_to_a_closed_port() -> None:
    """Default settings; the address is redacted."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        started = trio.current_time()
        with pytest.raises(ConnectionError) as caught:
            async with open_broker(NatsConfig(f"nats://me:s3cret@127.0.0.1:{port}")):
                pass
    assert trio.current_time() - started < 5.0
    assert f"nats://***@127.0.0.1:{port}" in str(caught.value)
    assert not any("s3cret" in text for text in texts_of(caught.value))


async def test_pc015_first_connect_to_a_black_hole(own_server: ServerProcess) -> None:
    """Accepted by the kernel, never answered: `connect_timeout` per server; cancelled at once."""
    own_server.pause()
    config = NatsConfig(own_server.url, connect_timeout=0.5)
    with trio.fail_after(5), pytest.raises(ConnectionError, match="connect_timeout"):
        async with open_broker(config):
            pass
    config.connect_timeout = 60.0
    with trio.fail_after(5), trio.move_on_after(0.3) as scope:
        async with open_broker(config):
            pass
    assert scope.cancelled_caught


# ------------------------------------------------------------------ PC-016


async def test_pc016_expired_credentials_are_read_again(creds_server: SecuredServer) -> None:
    """The server ends the connection; by then the file holds new ones."""
    assert creds_server.operator is not None
    path = trio.Path(creds_server.settings["creds_file"])
    await path.write_text(creds_server.operator.creds(expires_in=2.0))
    settings = creds_server.config(**FAST)
    config = NatsConfig(settings.url_or_urls, creds_file=settings.creds_file, **FAST)
    topic = plain("q")
    async with open_broker(config) as broker:
        events = events_of(broker)
        await broker.declare(topic)
        await path.write_text(creds_server.operator.creds("later"))
        with trio.fail_after(15):
            await events.until(2)
            await broker.backend.wait_connected()
        lost = events.entries[0]
        assert lost.kind == "disconnected"
        assert "expired" in lost.detail.lower()
        assert (await broker.publisher().publish(topic, Order("x"))).sequence == 1


async def test_pc016_expired_credentials_fail_loudly(creds_server: SecuredServer) -> None:
    assert creds_server.operator is not None
    path = trio.Path(creds_server.settings["creds_file"])
    await path.write_text(creds_server.operator.creds(expires_in=2.0))
    settings = creds_server.config()
    config = NatsConfig(settings.url_or_urls, creds_file=settings.creds_file, **FAST)
    topic = plain("q")
    ended: list[BaseException] = []

    async def use() -> None:
        async with open_broker(config, publish_timeout=1.0) as broker:
            await broker.declare(topic)
            while True:  # nobody hangs
                await broker.publisher().publish(topic, Order("x"))

    with trio.fail_after(15):
        try:
            await use()
        except BaseException as exc:
            ended.append(exc)
    (error,) = ended
    assert any(AuthenticationError.__name__ in text for text in texts_of(error))
