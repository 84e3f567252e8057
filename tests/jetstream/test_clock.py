"""The server's clock as seen from here: never ahead of it, whatever the network did."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.jetstream import ServerClock, parse_time_ns

_NS = 1_000_000_000
#: What the server's clock shows when Trio's shows 0.
START_NS = 1_700_000_000 * _NS


def stamp(ns: int) -> str:
    whole = datetime.fromtimestamp(ns // _NS, timezone.utc)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{ns % _NS:09d}Z"


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("2023-11-14T22:13:20.000000001Z", START_NS + 1),
        ("2023-11-14T22:13:20.1234567891Z", START_NS + 123_456_789),
    ],
)
def test_reading_the_servers_times(text: str, ns: int) -> None:
    assert parse_time_ns(text) == ns


async def test_before_the_first_answer_it_is_this_machines_clock() -> None:
    before = time.time_ns()
    assert before <= ServerClock().now_ns() <= time.time_ns()


@given(
    answers=st.lists(
        st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 10)), min_size=1, max_size=8
    )
)
def test_never_ahead_of_the_server(answers: list[tuple[float, float, float]]) -> None:
    """`answers`: how long the request took, how long the answer, how long until the next."""

    async def run() -> None:
        clock, ours = ServerClock(), trio.current_time
        for there, back, pause in answers:
            sent_at = ours()
            mock.jump(there)
            written = stamp(START_NS + int(ours() * _NS))
            mock.jump(back)
            clock.observe(written, sent_at, ours())
            behind = START_NS + ours() * _NS - clock.now_ns()
            # Not ahead, by the rounding at most, and not behind by more than the answer took.
            assert -1000 <= behind <= (there + back) * _NS + 1000
            mock.jump(pause)

    mock = trio.testing.MockClock()
    trio.run(run, clock=mock)


async def test_the_shortest_round_trip_counts(mock_clock: trio.testing.MockClock) -> None:
    clock = ServerClock()
    start = trio.current_time()
    mock_clock.jump(0.001)
    clock.observe(stamp(START_NS), start, trio.current_time())
    mock_clock.jump(5.0)
    # This answer took a second, so it says less than the first one.
    clock.observe(stamp(START_NS + 4 * _NS), trio.current_time() - 1.0, trio.current_time())
    assert clock.now_ns() == START_NS + 5 * _NS
    clock.forget()  # another server: its first answer counts, however long it took
    clock.observe(stamp(START_NS), trio.current_time() - 1.0, trio.current_time())
    assert clock.now_ns() == START_NS
