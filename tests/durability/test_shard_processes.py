"""Two and three processes on the same shards, while processes come and go (PC-040)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.support import wait_until

from .launcher import SOON_S
from .notes import Note
from .overlaps import intervals, out_of_order, overlaps
from .support import World

# Waits for real leases; `pytest -m slow` (CI does).
pytestmark = [pytest.mark.server, pytest.mark.slow]

MESSAGES, KEYS, SHARDS = 400, 24, 6
OPTIONS = {"work_s": 0.02, "ack_wait": 1.5}


@pytest.mark.limit(150)
async def test_processes_join_drain_and_die_on_the_same_shards(
    world: Callable[..., World],
) -> None:
    at = world("sequenced", shards=SHARDS)
    await at.publish(*(Note(f"m{n}", "work", key=f"key-{n % KEYS}") for n in range(MESSAGES)))

    def ended() -> int:
        return len(at.events("end"))

    async def until_share(share: float) -> None:
        await wait_until(lambda: ended() >= share * MESSAGES, 60.0, interval=0.005)

    first = await at.start(**OPTIONS)
    second = await at.start(**OPTIONS)
    await until_share(0.15)
    third = await at.start(**OPTIONS)
    await until_share(0.35)
    first.signal(signal.SIGTERM)  # leaves in order
    assert await first.ended() == 0, first.log
    await until_share(0.5)
    fourth = await at.start(**OPTIONS)
    await until_share(0.65)
    await second.kill()
    second_died = time.monotonic_ns()
    assert ended() < MESSAGES, "it was killed too late to prove anything"
    await at.quiet(60.0)

    names = {child.plan.name for child in (first, second, third, fourth)}
    events = [*at.events("start"), *at.events("end"), *at.events("interrupted")]
    events.sort(key=lambda event: event.at)
    assert {event.who for event in events} == names, "each of them has worked"
    calls = intervals(events, {second.plan.name: float(second_died)})
    done: dict[int, int] = {}
    for event in at.events("end"):
        done.setdefault(event.sequence, event.at)
    assert sorted(done) == list(range(1, MESSAGES + 1)), "lost"
    assert overlaps(calls) == []
    assert out_of_order(calls, done) == []
    # Only what the killed one held may have run again.
    assert 0 <= len(calls) - MESSAGES <= SHARDS
    for child in (third, fourth):
        child.signal(signal.SIGTERM)
        assert await child.ended(SOON_S) == 0, child.log
