# runnable
"""Metrics: what a broker counts, in the form that Prometheus reads.

Starts its own nats-server, handles some orders, prints the metrics and ends. Nothing listens
unless asked to: with `--serve PORT` they can be scraped on 127.0.0.1 while it runs. Run it:

    pip install 'shove-actors[otel,server]' opentelemetry-exporter-prometheus
    python examples/metrics.py
    python examples/metrics.py --serve 9464 --seconds 60    # curl http://127.0.0.1:9464/metrics
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

import msgspec
import trio
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, generate_latest, start_http_server

from shove_actors import (
    MessageMetadata,
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)


class Order(msgspec.Struct):
    number: int


ORDERS = Topic(Order, TopologyBuilder("orders").hold_queue(0.5).dlq().build())
COUNT = 200


class Counter:
    """The `context` of the handlers: set when every order has its end."""

    def __init__(self) -> None:
        self.left = COUNT
        self.done = trio.Event()

    def ended(self) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()


async def handle(order: Order, metadata: MessageMetadata, counter: Counter) -> Outcome:
    await trio.sleep(0.002)
    if order.number % 10 == 3 and metadata.retry_count == 0:
        return Outcome.RETRY
    counter.ended()
    return Outcome.REJECT if order.number % 50 == 0 else Outcome.ACK


async def main(seconds: float) -> int:
    # The broker looks for a provider once, when it is opened: this comes first.
    provider = MeterProvider([PrometheusMetricReader()])
    metrics.set_meter_provider(provider)
    counter = Counter()
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(ORDERS)
        await broker.publisher().publish_batch(ORDERS, [Order(n) for n in range(COUNT)])
        group = broker.consumer_group(context=counter)
        group.register(ORDERS, handle, prefetch=20, concurrent_processing=True)

        async def until_done() -> None:
            await counter.done.wait()
            await trio.sleep(seconds)

        outcome = await group.run_until(until_done, drain_timeout=10)
    for line in generate_latest(REGISTRY).decode().splitlines():
        # Without the interpreter's own metrics, and without the histograms' single buckets.
        if line.startswith("shove_") and "_bucket{" not in line and "_created{" not in line:
            print(line)
    provider.shutdown()
    return outcome.exit_code


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--serve", type=int, metavar="PORT", help="also on http://127.0.0.1:PORT")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long to go on running")
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    with ExitStack() as stack:
        if given.serve is not None:
            server, thread = start_http_server(given.serve, addr="127.0.0.1")
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        sys.exit(trio.run(main, given.seconds))
