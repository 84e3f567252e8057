"""Keyed topics: many keys of a shard at once, each in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from shove_actors import MemoryServer, Outcome
from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .keyed import Note, Server, broker, serving, topic
from .keyed_checks import CHECKS

Check = Callable[[Server, str], Awaitable[None]]
each = pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__)[6:])


@each
async def test_on_a_server(
    server: ServerProcess, fresh_queue: Callable[[], str], check: Check
) -> None:
    await check(server, fresh_queue())


@each
async def test_in_memory(autojump_clock: trio.testing.MockClock, check: Check) -> None:
    await check(MemoryServer(), "q")


async def latencies(*, stuck: bool) -> list[float]:
    """Of the messages of many keys of one shard; in virtual time."""
    subject = topic("q", shards=1, keyed=32)
    found: list[float] = []
    published: dict[int, float] = {}

    async def handle(note: Note) -> Outcome:
        if note.key == "stuck":
            await trio.sleep_forever()
        await trio.sleep(0.004)
        found.append(trio.current_time() - published[note.number])
        return Outcome.ACK

    async with broker(MemoryServer()) as opened:
        await opened.declare(subject)
        async with serving(opened, subject, handle, handler_timeout=1.0, max_retries=2) as group:
            for number in range(500):
                notes = [Note(f"k{number % 50}", number)]
                if stuck and number % 10 == 0:
                    notes.append(Note("stuck", -number))
                published[number] = trio.current_time()
                await opened.publisher().publish_batch(subject, notes)
                await trio.sleep(0.02)
            await wait_until(lambda: len(found) == 500)
            group.hard_stop()
    return sorted(found)


async def test_a_stuck_key_costs_the_others_no_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its handler hangs to its time-out, again and again, and fifty messages wait behind it."""
    without, beside = await latencies(stuck=False), await latencies(stuck=True)
    p99 = int(0.99 * 500)
    assert beside[p99] <= 2 * without[p99]
    assert beside[250] <= 1.2 * without[250]
