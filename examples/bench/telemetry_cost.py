"""What telemetry costs: the same work with OpenTelemetry absent, API only, and with an SDK.

    python examples/bench/telemetry_cost.py                     # starts its own nats-server
    python examples/bench/telemetry_cost.py --messages 20000 --rounds 7

Each mode runs in a process of its own, in turn, so that a change of the machine's speed hits all of
them; a round's ratio is to `absent` in the same round, and the median of the rounds is printed.

    absent     OpenTelemetry cannot be imported
    api        its API is installed and imported, no SDK: what a library pays for being ready
    metrics    an SDK with metrics
    sdk        an SDK with metrics and traces, every span sampled and kept in memory

What is measured is the processor time of the client process per message, which other programs on
the machine hardly change. `publish`: pipelined, 1000 unacknowledged. `consume`: one consumer, a
handler that only acknowledges. A handler that does anything pays the same microseconds and a
smaller share.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import msgspec
import trio

MODES = ("absent", "api", "metrics", "sdk")
WORK = ("publish", "consume")


class Item(msgspec.Struct):
    id: int
    text: str


def install(mode: str) -> None:
    """What the application does before it opens the broker."""
    if mode == "absent":
        sys.modules["opentelemetry"] = None  # type: ignore[assignment]
        return
    from opentelemetry import metrics, trace

    if mode == "api":
        return
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    if mode == "sdk":
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
        trace.set_tracer_provider(provider)


async def measure(url: str, mode: str, count: int) -> dict[str, float]:
    """Microseconds of processor time per message, for each kind of work."""
    from shove_actors import NatsConfig, Outcome, Topic, TopologyBuilder, open_broker

    name = f"telemetry-cost-{mode}-{os.getpid()}"
    topic = Topic(Item, TopologyBuilder(name).hold_queue(5).dlq().build())
    costs: dict[str, float] = {}
    async with open_broker(NatsConfig(url)) as broker:
        assert (broker.instruments is not None) == (mode in ("metrics", "sdk"))
        await broker.declare(topic)
        publisher = broker.publisher()
        # Warm, and not measured.
        await publisher.publish_batch(topic, [Item(-1, "x" * 100) for _ in range(500)])
        began = time.process_time()
        async with publisher.pipeline(topic, max_pending=1000) as pipe:
            for number in range(count):
                await pipe.send(Item(number, "x" * 100))
        costs["publish"] = 1e6 * (time.process_time() - began) / count

        left, first = count, 0.0
        done = trio.Event()

        async def handle(item: Item) -> Outcome:
            nonlocal left, first
            if item.id >= 0:
                if not first:
                    first = time.process_time()
                left -= 1
                if not left:
                    done.set()
            return Outcome.ACK

        group = broker.consumer_group()
        group.register(topic, handle, prefetch=500)
        await group.run_until(done.wait, drain_timeout=10)
        costs["consume"] = 1e6 * (time.process_time() - first) / count
    return costs


def child(args: argparse.Namespace) -> None:
    install(args.child)
    print(json.dumps(trio.run(measure, args.url, args.child, args.messages)))


async def rounds(args: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    from shove_actors import embedded_server

    results = []
    async with embedded_server() as server:
        for number in range(args.rounds):
            of_round: dict[str, dict[str, float]] = {}
            for mode in MODES[number % 4 :] + MODES[: number % 4]:
                command = [sys.executable, __file__, "--child", mode, "--url", server.url]
                done = await trio.run_process(
                    [*command, "--messages", str(args.messages)], capture_stdout=True
                )
                of_round[mode] = json.loads(done.stdout)
            results.append(of_round)
    return results


def report(results: list[dict[str, dict[str, float]]]) -> None:
    print(f"{'':10}" + "".join(f"{f'{work} us':>12}{'ratio':>8}" for work in WORK))
    for mode in MODES:
        line = f"{mode:10}"
        for work in WORK:
            cost = statistics.median(r[mode][work] for r in results)
            ratio = statistics.median(r[mode][work] / r["absent"][work] for r in results)
            line += f"{cost:12.1f}{ratio:8.2f}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=MODES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
    else:
        report(trio.run(rounds, args))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as failed:
        sys.exit(f"a measurement failed: {failed}")
