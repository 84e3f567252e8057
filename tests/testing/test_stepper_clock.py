"""The stepper and time: real sockets refuse a virtual clock, and nobody else moves it.

PC-104, PC-105.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from shove_actors import MemoryConfig, NatsConfig, jetstream, open_broker
from shove_actors._errors import UsageError
from shove_actors.testing import Stepper

from .stepping import in_trio_run

if sys.version_info < (3, 11):
    pass


# ----------------------------------------------------------------------- PC-104, sockets


async def start_in_virtual_time(open_it: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(UsageError, match="under a mock clock"):
        await open_it()


async def a_connection() -> None:
    async with jetstream.connect("nats://127.0.0.1:9"):
        pytest.fail("entered")


async def a_broker() -> None:
    async with open_broker(NatsConfig("nats://127.0.0.1:9")):
        pytest.fail("entered")


@pytest.mark.parametrize("open_it", [a_connection, a_broker])
async def test_pc104_real_connections_refuse_an_autojump_clock(
    autojump_clock: trio.testing.MockClock, open_it: Callable[[], Awaitable[object]]
) -> None:
    await start_in_virtual_time(open_it)


@pytest.mark.parametrize("open_it", [a_connection, a_broker])
def test_pc104_real_connections_refuse_a_stepper(open_it: Callable[[], Awaitable[object]]) -> None:
    with Stepper() as s:
        s.call(start_in_virtual_time, open_it)


def test_pc104_the_memory_backend_does_not() -> None:
    opened = []

    async def main() -> None:
        async with open_broker(MemoryConfig()) as broker:
            opened.append(broker)
            await trio.sleep_forever()

    with Stepper(main) as s:
        assert opened
        s.advance(3600)


def test_pc104_a_step_that_waits_for_a_socket_is_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)

        async def read() -> None:
            await trio.lowlevel.wait_readable(left)

        with pytest.raises(UsageError, match="real socket"), Stepper() as s:
            s.post(read)
    assert not in_trio_run()


def test_a_step_goes_to_the_next_deadline_and_no_further() -> None:
    seen: list[float] = []

    async def sleeper(until: float) -> None:
        await trio.sleep_until(until)
        seen.append(trio.current_time())

    with Stepper() as s:
        for until in (3.0, 1.0, 3.0):
            s.post(sleeper, until)
        assert s.step(10.0)
        assert (seen, s.now) == ([1.0], 1.0)
        assert not s.step(2.5)
        assert (seen, s.now) == ([1.0], 1.0)
        assert s.step(3.0)
        assert (seen, s.now) == ([1.0, 3.0, 3.0], 3.0)
        assert not s.step(1e6)


# ------------------------------------------------------------------------ PC-105, one clock


@pytest.mark.parametrize("how", ["jump", "rate", "autojump"])
def test_pc105_a_step_that_touches_the_clock_is_refused(how: str) -> None:
    async def touch() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        if how == "jump":
            clock.jump(1)
        elif how == "rate":
            clock.rate = 1.0
        else:
            clock.autojump_threshold = 0

    with pytest.raises(UsageError, match=r"only advance\(\) does"), Stepper() as s:
        s.call(touch)
    assert not in_trio_run()


@given(steps=st.lists(st.floats(0, 1e5), max_size=20), waits=st.lists(st.floats(0, 1e5)))
def test_pc105_time_never_goes_backwards(steps: list[float], waits: list[float]) -> None:
    seen = [0.0]

    async def sleeper(seconds: float) -> None:
        await trio.sleep(seconds)
        seen.append(trio.current_time())

    with Stepper() as s:
        for wait in waits:
            s.post(sleeper, wait)
        for seconds in steps:
            before = s.now
            s.advance(seconds)
            assert s.now == before + seconds
            seen.append(s.now)
    assert seen == sorted(seen)
