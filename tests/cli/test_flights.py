"""The input: the file in the package, and what does not fit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from shove_actors import UsageError
from shove_actors.cli._flights import (
    DATA_FILE,
    Expected,
    expected,
    flights_topic,
    parse_flights,
    read_flights,
)

HEADER = (
    "time_hour,day,sched_dep_time,dep_time,dep_delay,arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance\n"
)
FLEW = "2013-01-01T10:00:00Z,1,515,517,2,830,11,UA,1545,N14228,EWR,IAH,227,1400\n"
STAYED = "2013-01-01T11:00:00Z,1,600,,,,,AA,791,,LGA,DFW,,1389\n"


def test_all_flights_of_the_month() -> None:
    flights = read_flights()
    assert expected(flights) == Expected(published=27_004, acknowledged=26_483, dead_lettered=521)
    assert [flight.row for flight in flights] == list(range(1, 27_005))
    keys = Counter(flight.tailnum for flight in flights)
    assert keys.pop("") == 155
    assert len(keys) == 3148
    assert max(keys.values()) > 60


def test_fields_of_a_flight_that_departed_and_of_one_that_did_not() -> None:
    flew, stayed = parse_flights(HEADER + FLEW + STAYED)
    assert (flew.row, flew.tailnum, flew.dep_time, flew.distance) == (1, "N14228", 517, 1400)
    assert flew.departed
    assert (stayed.row, stayed.tailnum, stayed.dep_time, stayed.air_time) == (2, "", None, None)
    assert not stayed.departed


@pytest.mark.parametrize(
    ("line", "named"),
    [(FLEW.replace(",1,", ",first,", 1), "day"), (FLEW.replace("1400", ""), "distance")],
    ids=["not a number", "empty"],
)
def test_a_line_that_does_not_fit_is_named(line: str, named: str) -> None:
    with pytest.raises(UsageError, match=rf"line 3 .*{named}"):
        parse_flights(HEADER + FLEW + line)


def test_a_short_line_is_named() -> None:
    with pytest.raises(UsageError, match="line 2"):
        parse_flights(HEADER + "2013-01-01T10:00:00Z,1\n")


@pytest.mark.parametrize("count", [0, -1, 27_005])
def test_count_out_of_range(count: int) -> None:
    with pytest.raises(UsageError, match="flights 1 to 27,004"):
        read_flights(count)


def test_messages_of_one_aircraft_share_a_lane_and_an_empty_key_is_a_key() -> None:
    topic = flights_topic(8)
    (flight,) = parse_flights(HEADER + STAYED)
    assert topic.key_of(flight) == ""
    assert 0 <= topic.shard_of("") < 8
    assert topic.decode(topic.encode(flight)) == flight


def test_the_examples_use_the_file_of_the_package() -> None:
    root = Path(__file__).resolve().parents[2]
    data = root / "examples" / "data" / DATA_FILE
    assert data.resolve() == root / "shove_actors" / "cli" / "data" / DATA_FILE
