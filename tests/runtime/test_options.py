"""Options of a wrong type or out of range: refused where they are given, by their names.

Those of `register` are in `test_worker.py`, those of the autoscaler in `test_scaling.py`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors import (
    AuditLog,
    MemoryConfig,
    NatsStreamConfig,
    Retention,
    Telemetry,
    UsageError,
    audited,
    jetstream,
    open_broker,
)
from shove_actors.embedded import ServerProcess

from .world import Order, World, ack


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("max_pending", value) for value in (0, -1, 1.5, True, None, "9", math.inf)),
        *(("publish_timeout", value) for value in (0, -1, True, None, "9", math.inf, math.nan)),
        *(("telemetry", value) for value in (5, "no", Telemetry)),
        ("listener", 5),
    ],
    ids=str,
)
async def test_of_a_broker(option: str, value: object) -> None:
    given: dict[str, Any] = {option: value}
    with pytest.raises(UsageError, match=f"^{option}="):
        async with open_broker(MemoryConfig(), **given):
            pass


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("metrics", "no"),
        ("tracing", None),
        ("meter_provider", 5),
        ("tracer_provider", "x"),
        ("prefix", None),
    ],
)
def test_of_telemetry(option: str, value: object) -> None:
    given: dict[str, Any] = {option: value}
    with pytest.raises(UsageError, match=f"telemetry {option}"):
        Telemetry(**given)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, "1", True])
def test_of_an_audit(timeout: Any) -> None:
    with pytest.raises(UsageError, match="audited timeout="):
        audited(ack, print, timeout=timeout)


@pytest.mark.parametrize("sink", [AuditLog, None, 5])
def test_a_sink_is_an_object_or_a_function(sink: Any) -> None:
    with pytest.raises(UsageError, match="audited"):
        audited(ack, sink)


def test_what_is_audited_is_a_handler() -> None:
    nothing: Any = None
    with pytest.raises(UsageError, match="give the handler"):
        audited(nothing, print)
    with pytest.raises(UsageError, match="give it the broker"):
        AuditLog(nothing)


async def test_of_a_run(memory_world: World, autojump_clock: trio.testing.MockClock) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, ack)
        wrong: list[Any] = [-1, None, "1", True, math.nan]
        for drain_timeout in wrong:
            with pytest.raises(UsageError, match=r"^drain_timeout="):
                await group.run_until(trio.sleep_forever, drain_timeout=drain_timeout)
        number: Any = 15
        with pytest.raises(UsageError, match=r"run_until\(signal=int\)"):
            await group.run_until(number)
        # Nothing of that has used it up.
        assert (await group.run_until(trio.lowlevel.checkpoint)).exit_code == 0


# ------------------------------------------------------------------ the configuration


async def test_a_configuration_of_the_jetstream_client_is_as_good(
    server: ServerProcess, memory_world: World
) -> None:
    topic = memory_world.topic()
    async with open_broker(jetstream.NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        assert (await broker.publisher().publish(topic, Order("x"))).sequence == 1


@pytest.mark.parametrize(
    ("config", "shown"),
    [("nats://x", "str"), (None, "NoneType"), (MemoryConfig, "the class MemoryConfig")],
    ids=str,
)
async def test_what_is_no_configuration(config: Any, shown: str) -> None:
    with pytest.raises(UsageError, match=f"such as NatsConfig.* not {shown}"):
        async with open_broker(config):
            pass


@pytest.mark.parametrize(
    ("config", "warns"),
    [
        (NatsStreamConfig(retention=Retention.LIMITS, max_messages=5), True),
        (NatsStreamConfig(retention=Retention.LIMITS, max_bytes=5_000_000), True),
        (NatsStreamConfig(retention=Retention.LIMITS, max_messages=5, max_age=60), False),
        (NatsStreamConfig(retention=Retention.LIMITS), False),
        (NatsStreamConfig(max_messages=5), False),
    ],
    ids=["messages", "bytes", "age", "endless", "work-queue"],
)
async def test_a_stream_that_would_fill_up_for_good_is_said(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    config: NatsStreamConfig,
    warns: bool,
) -> None:
    topic = memory_world.topic(lambda builder: builder.nats_stream_config(config).dlq())
    async with memory_world.broker(topic):
        pass
    said = [r for r in caplog.records if r.__dict__.get("shove_event") == "stream_fills"]
    assert len(said) == warns
    assert all("max_age" in record.getMessage() for record in said)
