"""Every metric, with its labels, as a real SDK of OpenTelemetry sees it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from opentelemetry.metrics import Histogram

from shove_actors import (
    AutoscalerConfig,
    MemoryConfig,
    Outcome,
    PublishRefused,
    StreamFull,
    Telemetry,
    Topic,
    UsageError,
    audited,
    open_broker,
)
from shove_actors.runtime import _metrics as m
from shove_actors.runtime._instruments import Tally
from shove_actors.runtime._telemetry import choose
from tests.runtime.fixtures import Clock
from tests.runtime.world import (
    Journal,
    Order,
    Script,
    World,
    burying,
    consuming,
    raw_publish,
    running,
    until,
)

from .kit import Sdk, labels


def of(topic: Topic[Any], **more: str) -> Any:
    return labels(topic=topic.queue, consumer_group=topic.topology.durable, **more)


async def test_consuming(world: World, clock: Clock) -> None:
    topic, sdk = world.topic(), Sdk()
    script = Script(
        outcomes={
            "retried": [Outcome.RETRY],
            "deferred": [Outcome.DEFER],
            "rejected": [Outcome.REJECT],
            "raised": [ValueError("boom")],
        }
    )
    names = ["plain", "retried", "deferred", "rejected", "raised"]
    async with world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish_batch(topic, [Order(n) for n in names])
        async with consuming(broker, topic, script):
            await script.journal.until(8)
            await world.until_kept(broker, topic.topology.dlq, 1)
            await world.until_kept(broker, topic.queue, 0)
    outcomes = {"ack": 4, "retry": 2, "defer": 1, "reject": 1}
    expected = {of(topic, outcome=name): count for name, count in outcomes.items()}
    assert sdk.values("messages_consumed_total") == expected
    assert sdk.values("message_processing_duration_seconds") == expected
    assert sdk.values("message_size_bytes") == {of(topic): 8}
    assert sdk.values("messages_dead_total") == {of(topic, reason="rejected"): 1}
    assert sdk.values("messages_failed_total") == {}


async def test_the_duration_is_that_of_the_handler(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk = memory_world.topic(), Sdk()

    async def handle(order: Order) -> Outcome:
        await trio.sleep(2)
        return Outcome.ACK

    async def slow_sink(record: object) -> None:
        await trio.sleep(3)

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(handle, slow_sink)):
            await memory_world.until_kept(broker, topic.queue, 0)
    [point] = sdk.points()["shove_message_processing_duration_seconds"].values()
    assert point.sum == pytest.approx(2)
    assert tuple(point.explicit_bounds) == m.SECONDS


async def test_failures_without_an_answer(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk = memory_world.topic(), Sdk()

    async def handle(order: Order) -> Outcome:
        await trio.sleep_forever()
        return Outcome.ACK

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await raw_publish(broker, topic.queue, b"no json")
        await raw_publish(broker, topic.queue, b"x" * 200)
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(
            broker, topic, handle, handler_timeout=1, max_message_size=100, max_retries=1
        ):
            await memory_world.until_kept(broker, topic.topology.dlq, 3)
    assert sdk.values("messages_failed_total") == {
        of(topic, reason="deserialize"): 1,
        of(topic, reason="oversize"): 1,
        of(topic, reason="timeout"): 2,
    }
    assert sdk.values("messages_dead_total") == {
        of(topic, reason="undecodable"): 1,
        of(topic, reason="oversize"): 1,
        of(topic, reason="max_retries_exceeded"): 1,
    }
    assert sdk.values("messages_consumed_total") == {of(topic, outcome="retry"): 2}


async def test_publishing_by_every_form(world: World, clock: Clock) -> None:
    topic, sdk = world.topic(), Sdk()
    async with world.broker(topic, telemetry=sdk.telemetry()) as broker:
        publisher = broker.publisher()
        await publisher.publish(topic, Order("a"), message_id="m-1")
        await publisher.publish(topic, Order("a"), message_id="m-1")
        await publisher.publish_batch(topic, [Order("b"), Order("c")])
        async with publisher.pipeline(topic) as pipe:
            await pipe.send(Order("d"))
        await world.limit(broker, topic.queue, 4)
        with pytest.raises((StreamFull, PublishRefused)):
            await publisher.publish(topic, Order("e"))
        backend = broker.backend.capabilities.name
    assert sdk.values("backend_errors_total")[labels(backend=backend, kind="publish")] == 1
    expected = {
        labels(topic=topic.queue, outcome="success"): 5,
        labels(topic=topic.queue, outcome="error"): 1,
    }
    assert sdk.values("messages_published_total") == expected
    assert sdk.values("message_publish_duration_seconds") == expected


async def test_retries_and_dead_letters_are_no_publishes(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk = memory_world.topic(), Sdk()
    script = Script(outcomes={"a": [Outcome.RETRY, Outcome.REJECT]})
    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, script):
            await memory_world.until_kept(broker, topic.topology.dlq, 1)
    assert sdk.values("messages_published_total") == {
        labels(topic=topic.queue, outcome="success"): 1,
        labels(topic=topic.queue, outcome="error"): 0,  # there from the first publish on
    }


async def test_inflight_is_what_runs_at_the_moment_of_the_look(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Two groups of one topic in one process are one number; it is gone when they have ended."""
    topic, sdk = memory_world.topic(), Sdk()
    busy: Journal[str] = Journal()
    release = trio.Event()

    async def handle(order: Order) -> Outcome:
        busy.add(order.name)
        await release.wait()
        return Outcome.ACK

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        async with (
            consuming(broker, topic, handle, consumers=2, prefetch=1),
            consuming(broker, topic, handle, prefetch=1),
        ):
            assert sdk.values("messages_inflight") == {of(topic): 0}
            await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(3)])
            await busy.until(3)
            assert sdk.values("messages_inflight") == {of(topic): 3}
            release.set()
            await memory_world.until_kept(broker, topic.queue, 0)
            assert sdk.values("messages_inflight") == {of(topic): 0}
    assert sdk.values("messages_inflight") == {}


