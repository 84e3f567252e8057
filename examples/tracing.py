# runnable
"""Tracing: one message is one trace, through a retry and into the dead letters.

Starts its own nats-server, sends one order, prints the spans as a tree and ends. Run it:

    pip install 'shove-actors[otel,server]' opentelemetry-sdk
    python examples/tracing.py
"""

from __future__ import annotations

import msgspec
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shove_actors import (
    DeadMetadata,
    MessageMetadata,
    NatsConfig,
    Outcome,
    Reject,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)


class Order(msgspec.Struct):
    order_id: str


ORDERS = Topic(Order, TopologyBuilder("orders").hold_queue(0.5).dlq().build())


async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
    with trace.get_tracer("shop").start_as_current_span("charge the card"):
        await trio.sleep(0.01)
    return Outcome.RETRY if metadata.retry_count == 0 else Reject(reason="no such card")


async def handle_dead(order: Order, metadata: DeadMetadata, buried: trio.Event) -> Outcome:
    buried.set()
    return Outcome.ACK


def show(spans: list[ReadableSpan], parent: int | None = None, depth: int = 0) -> None:
    for span in spans:
        if (span.parent.span_id if span.parent else None) == parent:
            outcome = (span.attributes or {}).get("shove.outcome", "")
            print(f"{'    ' * depth}{span.name}{f'  -> {outcome}' if outcome else ''}")
            assert span.context is not None
            show(spans, span.context.span_id, depth + 1)


async def main() -> int:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The broker looks for a provider once, when it is opened: this comes first.
    trace.set_tracer_provider(provider)
    buried = trio.Event()
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(ORDERS)
        with trace.get_tracer("shop").start_as_current_span("checkout"):
            await broker.publisher().publish(ORDERS, Order("ORD-1"))
        group = broker.consumer_group(context=buried)
        group.register(ORDERS, handle)
        group.register_dlq(ORDERS, handle_dead)
        outcome = await group.run_until(buried.wait, drain_timeout=10)
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
    show(spans)
    print(f"traces: {len({span.context.trace_id for span in spans if span.context})}")
    return outcome.exit_code


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
