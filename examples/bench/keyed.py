"""Keyed lanes beside one message per shard and beside a topic without order.

    python examples/bench/keyed.py [--messages 20000] [--rounds 3]

For handlers that do nothing and handlers that sleep 1 to 5 ms, 8 shards, and 64, 1,000 and 100,000
keys, uniform and Zipf: messages per second from the start of the group until the last
acknowledgement is confirmed, the median of the rounds; what is compared ran in the same round, and
the median of those ratios is shown. Everything runs on this machine, with a server of its own, in
one process, through the public API.

    shard       sequenced, one message per shard at a time
    keyed       the same topic with many keys of a shard at once; `--in-flight` in all
    plain       no order, the same number of handlers at once
    same        no order, and no more handlers at once than there are keys, because one per key is
                all that order allows: what a consumer without order does at the same limit
    best        what the hottest key allows, if nothing but its handlers took time
    keyed/able  what order costs: keyed beside `same`, or beside `best` where that is less
    CPU         microseconds of this process per message, keyed and plain: also on a busy machine
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec
import trio

from shove_actors import (
    Broker,
    NatsConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)

SHARDS: Final = 8
SEED: Final = 7
#: By mode: messages per second and CPU seconds of each round.
Found: TypeAlias = "dict[str, list[tuple[float, float]]]"


class Item(msgspec.Struct):
    number: int
    key: str


def make_topic(name: str, mode: str, in_flight: int) -> Topic[Item]:
    if mode in ("plain", "same"):
        return Topic(Item, TopologyBuilder(name).hold_queue(5).dlq().build())
    builder = TopologyBuilder(name).sequenced(SequenceFailure.SKIP).routing_shards(SHARDS)
    if mode == "keyed":
        builder = builder.keyed(max_in_flight=in_flight // SHARDS)
    topology = builder.hold_queue(5).dlq().build()
    return SequencedTopic(Item, key=lambda item: item.key, topology=topology)


def keys_of(count: int, zipf: bool, messages: int) -> list[str]:
    rng = random.Random(SEED)
    if not zipf:
        return [f"k{rng.randrange(count)}" for _ in range(messages)]
    weights = [1 / (rank + 1) for rank in range(count)]
    return [f"k{n}" for n in rng.choices(range(count), weights, k=messages)]


class Handler:
    """Counts, and sees to it that keys keep their order."""

    def __init__(self, messages: int, sleeps: bool, ordered: bool) -> None:
        self.left = messages
        self.sleeps = sleeps
        self.ordered = ordered
        self.latest: dict[str, int] = {}
        self.done = trio.Event()
        rng = random.Random(SEED)
        self.pauses: Iterator[float] = iter([rng.uniform(0.001, 0.005) for _ in range(messages)])

    async def __call__(self, item: Item) -> Outcome:
        if self.sleeps:
            await trio.sleep(next(self.pauses, 0.003))
        if self.ordered:
            assert self.latest.get(item.key, -1) < item.number, item
            self.latest[item.key] = item.number
        self.left -= 1
        if not self.left:
            self.done.set()
        return Outcome.ACK


def best_of(keys: list[str], sleeps: bool) -> float:
    """Messages per second, if everything but the handlers of the hottest key took no time."""
    hottest = max(Counter(keys).values())
    return len(keys) / (hottest * 0.003) if sleeps else float("inf")


async def one_run(
    broker: Broker, name: str, mode: str, keys: list[str], sleeps: bool, in_flight: int
) -> tuple[float, float]:
    """Messages per second, and CPU seconds of this process per message."""
    topic = make_topic(name, mode, in_flight)
    await broker.declare(topic)
    items = [Item(number, key) for number, key in enumerate(keys)]
    for start in range(0, len(items), 2000):
        await broker.publisher().publish_batch(topic, items[start : start + 2000])
    ordered = mode in ("shard", "keyed")
    handler = Handler(len(items), sleeps, ordered)
    group = broker.consumer_group()
    group.register(
        topic,
        handler,
        prefetch=in_flight,
        concurrent_processing=not ordered,
        ack_wait=30.0,
    )
    began, used = trio.current_time(), time.process_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        await handler.done.wait()
        group.stop()
    took, used = trio.current_time() - began, time.process_time() - used
    return len(items) / took, used / len(items)


async def delete(broker: Broker, name: str, mode: str, in_flight: int) -> None:
    """So that later runs have an empty server."""
    topic = make_topic(name, mode, in_flight)
    js = broker.backend.js  # type: ignore[attr-defined]
    for name in (*topic.topology.stream_names(), *topic.topology.note_streams()):
        try:
            await js.delete_stream(name)
        except Exception:
            continue


def ratio(found: Found, beside: str, most: float = float("inf")) -> float:
    """Keyed beside another one of the same round: the median."""
    pairs = zip(found["keyed"], found[beside], strict=True)
    return statistics.median(keyed / min(other, most) for (keyed, _), (other, _) in pairs)


async def main(args: argparse.Namespace) -> None:
    print(
        f"{SHARDS} shards, {args.in_flight} handlers at once, {args.messages} messages, "
        f"median of {args.rounds}; messages per second"
    )
    print(
        f"{'handler':>8} {'keys':>12} {'shard':>7} {'keyed':>7} {'plain':>7} {'same':>7} "
        f"{'best':>7} {'keyed/shard':>12} {'keyed/plain':>12} {'keyed/able':>11} {'CPU':>10}"
    )
    rows = itertools.product((False, True), args.keys, (False, True))
    async with embedded_server() as server:
        for number, (sleeps, count, zipf) in enumerate(rows):
            keys = keys_of(count, zipf, args.messages)
            found: Found = {"shard": [], "keyed": [], "plain": []}
            if count < args.in_flight:
                found["same"] = []
            for turn in range(args.rounds):
                for mode, rates in found.items():
                    few = len(keys)
                    if mode == "shard" and sleeps:
                        few = max(2000, few // 8)
                    name = f"bench-{number}-{turn}-{mode}"
                    async with open_broker(NatsConfig(server.url)) as broker:
                        most = count if mode == "same" else args.in_flight
                        rates.append(await one_run(broker, name, mode, keys[:few], sleeps, most))
                    async with open_broker(NatsConfig(server.url)) as broker:
                        await delete(broker, name, mode, args.in_flight)
            best = best_of(keys, sleeps)
            found.setdefault("same", found["plain"])
            rate = {mode: statistics.median(r for r, _ in f) for mode, f in found.items()}
            cpu = {mode: min(used for _, used in f) * 1e6 for mode, f in found.items()}
            used = f"{cpu['keyed']:.0f}/{cpu['plain']:.0f}"
            print(
                f"{'1-5 ms' if sleeps else 'no-op':>8} "
                f"{f'{count} ' + ('zipf' if zipf else 'even'):>12} "
                f"{rate['shard']:7.0f} {rate['keyed']:7.0f} {rate['plain']:7.0f} "
                f"{rate['same']:7.0f} {best:7.0f} "
                f"{ratio(found, 'shard'):12.2f} {ratio(found, 'plain'):12.2f} "
                f"{ratio(found, 'same', best):11.2f} {used:>10}",
                flush=True,
            )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--keys", type=int, nargs="+", default=[64, 1000, 100_000])
    return parser.parse_args()


if __name__ == "__main__":
    trio.run(main, arguments())
