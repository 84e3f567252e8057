"""Keyed lanes on the model, under a mock clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from shove_actors.backends.memory import MemoryServer

from .checks import CHECKS
from .support import LEASE_S, Server, owner

Check = Callable[[Server, str], Awaitable[None]]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__)[6:])
async def test_keyed_lane(autojump_clock: trio.testing.MockClock, check: Check) -> None:
    await check(MemoryServer(), "q")


async def test_the_server_is_killed(autojump_clock: trio.testing.MockClock) -> None:
    """Pins are forgotten; handlers go on, and nothing is handled twice."""
    server = MemoryServer()
    async with owner(server, "q") as one:
        await one.publish("a-1", "a-2", "b-1", "b-2")
        first = [await one.next() for _ in range(2)]
        server.faults.stop_server(killed=True)
        await trio.sleep(0.2)
        server.faults.start_server()
        await one.backend.wait_connected()
        one.lane.ack(first[0])
        assert not first[0].lost
        assert await one.take(1) == ["a-2"]
        one.lane.ack(first[1])
        assert await one.take(1) == ["b-2"]
        assert await one.settled()


async def test_a_lost_acknowledgement_is_sent_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = MemoryServer()
    async with owner(server, "q") as one:
        await one.publish("a-1")
        first = await one.next()
        server.faults.drop_next_ack()
        one.lane.ack(first)
        assert await one.nothing(LEASE_S * 3)
        assert await one.settled()


async def test_nothing_is_begun_after_a_pause(mock_clock: trio.testing.MockClock) -> None:
    """By whoever runs first after the process was stopped, before anybody has looked."""
    async with owner(MemoryServer(), "q") as one:
        await one.publish("a-1", "a-2", "b-1")
        mock_clock.rate = 10.0
        first = await one.next()
        mock_clock.rate = 0.0
        mock_clock.jump(LEASE_S)
        with pytest.raises(trio.WouldBlock):
            one.lane.receive_nowait()
        assert first.lost
        one.lane.forget(first)
        mock_clock.rate = 10.0
        assert sorted(await one.take(3, 60.0)) == ["a-1", "a-2", "b-1"]
