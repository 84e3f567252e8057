"""Who has which shard as processes come and go: evenly, soon, and without moving for nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from shove_actors import Broker, ConsumerGroup, MemoryServer, Outcome
from shove_actors.backends import KeyedLane
from tests.support import wait_until

from .keyed import Note, broker, serving, topic

Clock = trio.testing.MockClock
KEYS = 20


class Cluster:
    """Processes that share a topic, which is published to all the time."""

    def __init__(self, server: MemoryServer, shards: int, options: dict[str, float]) -> None:
        self.server = server
        self.subject = topic("q", shards=shards)
        self.options = options
        self.slow: set[str] = set()
        #: Of each key: when it was handled last, and the longest pause since `gaps` was cleared.
        self.last: dict[str, float] = {}
        self.gaps: dict[str, float] = {}

    async def handle(self, note: Note) -> Outcome:
        if note.key in self.slow:
            await trio.sleep_forever()
        await trio.sleep(0.005)
        now = trio.current_time()
        pause = now - self.last.get(note.key, now)
        self.gaps[note.key] = max(pause, self.gaps.get(note.key, 0.0))
        self.last[note.key] = now
        return Outcome.ACK

    async def publish(self, opened: Broker) -> None:
        number = 0
        while True:
            notes = [Note(f"k{n}", number) for n in range(KEYS)]
            await opened.publisher().publish_batch(self.subject, notes)
            number += 1
            await trio.sleep(0.5)

    @asynccontextmanager
    async def process(self) -> AsyncIterator[ConsumerGroup]:
        async with (
            broker(self.server) as opened,
            serving(opened, self.subject, self.handle, **self.options) as group,
        ):
            yield group


@asynccontextmanager
async def cluster(shards: int, **options: float) -> AsyncIterator[Cluster]:
    made = Cluster(MemoryServer(), shards, options)
    async with broker(made.server) as opened, trio.open_nursery() as nursery:
        await opened.declare(made.subject)
        nursery.start_soon(made.publish, opened)
        yield made
        nursery.cancel_scope.cancel()


def owned(group: ConsumerGroup) -> int:
    [registration] = group._registrations
    return sum(isinstance(lane, KeyedLane) and lane.owned for lane in registration.lanes)


class Member:
    """A process that can be told to leave in order, or to vanish."""

    def __init__(self) -> None:
        self.leave = trio.Event()
        self.gone = trio.Event()
        self.group: ConsumerGroup

    async def run(
        self, among: Cluster, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with among.process() as self.group:
            task_status.started()
            await self.leave.wait()
        self.gone.set()


@pytest.mark.slow
@pytest.mark.parametrize("shards", [4, 9])
async def test_evenly_and_with_few_moves(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, shards: int
) -> None:
    caplog.set_level("INFO", "shove_actors.backends.keyed")

    def moves() -> int:
        return sum("is handled by this process now" in r.getMessage() for r in caplog.records)

    async with cluster(shards, ack_wait=3.0) as among, trio.open_nursery() as nursery:
        members: list[Member] = []
        for coming in (True, True, True, False, True, True, False, False, True):
            before = moves()
            if coming:
                members.append(Member())
                await nursery.start(members[-1].run, among)
            else:
                leaving = members.pop(1)
                leaving.leave.set()
                await leaving.gone.wait()
            await trio.sleep(10.0)
            counts = [owned(member.group) for member in members]
            assert sum(counts) == shards
            assert max(counts) - min(counts) <= 1, counts
            # What one that leaves had is nobody's at once, and more than one may be taken by
            # somebody who wants one: each of those is let go of once more.
            assert moves() - before <= 2 * -(-shards // min(2, len(members)))
            at_rest = moves()
            await trio.sleep(10.0)
            assert moves() == at_rest, "it has come to rest"
        for member in members:
            member.leave.set()


async def test_what_is_left_by_a_drain_is_taken_at_once(autojump_clock: Clock) -> None:
    """Also by one that had its share already, which hears of the change within a second."""
    async with cluster(2, ack_wait=30.0) as among, among.process() as first:
        await wait_until(lambda: owned(first) == 2)
        async with among.process() as second:
            with trio.fail_after(20.0):
                await wait_until(lambda: (owned(first), owned(second)) == (1, 1))
            await trio.sleep(5.0)
            among.gaps.clear()
        await wait_until(lambda: owned(first) == 2)
        await trio.sleep(5.0)
        assert len(among.gaps) == KEYS
        assert max(among.gaps.values()) < 2.0


async def test_a_slow_handler_does_not_hold_up_a_shard_that_moves(autojump_clock: Clock) -> None:
    async with cluster(2, ack_wait=6.0, handler_timeout=20.0, max_retries=50) as among:
        among.slow = {f"slow{n}" for n in range(6)}
        async with among.process() as first:
            await wait_until(lambda: owned(first) == 2)
            notes = [Note(key, 0) for key in sorted(among.slow)]
            async with broker(among.server) as opened:
                await opened.publisher().publish_batch(among.subject, notes)
            await trio.sleep(5.0)
            among.gaps.clear()
            async with among.process() as second:
                await trio.sleep(35.0)
                assert (owned(first), owned(second)) == (1, 1)
                assert len(among.gaps) == KEYS
                assert max(among.gaps.values()) < 2.0
                first.hard_stop()
                second.hard_stop()