async def test_inflight_may_be_read_by_an_exporters_thread(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    sdk, failures = Sdk(), []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                sdk.points()
            except Exception as exc:
                failures.append(exc)
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(10):
            topic, script = memory_world.topic(), Script()
            async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
                await broker.publisher().publish(topic, Order("a"))
                async with consuming(broker, topic, script):
                    await script.journal.until(1)
    finally:
        stop.set()
        thread.join()
    assert not failures


async def test_dead_letters_are_a_topic_of_their_own(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk, dead = memory_world.topic(), Sdk(), Script()
    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with (
            consuming(broker, topic, Script(outcomes={"a": [Outcome.REJECT]})),
            burying(broker, topic, dead),
        ):
            await dead.journal.until(1)
    dlq = str(topic.topology.dlq)
    assert sdk.values("messages_consumed_total") == {
        of(topic, outcome="reject"): 1,
        labels(topic=dlq, consumer_group=f"{dlq}-consumer", outcome="ack"): 1,
    }


async def test_backend_errors(memory_world: World, autojump_clock: trio.testing.MockClock) -> None:
    topic, sdk = memory_world.topic(), Sdk()
    script = Script(outcomes={"a": [Outcome.REJECT]})
    assert memory_world.memory is not None
    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(topic, Order("a"))
        await memory_world.limit(broker, topic.topology.dlq, 0)
        async with consuming(broker, topic, script) as run:
            await until(lambda: run.group.statistics()[topic.queue].get("stuck", 0) > 0)
            memory_world.memory.delete_durable(topic.queue, topic.topology.durable)
            await until(
                lambda: (
                    labels(backend="memory", kind="lane_recreated")
                    in sdk.values("backend_errors_total")
                )
            )
    values = sdk.values("backend_errors_total")
    assert values[labels(backend="memory", kind="settle")] >= 1
    assert values[labels(backend="memory", kind="lane_recreated")] == 1


@pytest.mark.parametrize("on_failure", ["retry", "keep"])
async def test_audit_failures(
    memory_world: World, autojump_clock: trio.testing.MockClock, on_failure: Any
) -> None:
    topic, sdk, calls = memory_world.topic(), Sdk(), 0

    async def sink(record: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("down")
        await trio.sleep_forever()

    expected = {of(topic, reason="error", consequence="gap"): 1}
    if on_failure == "retry":
        expected = {
            of(topic, reason="error", consequence="retry"): 1,
            of(topic, reason="timeout", consequence="gap"): 1,
        }
    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(Script(), sink, on_failure=on_failure)):
            await until(lambda: len(sdk.values("audit_failures_total")) == len(expected))
            for stream in (topic.queue, topic.topology.holds[0].name):
                await memory_world.until_kept(broker, stream, 0)
    assert sdk.values("audit_failures_total") == expected


async def test_autoscaler_decisions(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk = memory_world.topic(), Sdk()

    async def handle(order: Order) -> Outcome:
        await trio.sleep(1)
        return Outcome.ACK

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(60)])
        group = broker.consumer_group()
        group.register(topic, handle, consumers=(1, 2), prefetch=1, autoscaler=AutoscalerConfig())
        async with running(group):
            await trio.sleep(600)  # the backlog is gone by then, and so is what it called for
    assert sdk.values("autoscaler_decisions_total") == {
        labels(topic=topic.queue, direction="up"): 1,
        labels(topic=topic.queue, direction="down"): 1,
    }


async def test_the_prefix_and_many_brokers_of_one_provider(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sdk = Sdk(prefix="acme_")
    for _ in range(3):
        async with open_broker(MemoryConfig(), telemetry=sdk.telemetry()) as broker:
            topic = memory_world.topic()
            await broker.declare(topic)
            await broker.publisher().publish(topic, Order("a"))
    assert sum(sdk.values("messages_published_total").values()) == 3
    assert all(name.startswith("acme_") for name in sdk.points())
    assert not [r for r in caplog.records if r.name.startswith("opentelemetry")]


def test_the_table_names_every_metric_of_the_specification() -> None:
    names = {metric.name: metric.labels for metric in m.METRICS}
    assert len(names) == len(m.METRICS)
    assert {
        "messages_consumed_total": ("topic", "consumer_group", "outcome"),
        "messages_failed_total": ("topic", "consumer_group", "reason"),
        "messages_published_total": ("topic", "outcome"),
        "autoscaler_decisions_total": ("topic", "direction"),
        "backend_errors_total": ("backend", "kind"),
        "messages_inflight": ("topic", "consumer_group"),
    }.items() <= names.items()
    assert {
        "message_processing_duration_seconds",
        "message_publish_duration_seconds",
        "message_size_bytes",
    } <= set(names)


@pytest.fixture
def all_points() -> dict[str, set[tuple[str, ...]]]:
    """Every instrument used once, through the same objects that the runtime uses."""
    sdk = Sdk()
    instruments = choose(sdk.telemetry())
    assert instruments is not None
    metrics = instruments.metrics
    for metric in m.METRICS:
        instrument = {
            m.CONSUMED: metrics.consumed,
            m.FAILED: metrics.failed,
            m.PUBLISHED: metrics.published,
            m.PROCESSING: metrics.processing,
            m.PUBLISHING: metrics.publishing,
            m.SIZE: metrics.size,
            m.DECISIONS: metrics.decisions,
            m.ERRORS: metrics.errors,
            m.DEAD: metrics.dead,
            m.AUDIT_FAILURES: metrics.audit_failures,
        }.get(metric)
        given = dict.fromkeys(metric.labels, "x")
        if isinstance(instrument, Histogram):
            instrument.record(1, given)
        elif isinstance(instrument, Tally):
            instrument.add(given)
        else:
            assert metric is m.INFLIGHT
    instruments.topic("x", "x", lambda: 1).open()
    return {name: {tuple(dict(k)) for k in points} for name, points in sdk.points().items()}


def test_the_instruments_are_those_of_the_table(
    all_points: dict[str, set[tuple[str, ...]]],
) -> None:
    assert all_points == {
        f"shove_{metric.name}": {tuple(sorted(metric.labels))} for metric in m.METRICS
    }


@pytest.mark.parametrize("prefix", ["9a", "a-b", "a b", "é", "a" * 64])
def test_prefixes_are_checked(prefix: str) -> None:
    with pytest.raises(UsageError, match="prefix"):
        Telemetry(prefix=prefix)


async def test_metrics_alone_write_no_headers(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk = memory_world.topic(), Sdk()
    async with memory_world.broker(topic, telemetry=sdk.telemetry(tracing=False)) as broker:
        await broker.publisher().publish(topic, Order("a"))
        [kept] = await memory_world.kept(broker, topic.queue)
    assert set(kept.headers) == {"Nats-Msg-Id", "Nats-Expected-Stream"}
    assert not sdk.spans()
    assert sdk.values("messages_published_total")
