"""Processes that join and leave share the shards, and no key stops for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from shove_actors import Broker, ConsumerGroup, MemoryServer, Outcome
from shove_actors.backends import KeyedLane
from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .keyed import Log, Note, Server, broker, serving, topic

SHARDS = 8


def owned(group: ConsumerGroup) -> int:
    [registration] = group._registrations
    return sum(isinstance(lane, KeyedLane) and lane.owned for lane in registration.lanes)


async def check_sharing(server: Server, queue: str) -> None:
    subject, log = topic(queue, shards=SHARDS), Log()
    published = 0
    stop = trio.Event()

    async def handle(note: Note) -> Outcome:
        log.begin(note)
        await trio.sleep(0.01)
        log.end(note)
        return Outcome.ACK

    async def publish(opened: Broker) -> None:
        nonlocal published
        while not stop.is_set():
            notes = [Note(f"k{n}", published) for n in range(64)]
            await opened.publisher().publish_batch(subject, notes)
            published += 64
            await trio.sleep(0.1)

    options = {"ack_wait": 2.0}
    async with broker(server) as one, broker(server) as two, trio.open_nursery() as nursery:
        await one.declare(subject)
        nursery.start_soon(publish, one)
        async with serving(one, subject, handle, **options) as first:
            await until(lambda: owned(first) == SHARDS)
            async with serving(two, subject, handle, **options) as second:
                await until(lambda: (owned(first), owned(second)) == (4, 4))
                handled = len(log.handled)
                await until(lambda: len(log.handled) > handled + 200)
                assert (owned(first), owned(second)) == (4, 4), "it has come to rest"
            await until(lambda: owned(first) == SHARDS)
            stop.set()
            await until(lambda: len(log.handled) >= published)
    assert len(log.handled) == published, "nothing twice"
    for key in {note.key for note in log.handled}:
        assert log.of(key) == sorted(log.of(key)), key


async def until(predicate: Callable[[], bool]) -> None:
    await wait_until(predicate, 30.0)


@pytest.mark.slow
async def test_on_a_server(server: ServerProcess, fresh_queue: Callable[[], str]) -> None:
    await check_sharing(server, fresh_queue())


async def test_in_memory(autojump_clock: trio.testing.MockClock) -> None:
    await check_sharing(MemoryServer(), "q")
