"""A consumer process killed in the middle of keyed messages while another one lives."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support import wait_until

from .launcher import SOON_S
from .notes import Event, Note
from .overlaps import intervals, out_of_order, overlaps
from .support import World

pytestmark = pytest.mark.server

MESSAGES, KEYS, SHARDS = 200, 20, 4


def test_the_checks_see_what_they_are_for() -> None:
    def event(what: str, sequence: int, at: int, who: str = "a", delivered: int = 1) -> Event:
        return Event(
            what=what, id=f"m{sequence}", key="k", sequence=sequence, shard=0, retries=0,
            delivered=delivered, at=at, who=who,
        )  # fmt: skip

    good = [event("start", 1, 1), event("end", 1, 2), event("start", 2, 3), event("end", 2, 4)]
    calls = intervals(good, {})
    assert overlaps(calls) == []
    assert out_of_order(calls, {1: 2, 2: 4}) == []

    both = [event("start", 1, 1), event("start", 2, 2, "b"), event("end", 1, 3)]
    calls = intervals(both, {})
    assert len(overlaps(calls)) == 1
    assert len(out_of_order(calls, {1: 3})) == 1

    # Killed at 5: what another process begins at 4 overlaps, what it begins at 6 does not.
    for at, count in ((4, 1), (6, 0)):
        again = [event("start", 1, 1), event("start", 1, at, "b", delivered=2)]
        assert len(overlaps(intervals(again, {"a": 5}))) == count


@pytest.mark.limit(120)
async def test_order_and_one_in_flight_hold_when_a_process_is_killed(
    world: Callable[..., World],
) -> None:
    at = world("sequenced", shards=SHARDS)
    notes = [Note(f"m{n}", "work", key=f"key-{n % KEYS}") for n in range(MESSAGES)]
    await at.publish(*notes)
    victim = await at.start(work_s=0.01, ack_wait=1.5)
    survivor = await at.start(work_s=0.01, ack_wait=1.5)

    def both_in_the_middle() -> bool:
        ended = at.events("end")
        return len(ended) >= MESSAGES // 4 and {e.who for e in ended} == {
            victim.plan.name,
            survivor.plan.name,
        }

    await wait_until(both_in_the_middle, SOON_S, interval=0.005)
    await victim.kill()
    dead_at = time.monotonic_ns()
    assert len(at.events("end")) < MESSAGES, "it was killed too late to prove anything"
    await at.quiet(40.0)

    events = at.events("start") + at.events("end")
    events.sort(key=lambda event: event.at)
    calls = intervals(events, {victim.plan.name: float(dead_at)})
    done: dict[int, int] = {}
    for event in at.events("end"):
        done.setdefault(event.sequence, event.at)
    assert sorted(done) == list(range(1, MESSAGES + 1)), "lost"
    assert overlaps(calls) == []
    assert out_of_order(calls, done) == []
    # At most one message per shard was in the victim's hands, and only those may have run again.
    again = len(calls) - MESSAGES
    assert 0 <= again <= SHARDS
    assert await at.ever_stored() == (MESSAGES, 0, 0)
