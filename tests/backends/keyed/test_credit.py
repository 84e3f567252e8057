"""How much a keyed lane has in hand: keys that are stuck take from others only what is filled."""

from __future__ import annotations

import trio

from shove_actors.backends import KeyedSpec
from shove_actors.backends._keyed_pulls import AGAIN_MOST, BYTES_MOST
from shove_actors.backends._pinned import pin_timeout
from shove_actors.backends.memory import MemoryServer

from .support import CREDIT, LEASE_S, key_of, owner

#: Within this time no pull is due to keep the pin: none of those has brought anything.
SOON_S = pin_timeout(LEASE_S) / 3


async def test_what_is_left_of_the_credit_is_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    stuck = CREDIT - 3
    async with owner(MemoryServer(), "q") as one:
        await one.publish(*(f"a-{n}" for n in range(stuck)))
        held = await one.next()
        await trio.testing.wait_all_tasks_blocked()
        assert len(one.lane.held) == stuck
        await one.publish(*(f"b{n}-0" for n in range(40)))
        with trio.fail_after(SOON_S):
            assert await one.take(40) == [f"b{n}-0" for n in range(40)]
        one.lane.ack(held)
        with trio.fail_after(SOON_S):
            assert await one.take(stuck - 1) == [f"a-{n}" for n in range(1, stuck)]


async def test_retries_leave_what_is_left_of_the_credit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    failing = CREDIT - 3
    async with owner(MemoryServer(), "q") as one:
        await one.publish(*(f"a{n}-0" for n in range(failing)))
        for _ in range(failing):
            one.lane.nak(await one.next(), 30.0)
        await one.publish(*(f"b{n}-0" for n in range(40)))
        with trio.fail_after(SOON_S):
            assert await one.take(40) == [f"b{n}-0" for n in range(40)]


async def test_large_messages_do_not_fill_the_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    size, count = 1_000_000, 80
    filling = "x" * size
    many = {
        "credit": 10_000,
        "max_ack_pending": 10_000,
        "keyed": KeyedSpec(record="0", max_in_flight=64, key_of=key_of),
    }
    async with owner(MemoryServer(), "q", **many) as one:
        await one.publish(*(f"a-{n}-{filling}" for n in range(count)), "b-0")
        first = await one.next()
        began = trio.current_time()
        with trio.move_on_after(SOON_S):
            await one.lane.receive()
            raise AssertionError("behind more than may be in hand")
        held = sum(delivery.size for delivery in one.lane.held.values())
        assert BYTES_MOST - size < held < BYTES_MOST + 2 * size
        # Each pull that keeps the pin may bring one more.
        await trio.sleep(5.0)
        pulls = (trio.current_time() - began) / (pin_timeout(LEASE_S) / 2) + 1
        assert len(one.lane.held) <= held // size + pulls
        one.lane.ack(first)
        with trio.fail_after(SOON_S * 4):
            assert len(await one.take(count)) == count
        assert one.lane.pulls.bytes == 0


async def test_what_is_in_hand_comes_again_in_large_pieces(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After a rewind the server gives out nothing new before."""
    stuck = 4 * AGAIN_MOST
    most = {"credit": stuck + 1, "max_ack_pending": stuck + 1}
    async with owner(MemoryServer(), "q", **most) as one:
        await one.publish(*(f"a-{n}" for n in range(stuck)))
        await one.next()
        await trio.testing.wait_all_tasks_blocked()
        assert len(one.lane.held) == stuck
        await one.rewind()
        before = one.lane.statistics().pulls
        await one.publish("b-0", "c-0")
        assert await one.take(2, within=LEASE_S) == ["b-0", "c-0"]
        assert one.lane.statistics().pulls - before <= 4 + 10
