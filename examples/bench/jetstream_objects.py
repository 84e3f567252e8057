"""Object store against nats-py: `python examples/bench/jetstream_objects.py [--mib 64]`.

One object of `--mib` MiB up and down, by this package and by nats-py on plain asyncio, each in a
process of its own, in alternating order, on the same nats-server, in a fresh bucket each time.
Timed is the call alone; the object is made before, and compared after.

    up          from bytes in memory
    down        into bytes in memory
    down-file   chunk by chunk into a sink that counts (nats-py: `writeinto`)

nats-py's way into memory copies all that it has for each chunk; `down-file` is where both only pass
chunks on. The ratio is nats-py's seconds by ours, of the same round: above 1 is faster. Prints the
medians; exits with 1 when one of them is below `--must`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import nats
import trio

from shove_actors import jetstream
from shove_actors.embedded import ServerProcess

CASES = ("up", "down", "down-file")


def content(mib: int) -> bytes:
    """Nothing that compresses, the same each time."""
    return hashlib.shake_128(b"jetstream_objects").digest(1 << 20) * mib


class Sink:
    """A file that keeps nothing."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> int:
        self.size += len(data)
        return len(data)


async def ours(url: str, bucket: str, data: bytes) -> dict[str, float]:
    times: dict[str, float] = {}
    async with jetstream.connect(url) as js:
        store = await js.object_store(bucket)
        begun = time.perf_counter()
        await store.put("object", data)
        times["up"] = time.perf_counter() - begun
        begun = time.perf_counter()
        back = await store.get_bytes("object")
        times["down"] = time.perf_counter() - begun
        assert back == data
        del back
        sink = Sink()
        begun = time.perf_counter()
        async with store.get("object") as reader:
            async for chunk in reader:
                sink.write(chunk)
        times["down-file"] = time.perf_counter() - begun
        assert sink.size == len(data)
    return times


async def natspy(url: str, bucket: str, data: bytes) -> dict[str, float]:
    times: dict[str, float] = {}
    nc = await nats.connect(url)
    store = await nc.jetstream().object_store(bucket)
    begun = time.perf_counter()
    await store.put("object", data)
    times["up"] = time.perf_counter() - begun
    begun = time.perf_counter()
    back = (await store.get("object")).data
    times["down"] = time.perf_counter() - begun
    assert back == data
    del back
    sink: Any = Sink()
    begun = time.perf_counter()
    await store.get("object", writeinto=sink)
    times["down-file"] = time.perf_counter() - begun
    assert sink.size == len(data)
    await nc.close()
    return times


def one(peer: str, url: str, bucket: str, mib: int) -> dict[str, float]:
    data = content(mib)
    if peer == "ours":
        return trio.run(ours, url, bucket, data)
    return asyncio.run(natspy(url, bucket, data))


async def fresh_bucket(url: str, bucket: str, storage: Any) -> None:
    async with jetstream.connect(url) as js:
        async for name in js.object_store_names():
            await js.delete_object_store(name)
        await js.create_object_store(bucket=bucket, storage=storage)


def measured(url: str, arguments: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Seconds of ours and of nats-py, per case and round."""
    found: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    for number in range(arguments.rounds):
        peers = ["ours", "natspy"] if number % 2 == 0 else ["natspy", "ours"]
        took: dict[str, dict[str, float]] = {}
        for peer in peers:
            bucket = f"bench-{peer}-{number}"
            trio.run(fresh_bucket, url, bucket, arguments.storage)
            done = subprocess.run(
                [
                    sys.executable,
                    os.path.abspath(__file__),
                    *("--one", peer, "--url", url),
                    *("--bucket", bucket, "--mib", str(arguments.mib)),
                ],
                check=True,
                capture_output=True,
                text=True,
            )
            took[peer] = json.loads(done.stdout)
        for case in CASES:
            found[case].append((took["ours"][case], took["natspy"][case]))
    return found


def report(found: dict[str, list[tuple[float, float]]], mib: int) -> dict[str, float]:
    median: Callable[[list[float]], float] = statistics.median
    ratios: dict[str, float] = {}
    print(f"{'case':<10} {'ours MiB/s':>11} {'nats-py MiB/s':>14} {'ratio':>6}   rounds")
    for case, pairs in found.items():
        each = [theirs / mine for mine, theirs in pairs]
        ratios[case] = median(each)
        print(
            f"{case:<10} {mib / median([mine for mine, _ in pairs]):>11.0f} "
            f"{mib / median([theirs for _, theirs in pairs]):>14.0f} {ratios[case]:>6.2f}   "
            + " ".join(f"{ratio:.2f}" for ratio in each)
        )
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--storage", choices=["file", "memory"], default="file")
    parser.add_argument("--must", type=float, default=0.8)
    parser.add_argument("--one", choices=["ours", "natspy"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--bucket", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments.url, arguments.bucket, arguments.mib)))
        return
    with ServerProcess() as server:
        ratios = report(measured(server.url, arguments), arguments.mib)
    sys.exit(0 if min(ratios.values()) >= arguments.must else 1)


if __name__ == "__main__":
    main()
