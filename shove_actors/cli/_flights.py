"""The demonstration's input: all flights that left New York in January 2013, and their topic."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

import msgspec

from shove_actors import SequencedTopic, SequenceFailure, TopologyBuilder, UsageError

DATA_FILE: Final = "flights-2013-01.csv.gz"
QUEUE: Final = "flights"


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """One flight. `row` is its place in the file, from 1; empty fields are None."""

    row: int
    time_hour: str
    day: int
    sched_dep_time: int
    dep_time: int | None
    dep_delay: int | None
    arr_time: int | None
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str
    origin: str
    dest: str
    air_time: int | None
    distance: int

    @property
    def departed(self) -> bool:
        return self.dep_time is not None


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a run over these flights must end with. Only ever compared with, never shown."""

    published: int
    acknowledged: int
    dead_lettered: int


def flights_topic(shards: int) -> SequencedTopic[Flight]:
    """Flights in order per aircraft. 155 flights have no tail number: the empty key is a key."""
    return SequencedTopic(
        Flight,
        key=_tailnum,
        topology=(
            TopologyBuilder(QUEUE)
            .sequenced(SequenceFailure.SKIP)
            .routing_shards(shards)
            .dlq()
            .hold_queue(1)
            .build()
        ),
    )


def _tailnum(flight: Flight) -> str:
    return flight.tailnum


def read_flights(count: int | None = None) -> list[Flight]:
    """The first `count` flights of the file that comes with the package, or all of them.

    Raises `UsageError` when `count` is out of range.
    """
    packed = (resources.files("shove_actors.cli") / "data" / DATA_FILE).read_bytes()
    header, *lines = gzip.decompress(packed).decode("utf-8").splitlines()
    if count is not None and not 1 <= count <= len(lines):
        raise UsageError(f"count is {count}; the file has flights 1 to {len(lines):,}")
    return parse_flights("\n".join([header, *lines[:count]]))


def parse_flights(text: str) -> list[Flight]:
    """The flights of a CSV text with a header line.

    Raises `UsageError` naming the line and the column that does not fit.
    """
    flights = []
    reader = csv.DictReader(io.StringIO(text))
    for row, line in enumerate(reader, start=1):
        values = {name: value or None for name, value in line.items() if isinstance(name, str)}
        values["tailnum"] = line.get("tailnum")
        try:
            flights.append(msgspec.convert({**values, "row": row}, Flight, strict=False))
        except msgspec.ValidationError as exc:
            raise UsageError(f"line {row + 1} of the flights does not fit: {exc}") from None
    return flights


def expected(flights: Sequence[Flight]) -> Expected:
    departed = sum(flight.departed for flight in flights)
    return Expected(
        published=len(flights), acknowledged=departed, dead_lettered=len(flights) - departed
    )
