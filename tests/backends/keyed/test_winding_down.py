"""A shard that is let go of for another process to have its share: its other keys go on as long as
what was in handlers runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from shove_actors.backends import Delivery
from shove_actors.backends.memory import MemoryServer
from tests.support import wait_until

from .support import LEASE_S, Owner, owner

Clock = trio.testing.MockClock


@asynccontextmanager
async def winding_down() -> AsyncIterator[tuple[Owner, Owner, Delivery]]:
    """The one that winds down, a standby, and what the former has in a handler."""
    server = MemoryServer()
    async with owner(server, "q") as one, owner(server, "q") as two:
        two.lane.stand_by(False)
        await one.publish("a-1", "a-2", "b-1")
        slow = await one.next()
        assert slow.payload == b"a-1"
        assert await one.take(1) == ["b-1"]
        one.lane.let_go()
        two.lane.stand_by(True)
        assert (one.lane.owned, one.lane.leaving, one.lane.winding_down) == (False, True, True)
        yield one, two, slow


async def test_the_other_keys_go_on(autojump_clock: Clock) -> None:
    async with winding_down() as (one, two, slow):
        for n in range(20):
            await one.publish(f"b-{n}", f"c-{n}")
            assert await one.take(2, within=0.1) == [f"b-{n}", f"c-{n}"]
            await trio.sleep(LEASE_S / 4)
        assert not two.lane.owned
        await one.publish("d-1", "d-2")
        other = await one.next()
        one.lane.ack(slow)
        assert one.lane.leaving
        assert not one.lane.winding_down
        assert await one.nothing(LEASE_S), "a-2 is of a key that is not started again"
        one.lane.ack(other)
        assert await two.take(2, within=1.0) == ["a-2", "d-2"]


async def test_a_key_whose_handler_ends_soon_goes_on(autojump_clock: Clock) -> None:
    server = MemoryServer()
    async with owner(server, "q") as one:
        await one.publish("a-1", "a-2", "b-1", "b-2", "c-1", "c-2")
        slow, quick, retried = [await one.next() for _ in range(3)]
        one.lane.let_go()
        one.lane.ack(quick)
        one.lane.nak(retried, 0.0)
        assert await one.take(1, within=0.1) == ["b-2"]
        assert await one.nothing(LEASE_S)
        assert one.lane.winding_down
        one.lane.ack(slow)
        assert not one.lane.winding_down


async def test_a_try_again_ends_it_too(autojump_clock: Clock) -> None:
    async with winding_down() as (one, two, slow):
        one.lane.nak(slow, 0.0)
        assert not one.lane.winding_down
        assert await two.take(2, within=1.0) == ["a-1", "a-2"]


async def test_a_worker_that_thinks_better_of_it_ends_it_too(autojump_clock: Clock) -> None:
    async with winding_down() as (one, two, slow):
        one.lane.forget(slow)
        assert not one.lane.winding_down
        assert await two.take(2, within=1.0) == ["a-1", "a-2"]


async def test_it_stays_when_that_is_wanted_again(autojump_clock: Clock) -> None:
    async with winding_down() as (one, two, slow):
        one.lane.ack(await next_of(one, "b-2"))
        two.lane.stand_by(False)
        one.lane.stand_by(True)
        assert one.lane.owned
        assert not one.lane.leaving
        one.lane.ack(slow)
        assert await one.take(1, within=1.0) == ["a-2"]
        assert one.lane.owned


async def test_without_handlers_it_is_left_at_once(autojump_clock: Clock) -> None:
    server = MemoryServer()
    async with owner(server, "q") as one, owner(server, "q") as two:
        two.lane.stand_by(False)
        await one.publish("a-1")
        assert await one.take(1) == ["a-1"]
        one.lane.let_go()
        assert not one.lane.winding_down
        two.lane.stand_by(True)
        await one.publish("a-2")
        assert await two.take(1, within=1.0) == ["a-2"]


async def _the_lease_is_lost(one: Owner) -> None:
    one.running.cancel()


async def _its_durable_is_deleted(one: Owner) -> None:
    await one.delete_durable()


@pytest.mark.parametrize("lose", [_the_lease_is_lost, _its_durable_is_deleted])
async def test_losing_the_shard_cancels(
    autojump_clock: Clock, lose: Callable[[Owner], Awaitable[None]]
) -> None:
    async with winding_down() as (one, two, slow):
        cancelled = trio.Event()
        slow.on_lost = cancelled.set
        await lose(one)
        await cancelled.wait()
        assert slow.lost
        assert not one.lane.winding_down
        one.lane.forget(slow)
        one.lane.stand_by(False)  # it wants the shard again, as the other one does
        assert (await two.next(3 * LEASE_S)).payload == b"a-1"


async def test_closing_starts_nothing_more(autojump_clock: Clock) -> None:
    async with winding_down() as (one, two, slow):
        await one.publish("b-2")
        await wait_until(lambda: len(one.lane.held) == 3)
        await one.lane.close()
        assert not one.lane.winding_down
        assert len(one.lane.held) == 1, "what waited is left to the next one"
        one.lane.ack(slow)
        with trio.fail_after(1.0):
            await one.lane.released()
        assert await two.take(2, within=1.0) == ["a-2", "b-2"]


async def next_of(one: Owner, payload: str) -> Delivery:
    await one.publish(payload)
    found = await one.next(1.0)
    assert found.payload.decode() == payload
    return found
