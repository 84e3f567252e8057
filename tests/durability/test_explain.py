"""Why a flight was handled twice, as the chaos runs judge it (`tests/chaos/explain.py`)."""

from __future__ import annotations

from collections import Counter

from shove_actors.cli._journal import Ended, Event, Killed, Paused, Resumed, Started
from tests.chaos.explain import UNEXPLAINED, explain

MS = 1_000_000


def _started(who: str, at_ms: int) -> tuple[str, Event]:
    return who, Started(row=7, key="N1", sequence=3, shard=0, delivered=1, at=at_ms * MS)


def _ended(who: str, at_ms: int, outcome: str) -> tuple[str, Event]:
    return who, Ended(row=7, sequence=3, outcome=outcome, at=at_ms * MS)


def test_a_server_killed_just_before_explains_although_another_worker_was_stopped_meanwhile() -> (
    None
):
    """Seed 62: a handler began 2 ms after the kill, and a worker it had nothing to do with stood
    still while its message was given to somebody else."""
    events: list[tuple[str, Event]] = [
        ("chaos", Killed(who=Killed.SERVER, at=256 * MS)),
        _started("worker-1", 258),
        _ended("worker-1", 278, "interrupted"),
        ("chaos", Paused(who="worker-3", at=291 * MS)),
        _started("worker-2", 606),
        ("chaos", Resumed(who="worker-3", at=993 * MS)),
    ]
    assert explain(events) == Counter({"server killed, cut off": 1})


def test_a_duplicate_without_a_blow_stays_unexplained() -> None:
    events = [_started("worker-1", 10), _ended("worker-1", 20, "ack"), _started("worker-2", 2000)]
    assert explain(events) == Counter({UNEXPLAINED: 1})


def test_what_was_over_long_before_explains_nothing() -> None:
    events: list[tuple[str, Event]] = [
        ("chaos", Killed(who=Killed.SERVER, at=0)),
        _started("worker-1", 5000),
        _ended("worker-1", 5010, "ack"),
        _started("worker-1", 5200),
    ]
    assert explain(events) == Counter({UNEXPLAINED: 1})
