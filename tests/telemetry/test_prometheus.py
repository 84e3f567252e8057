"""The names that Prometheus sees, through OpenTelemetry's own exporter."""

from __future__ import annotations

import re

import trio.testing
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, generate_latest

from shove_actors import Outcome, Telemetry
from shove_actors.runtime._metrics import METRICS
from tests.runtime.world import Order, Script, World, consuming


async def test_names_and_labels_in_the_exposition_format(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    reader = PrometheusMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    try:
        topic = memory_world.topic()
        script = Script(outcomes={"a": [Outcome.REJECT]})
        telemetry = Telemetry(meter_provider=provider)
        async with memory_world.broker(topic, telemetry=telemetry) as broker:
            await broker.publisher().publish(topic, Order("a"))
            async with consuming(broker, topic, script):
                await memory_world.until_kept(broker, topic.topology.dlq, 1)
                text = generate_latest(REGISTRY).decode()
    finally:
        provider.shutdown()
    shown = set(re.findall(r"^# TYPE (shove_\w+) ", text, re.MULTILINE))
    assert shown == {
        f"shove_{name}"
        for name in (
            "messages_consumed_total",
            "messages_published_total",
            "messages_dead_total",
            "messages_inflight",
            "message_processing_duration_seconds",
            "message_publish_duration_seconds",
            "message_size_bytes",
        )
    }
    assert {name.removeprefix("shove_") for name in shown} <= {m.name for m in METRICS}
    [line] = [x for x in text.splitlines() if x.startswith("shove_messages_consumed_total{")]
    assert f'topic="{topic.queue}"' in line
    assert f'consumer_group="{topic.topology.durable}"' in line
    assert 'outcome="reject"' in line
    assert line.endswith(" 1.0")
