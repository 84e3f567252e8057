# runnable
"""Real, uneven input: the first 2,000 flights that left New York in 2013, in order per aircraft.

Flights that never departed are rejected and become dead letters. `shove-actors demo` is this with
all 27,004 of January, a live view, and, with --chaos, kills of the server and of processes. Run it:

    python examples/flights.py
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from itertools import islice
from pathlib import Path

import msgspec
import trio

from shove_actors import (
    NatsConfig,
    Outcome,
    Reject,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    embedded_server,
    open_broker,
)

DATA = Path(__file__).parent / "data" / "flights-2013-01.csv.gz"
COUNT = 2_000


class Flight(msgspec.Struct):
    row: int
    tailnum: str
    carrier: str
    dest: str
    departed: bool


FLIGHTS = SequencedTopic(
    Flight,
    key=lambda flight: flight.tailnum,  # of a few it is empty: that is a key, too
    topology=TopologyBuilder("flights")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(8)
    .hold_queue(1)
    .dlq()
    .build(),
)


def read() -> list[Flight]:
    with gzip.open(DATA, "rt", encoding="utf-8", newline="") as file:
        return [
            Flight(row, line["tailnum"], line["carrier"], line["dest"], bool(line["dep_time"]))
            for row, line in enumerate(islice(csv.DictReader(file), COUNT))
        ]


class Tower:
    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = defaultdict(list)
        self.seen = 0
        self.done = trio.Event()

    async def handle(self, flight: Flight) -> Outcome:
        self.rows[flight.tailnum].append(flight.row)
        self.seen += 1
        if self.seen == COUNT:
            self.done.set()
        return Outcome.ACK if flight.departed else Reject(reason="never departed")


async def main() -> int:
    tower, flights = Tower(), read()
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(FLIGHTS)
        async with trio.open_nursery() as nursery, broker.publisher().pipeline(FLIGHTS) as pipe:
            group = broker.consumer_group()
            group.register(FLIGHTS, tower.handle)
            await nursery.start(group.serve)
            for flight in flights:
                await pipe.send(flight)
            await tower.done.wait()
            group.stop()
        dead = [FLIGHTS.decode(each.payload).row async for each in broker.dead_letters(FLIGHTS)]
    in_order = all(rows == sorted(rows) for rows in tower.rows.values())
    print(
        f"{tower.seen:,} flights of {len(tower.rows):,} aircraft, in order per aircraft: {in_order}"
    )
    most = max(tower.rows, key=lambda tailnum: len(tower.rows[tailnum]))
    print(f"most of one aircraft: {len(tower.rows[most])} ({most or 'no tail number'})")
    never = sorted(flight.row for flight in flights if not flight.departed)
    print(f"{len(dead)} never departed, and are dead letters: {sorted(dead) == never}")
    return 0 if in_order and sorted(dead) == never else 1


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
