"""Many short runs of the flights demonstration, each through a storm: `python -m tests.chaos.run`.

Each run has a server of its own, three worker processes that share eight shards, and a consumer of
the dead letters. While a few hundred flights are published and handled, the plan of the run's seed
kills the server, kills a worker, and stops and resumes either. At the end the journals that every
process appended to are judged: nothing lost, no key out of order, no two handlers of a shard at a
time (all processes of one machine share CLOCK_MONOTONIC), and a cause for each duplicate.

So that a run takes less than half a minute, leases are two seconds instead of thirty, and it takes
a few flights only (which of them, the seed says): with an even seed 480, at which a handler works
40 ms; with an odd one 96, at 350 ms, because long handlers are what two of a shard would meet in.
This is a test of the whole under kills and stops. It is too coarse to notice a missing defence of
the lease (it stayed green without them): those are shown one by one in
`tests/durability/test_fencing.py`. Most of a run is waiting for
leases, so four at a time are no trouble for two cores.

    --seed 17            that run alone, with its plan
    --runs 100           seeds 1 to 100, `--parallel` at a time, no new one after `--limit` seconds
    --results FILE       append each result there, and count those that are there already

Exits 1 when a check failed, and names the seeds to run again; 3 when the time was up first.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from shove_actors import NatsConfig, embedded_server, jetstream, open_broker
from shove_actors.cli._flights import Flight, expected, flights_topic, read_flights
from shove_actors.cli._handling import DeadHandler
from shove_actors.cli._journal import Journal, read_all
from shove_actors.cli._progress import Progress
from shove_actors.cli._publishing import publish_flights
from shove_actors.cli._verdict import judge

from .explain import UNEXPLAINED, explain
from .storm import Storm, plan

#: (flights, seconds of work for each), of an even and of an odd seed.
SHAPES: Final = ((480, 0.04), (96, 0.35))
SHARDS: Final = 8
LEASE_S: Final = 2.0
#: Published in so many parts, a part at a time, so that publishing meets the storm too.
PARTS: Final = 12
PART_EVERY_S: Final = 0.3
#: A run in which nothing moves for so long has lost something.
STALL_S: Final = 25.0
LIMIT_S: Final = 1200.0


class Result(msgspec.Struct, kw_only=True):
    """One run. `mistakes` empty: all is as it must be."""

    seed: int
    seconds: float
    flights: int
    server_kills: int
    worker_kills: int
    stops: int
    lost: int
    order: int
    overlaps: int
    in_step: int
    duplicates: int
    causes: dict[str, int]
    mistakes: list[str]
    #: Handled, and still stored by a server that was killed.
    kept: int = 0

    @property
    def line(self) -> str:
        causes = ", ".join(f"{what} {count}" for what, count in sorted(self.causes.items()))
        return (
            f"seed {self.seed:>4}  {self.seconds:5.1f} s  {self.flights:>3} flights  "
            f"kills {self.server_kills}+{self.worker_kills}  stops {self.stops}  "
            f"lost {self.lost}  order {self.order}  overlaps {self.overlaps}  "
            f"in step {self.in_step}  duplicates {self.duplicates}"
            f"{f' ({causes})' if causes else ''}{f'  kept {self.kept}' if self.kept else ''}  "
            f"{'WRONG' if self.mistakes else 'ok'}"
        )


def flights_of(seed: int, flights: list[Flight]) -> list[Flight]:
    count, _ = SHAPES[seed % 2]
    first = random.Random(f"flights {seed}").randrange(len(flights) - count)
    return flights[first : first + count]


async def run_one(seed: int, flights: list[Flight], folder: Path) -> Result:
    blows = plan(seed, LEASE_S)
    journals = folder / "journals"
    journals.mkdir(parents=True)
    begun = trio.current_time()
    topic = flights_topic(SHARDS)
    mistakes: list[str] = []
    kept = 0
    async with embedded_server() as server:
        config = NatsConfig(server.url, name="chaos", reconnect_wait=0.1, reconnect_jitter=0.05)
        async with open_broker(config, publish_timeout=60.0) as broker:
            await broker.declare(topic)
            progress = Progress(journals, len(flights))
            async with Storm.over(
                server=server,
                journals=journals,
                logs=folder,
                progress=progress,
                seed=seed,
                shards=SHARDS,
                work_s=SHAPES[seed % 2][1],
                ack_wait_s=LEASE_S,
                note=lambda text: None,
            ) as storm:
                with Journal(journals, "publisher") as receipts, Journal(journals, "main") as dead:
                    group = broker.consumer_group()
                    group.register_dlq(topic, DeadHandler(dead), ack_wait=LEASE_S)
                    async with trio.open_nursery() as nursery:
                        await nursery.start(partial(group.serve, drain_timeout=5.0))

                        async def publish() -> None:
                            size = len(flights) // PARTS
                            for part in range(PARTS):
                                last = None if part == PARTS - 1 else (part + 1) * size
                                await publish_flights(
                                    broker.publisher(),
                                    topic,
                                    flights[part * size : last],
                                    receipts,
                                )
                                await trio.sleep(PART_EVERY_S)

                        nursery.start_soon(publish)
                        nursery.start_soon(storm.rage, blows)
                        await _until_done(progress, storm)
                        async with jetstream.connect(config) as js:
                            left = await _left(js, topic.queue, progress)
                            if left and await _is_kept(js, topic.queue):
                                kept = left
                            elif left:
                                mistakes.append(f"{left} flights are still in the stream")
                        await storm.stop_workers()
                        group.stop()
                        nursery.cancel_scope.cancel()
            mistakes += storm.mistakes()
    events = read_all(journals)
    verdict = judge(events)
    causes = explain(events)
    mistakes += verdict.mistakes(expected(flights))
    if causes[UNEXPLAINED]:
        mistakes.append(f"{causes[UNEXPLAINED]} duplicates without a cause")
    return Result(
        seed=seed,
        seconds=round(trio.current_time() - begun, 1),
        flights=len(flights),
        server_kills=verdict.server_kills,
        worker_kills=verdict.worker_kills,
        stops=sum(blow.what.startswith("stop") for blow in blows),
        lost=verdict.lost,
        order=verdict.order_violations,
        overlaps=verdict.overlaps,
        in_step=verdict.in_step,
        duplicates=verdict.redelivered,
        kept=kept,
        causes=dict(causes),
        mistakes=mistakes,
    )


async def _until_done(progress: Progress, storm: Storm) -> None:
    moved, standing = trio.current_time(), -1
    while not (progress.done and storm.finished):
        await trio.sleep(0.05)
        progress.read()
        if progress.events != standing:
            moved, standing = trio.current_time(), progress.events
        elif trio.current_time() - moved > STALL_S:
            return


async def _left(js: jetstream.JetStream, queue: str, progress: Progress) -> int:
    """What a kill made the server deliver again is part of the run."""
    with trio.move_on_after(10 * LEASE_S):
        while (await js.stream_info(queue)).messages:  # noqa: ASYNC110 - the server tells nobody
            await trio.sleep(0.05)
    progress.read()
    return (await js.stream_info(queue)).messages


async def _is_kept(js: jetstream.JetStream, queue: str) -> bool:
    """Whether every durable is done with what is left: a killed server remembers that a message was
    acknowledged and not that it was removed. Nobody will get it again, and it was handled, or it
    would count as lost. Told apart, and not a mistake of ours.
    """
    infos = [info async for info in js.list_consumers(queue)]
    return not any(info.num_pending or info.num_ack_pending for info in infos)


# ------------------------------------------------------------------------------ many of them


class Runs:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._flights = read_flights()
        self.results: list[Result] = _known(options.results)

    async def run(self, seeds: list[int]) -> bool:
        """False: the time was up."""
        done = {result.seed for result in self.results}
        waiting = [seed for seed in seeds if seed not in done]
        end = trio.current_time() + self._options.limit

        async def one_after_another() -> None:
            while waiting and trio.current_time() < end:
                await self._one(waiting.pop(0))

        async with trio.open_nursery() as nursery:
            for _ in range(self._options.parallel):
                nursery.start_soon(one_after_another)
        return not waiting

    async def _one(self, seed: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"shove-chaos-{seed}-"))
        logger = logging.getLogger("shove_actors")
        handler = logging.FileHandler(folder / "main.log", encoding="utf-8")
        logger.addHandler(handler)
        try:
            result = await run_one(seed, flights_of(seed, self._flights), folder)
        except Exception as exc:
            result = _failed(seed, exc)
        finally:
            logger.removeHandler(handler)
            handler.close()
        self.results.append(result)
        print(result.line, flush=True)
        for mistake in result.mistakes:
            print(f"          {mistake}", flush=True)
        if result.mistakes or self._options.keep:
            print(f"          journals and logs: {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        if self._options.results is not None:
            with self._options.results.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")


def _failed(seed: int, error: Exception) -> Result:
    text = "".join(traceback.format_exception(error))
    return Result(
        seed=seed, seconds=0.0, flights=0, server_kills=0, worker_kills=0, stops=0, lost=0, order=0,
        overlaps=0, in_step=0, duplicates=0, causes={}, mistakes=[text],
    )  # fmt: skip


def _known(path: Path | None) -> list[Result]:
    if path is None or not path.exists():
        return []
    decode = msgspec.json.Decoder(Result).decode
    return [decode(line) for line in path.read_bytes().splitlines()]


def table(results: list[Result]) -> list[str]:
    causes: Counter[str] = Counter()
    for result in results:
        causes.update(result.causes)
    rows: list[tuple[str, object]] = [
        ("runs", len(results)),
        ("flights", sum(r.flights for r in results)),
        ("server killed", sum(r.server_kills for r in results)),
        ("worker process killed", sum(r.worker_kills for r in results)),
        ("server or worker stopped and resumed", sum(r.stops for r in results)),
        ("lost", sum(r.lost for r in results)),
        ("order violations", sum(r.order for r in results)),
        ("handlers of one shard that overlapped", sum(r.overlaps for r in results)),
        ("  of a process stopped within a step", sum(r.in_step for r in results)),
        ("duplicates", sum(r.duplicates for r in results)),
        *((f"  {what}", count) for what, count in causes.most_common()),
        ("handled, kept by a killed server", sum(r.kept for r in results)),
        ("seconds per run", round(sum(r.seconds for r in results) / max(1, len(results)), 1)),
    ]
    width = max(len(what) for what, _ in rows) + 2
    return [f"  {what + ' ':.<{width}} {value:>8}" for what, value in rows]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.run", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print its plan")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS")
    parser.add_argument("--results", type=Path, metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="keep journals and logs of good runs")
    options = parser.parse_args()
    seeds = list(range(options.first, options.first + options.runs))
    if options.seed is not None:
        seeds = [options.seed]
        print(*plan(options.seed, LEASE_S), sep="\n", flush=True)
    # What kills make the library say is expected here; it goes to the logs of the run.
    logging.getLogger("shove_actors").propagate = False
    runs = Runs(options)
    complete = trio.run(runs.run, seeds)
    print("", *table(runs.results), "", sep="\n")
    wrong = sorted(result.seed for result in runs.results if result.mistakes)
    for seed in wrong:
        print(f"WRONG: run it again with `nox -s chaos -- --seed {seed}`")
    if wrong:
        return 1
    if not complete:
        print(f"{len(runs.results)} of {len(seeds)} runs: the time was up")
        return 3
    print("Everything as it must be.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
