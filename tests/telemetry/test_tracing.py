"""One message, one trace: W3C context through publish, hold queues, dead letters and audit."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from shove_actors import AuditLog, Outcome, Reject, audited
from tests.runtime.fixtures import Clock
from tests.runtime.world import Order, Script, World, burying, consuming, raw_publish

from .kit import Sdk, attributes_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_one_trace_from_publish_to_the_dead_letter(world: World, clock: Clock) -> None:
    topic, sdk = world.topic(), Sdk()
    dlq = str(topic.topology.dlq)
    script = Script(outcomes={"a": [Outcome.RETRY, Reject(reason="secret reason")]})
    dead = Script()
    async with world.broker(topic, telemetry=sdk.telemetry()) as broker:
        with sdk.tracers.get_tracer("the application").start_as_current_span("checkout"):
            await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, script), burying(broker, topic, dead):
            await dead.journal.until(1)
            await world.until_settled(broker, dlq)
    queue, hold = topic.queue, topic.topology.holds[0].name
    assert sorted(sdk.tree(), key=str) == sorted(
        [
            ("checkout", None),
            (f"publish {queue}", "checkout"),
            (f"handle {queue}", f"publish {queue}"),
            (f"hop {hold}", f"handle {queue}"),
            (f"handle {queue}", f"hop {hold}"),
            (f"hop {dlq}", f"handle {queue}"),
            (f"handle {dlq}", f"hop {dlq}"),
        ],
        key=str,
    )
    assert len({s.context.trace_id for s in sdk.spans() if s.context}) == 1
    spans = {s.name: s for s in sdk.spans()}
    assert spans[f"publish {queue}"].kind is SpanKind.PRODUCER
    assert spans[f"handle {dlq}"].kind is SpanKind.CONSUMER
    handle = [s for s in sdk.spans() if s.name == f"handle {queue}"]
    assert [attributes_of(s)["shove.outcome"] for s in handle] == ["retry", "reject"]
    assert len({attributes_of(s)["messaging.message.id"] for s in handle}) == 1
    assert attributes_of(handle[0])["messaging.system"] == "nats"


async def test_a_retry_in_place_is_a_sibling(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk = memory_world.topic(lambda b: b.dlq()), Sdk()
    script = Script(outcomes={"a": [Outcome.RETRY]})
    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, script):
            await script.journal.until(2)
    queue = topic.queue
    assert sdk.tree() == [
        (f"publish {queue}", None),
        (f"handle {queue}", f"publish {queue}"),
        (f"handle {queue}", f"publish {queue}"),
    ]


async def test_the_handlers_span_is_current_in_async_and_plain_handlers(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk = memory_world.topic(), Sdk()
    seen: list[int] = []

    async def handle(order: Order) -> Outcome:
        await trio.lowlevel.checkpoint()
        seen.append(trace.get_current_span().get_span_context().span_id)
        return Outcome.REJECT

    def handle_dead(order: Order) -> Outcome:
        seen.append(trace.get_current_span().get_span_context().span_id)
        return Outcome.ACK

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with (
            consuming(broker, topic, handle),
            burying(broker, topic, handle_dead),
        ):
            await memory_world.until_settled(broker, str(topic.topology.dlq))
            await memory_world.until_kept(broker, topic.queue, 0)
    handles = [s.context.span_id for s in sdk.spans() if s.name.startswith("handle") and s.context]
    assert seen == handles
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_publish_of_a_handler_is_its_child_and_so_is_its_audit_record(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, other, sdk = memory_world.topic(), memory_world.topic(), Sdk()
    async with memory_world.broker(topic, other, telemetry=sdk.telemetry()) as broker:

        async def handle(order: Order) -> Outcome:
            await broker.publisher().publish(other, order)
            return Outcome.ACK

        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(handle, AuditLog(broker))):
            await memory_world.until_kept(broker, AuditLog.topic.queue, 1)
            await memory_world.until_kept(broker, topic.queue, 0)
    assert (f"publish {other.queue}", f"handle {topic.queue}") in sdk.tree()
    assert (f"publish {AuditLog.topic.queue}", f"handle {topic.queue}") in sdk.tree()


async def test_a_foreign_producers_context_is_the_parent(world: World, clock: Clock) -> None:
    topic, sdk, script = world.topic(), Sdk(), Script()
    async with world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await raw_publish(
            broker,
            topic.queue,
            topic.encode(Order("a")),
            {"Traceparent": PARENT, "tracestate": "vendor=1"},
        )
        async with consuming(broker, topic, script):
            await script.journal.until(1)
            await world.until_kept(broker, topic.queue, 0)
    [span] = sdk.spans()
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == PARENT[3:35]
    assert f"{span.parent.span_id:016x}" == PARENT[36:52]
    assert span.parent.trace_state.get("vendor") == "1"


@pytest.mark.parametrize("value", ["", "nonsense", "00-0-0-00", "x" * 500])
async def test_a_context_that_is_none_is_ignored(
    memory_world: World, autojump_clock: trio.testing.MockClock, value: str
) -> None:
    topic, sdk, script = memory_world.topic(), Sdk(), Script()
    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await raw_publish(broker, topic.queue, topic.encode(Order("a")), {"traceparent": value})
        async with consuming(broker, topic, script):
            await script.journal.until(1)
    [span] = sdk.spans()
    assert span.parent is None


async def test_a_context_given_as_headers_is_the_parent_of_the_publish(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk = memory_world.topic(), Sdk()
    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(
            topic, Order("a"), headers={"Traceparent": PARENT, "tenant": "t"}
        )
        [kept] = await memory_world.kept(broker, topic.queue)
    [span] = sdk.spans()
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT[36:52]
    assert span.context is not None
    assert kept.headers["traceparent"][3:52] == (
        f"{span.context.trace_id:032x}-{span.context.span_id:016x}"
    )
    assert "Traceparent" not in kept.headers
    assert kept.headers["tenant"] == "t"


async def test_without_telemetry_the_context_passes_through_untouched(
    world: World, clock: Clock
) -> None:
    """Who does not trace does not break the trace of others: publish, hop, mover, dead letter."""
    topic = world.topic()
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    script = Script(outcomes={"a": [Outcome.RETRY, Outcome.REJECT]})
    async with world.broker(topic, telemetry=None) as broker:
        await broker.publisher().publish(topic, Order("a"), headers=headers)
        async with consuming(broker, topic, script):
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
    assert [m.headers["traceparent"] for m in script.seen] == [PARENT, PARENT]
    assert dead.headers["traceparent"] == PARENT
    assert dead.headers["tracestate"] == "vendor=1"


async def test_spans_of_failures_name_the_type_and_never_the_text(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk = memory_world.topic(), Sdk()

    async def handle(order: Order) -> Outcome:
        if order.name == "hangs":
            await trio.sleep_forever()
        raise ValueError(f"cannot handle {order.name}")

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish_batch(topic, [Order("secret"), Order("hangs")])
        async with consuming(broker, topic, handle, handler_timeout=1, max_retries=0):
            await memory_world.until_kept(broker, topic.topology.dlq, 2)
    handles = [s for s in sdk.spans() if s.name.startswith("handle")]
    assert {s.status.description for s in handles} == {"raised: ValueError", "timeout"}
    assert all(s.status.status_code is StatusCode.ERROR for s in handles)
    assert "secret" not in "".join(s.to_json() for s in sdk.spans())


async def test_an_interrupted_attempt_has_a_span_too(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sdk, began = memory_world.topic(), Sdk(), trio.Event()

    async def handle(order: Order) -> Outcome:
        began.set()
        await trio.sleep_forever()
        return Outcome.ACK

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, handle) as run:
            await began.wait()
            run.group.hard_stop()
            await run.end()
    handle_span = sdk.spans()[-1]
    assert attributes_of(handle_span)["shove.outcome"] == "interrupted"


async def test_a_publish_that_fails_has_a_span_that_says_so(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    from shove_actors import TopicNotDeclared

    topic, sdk = memory_world.topic(), Sdk()
    async with memory_world.broker(telemetry=sdk.telemetry()) as broker:
        with pytest.raises(TopicNotDeclared):
            await broker.publisher().publish(topic, Order("a"))
    [span] = sdk.spans()
    assert span.status.description == "TopicNotDeclared"


async def test_tracing_alone(memory_world: World, autojump_clock: trio.testing.MockClock) -> None:
    topic, sdk, script = memory_world.topic(), Sdk(), Script()
    async with memory_world.broker(topic, telemetry=sdk.telemetry(metrics=False)) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, script):
            await script.journal.until(1)
    assert len(sdk.spans()) == 2
    assert not sdk.points()
