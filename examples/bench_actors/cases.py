"""One case of the benchmark, in a process of its own: `python cases.py NAME SECONDS [PEER]`.

Prints one JSON object. All peers of a case run in this process, in turn, in every round in another
order; a ratio is taken within a round and the median of the rounds is reported, so that a machine
that is busy with something else makes the numbers larger but not the ratios. A case that has used
up its seconds stops after the round it is in and says how many it made.

Times are CPU of the process (all threads) and wall, in seconds.
"""

from __future__ import annotations

import gc
import importlib
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from types import ModuleType
from typing import Any

import trio
import trio.testing

PEERS = ("trio", "shove", "pykka", "triotp")
CAPACITY = 64

TELLS, TELL_ROUNDS = 25_000, 40  # together the million
ASKS, ASK_ROUNDS = 5_000, 20  # together a hundred thousand
RESTARTS, STORM_ROUNDS = 10_000, 2
CROWDS = ((1_000, 3), (10_000, 2), (30_000, 1))
STATIC = ((250, 5), (1_000, 1), (2_000, 1))
BUDGETS = ((1_000, 5), (10_000, 1))
IDLE = 5_000
# A peer that is this much slower than the limit shows it in fewer rounds as well.
EVERY = {"trio": 1, "shove": 1, "pykka": 5, "triotp": 5}

Sample = dict[str, float]
Result = dict[str, Any]


def load(names: tuple[str, ...] = PEERS) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """The peers that are here, and why the others are not."""
    here, absent = {}, {}
    for name in names:
        try:
            here[name] = importlib.import_module(f"peer_{name}")
        except ImportError as exc:
            absent[name] = str(exc)
    return here, absent


async def timed(work: Callable[[], Awaitable[object]]) -> Sample:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    await work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def summary(rounds: list[dict[str, Sample]], count: int) -> Result:
    """Medians per peer, and the median ratio to `trio` within a round."""
    result: Result = {}
    for name in PEERS:
        mine = [one[name] for one in rounds if name in one]
        if not mine:
            continue
        entry: dict[str, float] = {"rounds": len(mine)}
        for kind in ("cpu", "wall"):
            entry[f"{kind}_us"] = statistics.median(s[kind] for s in mine) / count * 1e6
            pairs = [
                one[name][kind] / one["trio"][kind]
                for one in rounds
                if name in one and "trio" in one
            ]
            if pairs:
                entry[f"{kind}_ratio"] = statistics.median(pairs)
        result[name] = entry
    return result


def in_turn(names: list[str], number: int) -> list[str]:
    """Another order in every round."""
    turned = names[number % len(names) :] + names[: number % len(names)]
    return turned if number % 2 else turned[::-1]


async def messages(kind: str, count: int, rounds: int, end: float) -> Result:
    here, absent = load()
    if "triotp" in here:
        here["triotp"].prepare()
    done: list[dict[str, Sample]] = []
    async with AsyncExitStack() as stack:
        stations = {
            name: await stack.enter_async_context(peer.station(CAPACITY))
            for name, peer in here.items()
        }
        work = {name: getattr(station, kind) for name, station in stations.items()}
        for one in work.values():
            await one(200)
        for number in range(rounds):
            names = [name for name in here if number % EVERY[name] == 0]
            sample = {}
            for name in in_turn(names, number):
                sample[name] = await timed(partial(work[name], count))
            done.append(sample)
            if time.monotonic() > end:
                break
    return {"count": count, "peers": summary(done, count), "absent": absent}


async def storm(end: float) -> Result:
    here, absent = load()
    if "triotp" in here:
        here["triotp"].prepare()
    done: list[dict[str, Sample]] = []
    for number in range(STORM_ROUNDS):
        sample = {}
        for name in in_turn(list(here), number):
            if time.monotonic() > end and done:
                break
            try:
                sample[name] = await timed(partial(here[name].storm, RESTARTS))
            except NotImplementedError as exc:
                absent[name] = str(exc)
        done.append(sample)
        if time.monotonic() > end:
            break
    return {"count": RESTARTS, "peers": summary(done, RESTARTS), "absent": absent}


