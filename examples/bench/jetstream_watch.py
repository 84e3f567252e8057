"""Does a key-value watcher keep up? `python examples/bench/jetstream_watch.py [--updates 20000]`.

A process of its own writes `--updates` values of 64 bytes to 100 keys, as fast as the server stores
them (up to 1000 on their way). Meanwhile one watcher sees them, in a bucket that keeps all of them;
first one of this package, then one of nats-py on plain asyncio, in alternating order.

    writing     seconds until the last value was acknowledged
    lag         seconds from then until the watcher has seen it: what "keeps up" means
    rate        updates per second, from the first one seen to the last one

Every revision is counted: one that is missing, twice or out of order is an error. Exits with 1 when
the median lag of this package is above `--must` seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import nats
import trio

from shove_actors import jetstream
from shove_actors.embedded import ServerProcess

KEYS = 100
VALUE = bytes(64)
IN_FLIGHT = 1000


async def write(url: str, bucket: str, updates: int) -> float:
    """Returns the moment (of the machine's clock) of the last acknowledgement."""
    async with jetstream.connect(url, publish_async_max_pending=IN_FLIGHT) as js:
        for number in range(updates):
            await js.publish_async(f"$KV.{bucket}.key-{number % KEYS}", VALUE, stall_wait=None)
        await js.publish_async_complete()
        return time.time()


def writer(url: str, bucket: str, updates: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            os.path.abspath(__file__),
            *("--write", bucket, "--url", url, "--updates", str(updates)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


class Seen:
    """Revisions, in order, without a gap."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.last = 0
        self.first_at = self.last_at = 0.0

    def add(self, revision: int) -> bool:
        assert revision == self.last + 1, f"{revision} after {self.last}"
        self.last = revision
        if revision == 1:
            self.first_at = time.time()
        if revision == self.updates:
            self.last_at = time.time()
            return True
        return False


async def ours(url: str, bucket: str, updates: int) -> Seen:
    seen = Seen(updates)
    async with jetstream.connect(url) as js:
        kv = await js.kv(bucket)
        async with kv.watch(include_history=True) as watcher:
            print("ready", flush=True)
            async for entry in watcher:
                if entry is not None and seen.add(entry.revision):
                    break
    return seen


async def natspy(url: str, bucket: str, updates: int) -> Seen:
    seen = Seen(updates)
    nc = await nats.connect(url)
    kv = await nc.jetstream().key_value(bucket)
    watcher: Any = await kv.watchall(include_history=True)
    print("ready", flush=True)
    while True:
        entry = await watcher.updates(timeout=60)
        if entry is not None and seen.add(entry.revision):
            break
    await watcher.stop()
    await nc.close()
    return seen


def one(peer: str, url: str, bucket: str, updates: int) -> Seen:
    if peer == "ours":
        return trio.run(ours, url, bucket, updates)
    return asyncio.run(natspy(url, bucket, updates))


async def fresh_bucket(url: str, bucket: str) -> None:
    async with jetstream.connect(url) as js:
        async for name in js.kv_names():
            await js.delete_kv(name)
        kv = await js.create_kv(bucket=bucket)
        # All of them, more than a bucket may keep for each key: the watcher must miss none.
        await js.edit_stream(f"KV_{kv.bucket}", max_msgs_per_subject=1_000_000)


def measure(peer: str, url: str, updates: int, number: int) -> dict[str, float]:
    bucket = f"bench-{peer}-{number}"
    trio.run(fresh_bucket, url, bucket)
    watching = subprocess.Popen(
        [
            sys.executable,
            os.path.abspath(__file__),
            *("--watch", peer, "--url", url, "--bucket", bucket, "--updates", str(updates)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert watching.stdout.readline() == "ready\n"
    begun = time.time()
    with writer(url, bucket, updates) as writing:
        assert writing.stdout is not None
        written_at = float(writing.stdout.read())
    told = json.loads(watching.stdout.read())
    assert watching.wait() == 0
    return {
        "writing": written_at - begun,
        "lag": told["last_at"] - written_at,
        "rate": updates / (told["last_at"] - told["first_at"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--must", type=float, default=0.5)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--watch", choices=["ours", "natspy"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--bucket", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        print(trio.run(write, arguments.url, arguments.write, arguments.updates))
        return
    if arguments.watch:
        seen = one(arguments.watch, arguments.url, arguments.bucket, arguments.updates)
        print(json.dumps({"first_at": seen.first_at, "last_at": seen.last_at}))
        return
    found: dict[str, list[dict[str, float]]] = {"ours": [], "natspy": []}
    with ServerProcess() as server:
        for number in range(arguments.rounds):
            for peer in sorted(found, reverse=number % 2 == 0):
                found[peer].append(measure(peer, server.url, arguments.updates, number))
    print(f"{arguments.updates} updates{'':<6} {'writing s':>10} {'lag s':>8} {'updates/s':>10}")
    lags: dict[str, float] = {}
    for peer, rounds in found.items():
        middle = {
            what: statistics.median(one_round[what] for one_round in rounds)
            for what in ("writing", "lag", "rate")
        }
        lags[peer] = middle["lag"]
        print(
            f"{peer:<20} {middle['writing']:>10.2f} {middle['lag']:>8.3f} {middle['rate']:>10.0f}"
        )
    sys.exit(0 if lags["ours"] <= arguments.must else 1)


if __name__ == "__main__":
    main()
