"""A key seen is not a key kept: a hundred thousand keys leave nothing behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest
import trio

from shove_actors import MemoryServer, Outcome
from shove_actors.backends import Delivery, KeyedLane
from shove_actors.backends._key_lanes import UNPROVEN_MOST
from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .keyed import Note, Server, broker, serving, topic

SHARDS = 2
IN_FLIGHT = 16
BATCH = 1000


def _deliveries() -> int:
    return sum(isinstance(o, Delivery) for o in gc.get_objects())


async def _distinct(server: Server, queue: str, count: int) -> tuple[int, int]:
    """Blocks of memory more than after the first tenth, once all of them were handled, and the most
    keys that were in memory at once."""
    subject = topic(queue, shards=SHARDS, keyed=IN_FLIGHT)
    handled = most = before = 0

    async def handle(note: Note) -> Outcome:
        nonlocal handled
        handled += 1
        return Outcome.ACK

    gc.collect()
    of_others = _deliveries()  # of tests that ran before in this process
    async with broker(server) as opened:
        await opened.declare(subject)
        async with serving(opened, subject, handle, ack_wait=30.0):
            found = opened.backend._lanes  # type: ignore[attr-defined]
            lanes = [lane for lane in found if isinstance(lane, KeyedLane)]
            for start in range(0, count, BATCH):
                notes = [Note(f"k{n}", n) for n in range(start, start + BATCH)]
                await opened.publisher().publish_batch(subject, notes)
                done = start + BATCH
                while handled < done:
                    most = max(most, sum(lane.keys for lane in lanes))
                    await trio.sleep(0.01)
                if done == max(BATCH, count // 10):
                    gc.collect()
                    before = sys.getallocatedblocks()
            await wait_until(lambda: not any(lane.keys for lane in lanes))
            del notes
            gc.collect()
            after = sys.getallocatedblocks()
            # Each worker has the last one that it handled, until its next.
            kept = _deliveries() - of_others
            assert kept <= SHARDS * IN_FLIGHT, kept
    # In hand, asked about, and settled while the answer is on its way.
    assert most <= SHARDS * (2 * 256 + 2 * UNPROVEN_MOST)
    return after - before, most


async def test_two_thousand_keys_leave_nothing(autojump_clock: trio.testing.MockClock) -> None:
    await _distinct(MemoryServer(), "q", 2000)


@pytest.mark.slow
@pytest.mark.limit(400)
async def test_a_hundred_thousand_keys_leave_nothing(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    """An object that is kept for each would be a block of memory for each, at the least."""
    count = 100_000
    grown, most = await _distinct(server, fresh_queue(), count)
    print(f"{grown / (0.9 * count):.4f} blocks per key seen, at most {most} keys in memory")
    assert grown < 0.5 * count
