"""Every log line of client, runtime and backends has structured fields, and none has a payload."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import shove_actors
from shove_actors import (
    NatsConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    audited,
    open_broker,
)
from shove_actors._log import about
from shove_actors.embedded import ServerProcess

from .world import Order, Script, World, burying, consuming, raw_publish, until

ROOT = Path(shove_actors.__file__).parent
DOCS = ROOT.parent / "docs" / "operations.md"
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
SECRET = "s3cr3t-payload"


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    for floor in ("jetstream", "runtime", "backends"):
        for path in sorted((ROOT / floor).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in METHODS
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id.endswith("logger")
                ):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def extra_of(call: ast.Call) -> ast.Call | None:
    """The call of `about` that makes the fields of a line."""
    for keyword in call.keywords:
        if (
            keyword.arg == "extra"
            and isinstance(keyword.value, ast.Call)
            and isinstance(keyword.value.func, ast.Name)
            and keyword.value.func.id == "about"
        ):
            return keyword.value
    return None


def test_every_line_says_what_happened() -> None:
    calls = list(log_calls())
    assert len(calls) > 20
    assert [where for where, call in calls if extra_of(call) is None] == []


def test_every_line_about_a_message_says_where_it_is() -> None:
    lacking = [
        where
        for where, call in log_calls()
        if isinstance(call.args[0], ast.Constant)
        and "%s:%d" in str(call.args[0].value)
        and not {"queue", "sequence"} <= {k.arg for k in (extra_of(call) or call).keywords}
    ]
    assert lacking == []


def test_every_event_is_documented() -> None:
    """Events in the code, and those in the table of the documentation."""
    events = set()
    for _, call in log_calls():
        extra = extra_of(call)
        assert extra is not None
        # A literal, or one of two; what is computed otherwise is listed here.
        events |= {
            node.value
            for node in ast.walk(extra.args[0])
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    events |= {"deferred_as_retry", "discarded"}  # Settler.warn_once
    events |= {  # BackendEvent.kind
        "disconnected",
        "reconnected",
        "closed",
        "error",
        "slow_consumer",
        "lane_recreated",
        "lane_waiting",
        "pull_stalled",
    }
    section = DOCS.read_text(encoding="utf-8").partition("## Log events")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.+?) \|", section, re.M))))
    assert documented - {"shove_event"} == events


def test_about_leaves_out_what_is_not_known() -> None:
    assert about("x", queue="q", reason=None) == {"shove_event": "x", "shove_queue": "q"}


async def test_records_of_a_bad_day_carry_fields_and_no_payload(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Handlers that raise, hang and answer nonsense, a full dead-letter queue, a dead letter that
    does not decode, an audit sink that is down: all with a secret in payload and headers."""
    caplog.set_level(logging.DEBUG, logger="shove_actors")
    topic, bare = memory_world.topic(), memory_world.topic(lambda b: b)
    lanes = SequencedTopic(
        Order,
        key=lambda o: o.key,
        topology=TopologyBuilder(memory_world.fresh())
        .sequenced(SequenceFailure.SKIP)
        .hold_queue(0.1)
        .dlq()
        .build(),
    )
    failures = 1

    async def handle(order: Order) -> object:
        kind = order.key
        if kind == "raises":
            raise ValueError("a text of its own")
        if kind == "hangs":
            await trio.sleep_forever()
        if kind == "nonsense":
            return order
        return {"rejects": Outcome.REJECT, "defers": Outcome.DEFER}.get(kind, Outcome.ACK)

    async def sink(record: object) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError(f"cannot insert {SECRET}")

    headers = {"authorization": SECRET}
    async with memory_world.broker(topic, bare, lanes) as broker:
        publisher = broker.publisher()
        for kind in ("raises", "hangs", "nonsense", "rejects"):
            await publisher.publish(topic, Order(SECRET, kind), headers=headers)
        await raw_publish(broker, topic.queue, f"no json {SECRET}".encode(), headers)
        await publisher.publish(bare, Order(SECRET, "rejects"), headers=headers)
        await publisher.publish(lanes, Order(SECRET, "defers"), headers=headers)
        await memory_world.limit(broker, topic.topology.dlq, 2)
        async with (
            consuming(broker, topic, handle, handler_timeout=1, max_retries=0) as run,
            consuming(broker, bare, audited(handle, sink)),
            consuming(broker, lanes, handle, max_retries=1),
        ):
            await until(lambda: run.group.statistics()[topic.queue].get("stuck", 0) > 1)
            await memory_world.limit(broker, topic.topology.dlq, None)
            await memory_world.until_kept(broker, topic.queue, 0)
            await memory_world.until_kept(broker, bare.queue, 0)
            await memory_world.until_kept(broker, lanes.queue, 0)
        async with burying(broker, topic, Script()):
            await memory_world.until_settled(broker, str(topic.topology.dlq))
    ours = [r for r in caplog.records if r.name.startswith("shove_actors.")]
    runtime = [r for r in ours if not r.name.startswith("shove_actors.actors")]
    events = {r.shove_event for r in runtime}
    assert {
        "handler_raised",
        "handler_timed_out",
        "handler_invalid",
        "settle_stuck",
        "discarded",
        "deferred_as_retry",
        "audit_retry",
        "dead_letter_kept",
    } <= events
    formatter = logging.Formatter()
    for record in runtime:
        fields = {k: v for k, v in vars(record).items() if k.startswith("shove_")}
        assert SECRET not in record.getMessage()
        assert SECRET not in str(fields)
        if record.shove_event != "audit_sink_raised":  # the sink's own words, at DEBUG
            assert SECRET not in formatter.format(record)
    by_event = {r.shove_event: r for r in runtime}
    assert by_event["handler_raised"].shove_queue == topic.queue
    assert by_event["handler_raised"].shove_sequence == 1
    assert "handle" in by_event["handler_raised"].shove_handler


@pytest.mark.server
async def test_records_of_a_connection_carry_no_credential(
    own_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Connected, cut off, connected again, and refused, with a password in the URL."""
    caplog.set_level(logging.DEBUG, logger="shove_actors")
    url = own_server.url.replace("nats://", f"nats://user:{SECRET}@")
    config = NatsConfig(url, reconnect_wait=0.05, reconnect_jitter=0.01)

    def seen(event: str) -> bool:
        return any(getattr(r, "shove_event", "") == event for r in caplog.records)

    async with open_broker(config):
        await trio.to_thread.run_sync(own_server.kill)
        await until(lambda: seen("disconnected"))
        await trio.to_thread.run_sync(own_server.restart)
        await until(lambda: seen("reconnected"))
    with pytest.raises(shove_actors.ConnectionError) as caught:
        async with open_broker(NatsConfig(f"nats://user:{SECRET}@127.0.0.1:1")):
            pass
    assert SECRET not in str(caught.value)
    formatter = logging.Formatter()
    ours = [r for r in caplog.records if r.name.startswith("shove_actors")]
    for record in ours:
        assert SECRET not in formatter.format(record)
        assert SECRET not in str(vars(record))