async def crowds(end: float) -> Result:
    """Spawn, look at and stop crowds of growing size."""
    here, absent = load()
    if "triotp" in here:
        here["triotp"].prepare()
    rounds: dict[int, Result] = {
        count: {"spawn": [], "stop": [], "snapshot": [], "missing": {}} for count, _ in CROWDS
    }
    # One of each size first, so that a busy machine still shows them all.
    plan = [(count, 0) for count, _ in CROWDS]
    plan += [(count, number) for count, times in CROWDS for number in range(1, times)]
    for count, number in plan:
        kept = rounds[count]
        kept["spawn"].append({})
        kept["stop"].append({})
        for name in in_turn(list(here), number):
            if name not in kept["missing"] and time.monotonic() < end:
                await one_crowd(name, here[name], count, kept)
    sizes = [
        {
            "count": count,
            "spawn": summary(kept["spawn"], count),
            "stop": summary(kept["stop"], count),
            "snapshot_cpu_us": statistics.median(kept["snapshot"]),
            "missing": kept["missing"],
        }
        for count, kept in rounds.items()
        if any("shove" in one for one in kept["stop"])
    ]
    return {"sizes": sizes, "absent": absent}


async def one_crowd(name: str, peer: ModuleType, count: int, kept: Result) -> None:
    async with peer.crowd(CAPACITY) as crowd:
        try:
            spawned = await timed(partial(crowd.spawn, count))
        except NotImplementedError as exc:
            kept["missing"][name] = str(exc)
            return
        if hasattr(crowd, "snapshot"):
            gc.collect()
            begun = time.process_time()
            nodes = crowd.snapshot()
            kept["snapshot"].append((time.process_time() - begun) / count * 1e6)
            assert nodes >= count
        kept["spawn"][-1][name] = spawned
        kept["stop"][-1][name] = await timed(crowd.stop)


async def static(end: float) -> Result:
    """Start and stop of static trees, and restarts counted against a budget: ours alone."""
    peer = importlib.import_module("peer_shove")
    trees: list[Result] = []
    for count, rounds in STATIC:
        marks = []
        for _ in range(rounds):
            gc.collect()
            mark: list[float] = []
            await peer.static(count, mark, time.process_time)
            marks.append(mark)
            if time.monotonic() > end:
                break
        trees.append(
            {
                "count": count,
                "start_cpu_us": statistics.median(m[1] - m[0] for m in marks) / count * 1e6,
                "stop_cpu_us": statistics.median(m[2] - m[1] for m in marks) / count * 1e6,
            }
        )
        if time.monotonic() > end:
            break
    budgets: list[Result] = []
    for count, rounds in BUDGETS:
        samples = []
        for _ in range(rounds):
            samples.append(await timed(partial(peer.storm, count, budget=True)))
            if time.monotonic() > end:
                break
        cpu = statistics.median(s["cpu"] for s in samples)
        budgets.append({"count": count, "restart_cpu_us": cpu / count * 1e6})
        if time.monotonic() > end:
            break
    return {"trees": trees, "budgets": budgets}


def resident() -> int:
    """Bytes of memory in use by this process."""
    statm = pathlib.Path("/proc/self/statm")
    if statm.exists():
        import resource

        return int(statm.read_text().split()[1]) * resource.getpagesize()
    import psutil

    return int(psutil.Process().memory_info().rss)


async def idle(peer: str) -> Result:
    """What one more idle actor costs: growth of the process per actor."""
    here, absent = load((peer,))
    if not here:
        return {"absent": absent[peer]}
    if hasattr(here[peer], "prepare"):
        here[peer].prepare()
    count = min(IDLE, getattr(here[peer], "MOST_ACTORS", IDLE))
    async with here[peer].crowd(CAPACITY) as crowd:
        gc.collect()
        before = resident()
        await crowd.spawn(count)
        # Let what a start leaves behind go.
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        kib = (resident() - before) / count / 1024
        await crowd.stop()
    return {"count": count, "kib": kib}


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2])
    end = time.monotonic() + seconds
    if name == "tell":
        result = trio.run(messages, "tell", TELLS, TELL_ROUNDS, end)
    elif name == "ask":
        result = trio.run(messages, "ask", ASKS, ASK_ROUNDS, end)
    elif name == "storm":
        result = trio.run(storm, end)
    elif name == "crowds":
        result = trio.run(crowds, end)
    elif name == "static":
        result = trio.run(static, end)
    elif name == "versions":
        here, absent = load()
        result = {"peers": {n: p.version() for n, p in here.items()}, "absent": absent}
    else:
        assert name == "idle"
        result = trio.run(idle, sys.argv[3])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
