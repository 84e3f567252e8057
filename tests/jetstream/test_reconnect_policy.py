"""How often, how fast and to whom a lost connection is opened again, with real servers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest
import trio

from shove_actors._errors import ConnectionError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, ConnectionEvent
from tests.secured import SecuredServer

from .kit import Events, connected, fast, until_it_ends
from .losses import kill, restart

#: What the granularity of clocks may take from a pause.
CLOCKS_S = 0.005


@pytest.fixture
def pair() -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with ExitStack() as stack:
        yield stack.enter_context(ServerProcess()), stack.enter_context(ServerProcess())


# ------------------------------------------------------------------ bounds


async def test_the_bound_is_per_server(pair: tuple[ServerProcess, ServerProcess]) -> None:
    """Three attempts to each of two; the end names both."""
    config = fast([one.url for one in pair], max_reconnect_attempts=3)
    events: list[ConnectionEvent] = []

    async def kill_both() -> None:
        for one in pair:
            await kill(one)

    with pytest.raises(ConnectionError, match="gave up after 3") as caught:
        await until_it_ends(config, events, kill_both)
    tried = [event.server for event in events if event.kind == "error"]
    assert sorted(tried) == sorted([one.url for one in pair] * 3)
    assert all(one.url in str(caught.value) for one in pair)


async def test_each_outage_is_counted_anew(own_server: ServerProcess) -> None:
    """Two attempts, of which one always fails: three failures in all, and nobody gives up."""
    outages = 3

    def slowly(number: int) -> float:
        return 0.01 if number == 1 else 1.0

    config = fast(own_server.url, max_reconnect_attempts=2, custom_reconnect_delay=slowly)
    async with connected(config) as (js, events):
        for outage in range(1, outages + 1):
            failed = len(events.of("error"))
            await kill(own_server)
            await events.wait("error", failed + 1)
            await restart(own_server)  # within the second that the next attempt waits
            await events.wait("reconnected", outage)
        assert len(events.of("error")) == outages
        assert js.connection.reconnects == outages


# ------------------------------------------------------------------ pauses


class Recorded(random.Random):
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(7)
        self.asked: list[float] = []

    def random(self) -> float:
        value = super().random()
        self.asked.append(value)
        return value


async def losing(connection: Connection, server: ServerProcess) -> list[float]:
    """When each of three failed attempts was over, and when the loss was heard of."""
    events = Events(connection)
    times: list[float] = []
    connection.listen(lambda event: times.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        times.clear()
        await kill(server)
        await events.wait("error", 3)
        connection.close()
    return times[:4]


async def test_pauses_are_the_wait_and_some_jitter(own_server: ServerProcess) -> None:
    """Never less than the wait. How much more is chance, drawn for each pause."""
    rng = Recorded()
    config = fast(own_server.url, reconnect_wait=0.1, reconnect_jitter=0.2)
    times = await losing(Connection(config, rng=rng), own_server)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) == 3
    assert len(rng.asked) >= 3
    for gap, drawn in zip(gaps, rng.asked, strict=False):
        assert gap >= 0.1 + 0.2 * drawn - CLOCKS_S


async def test_pauses_of_encrypted_connections_have_their_own_jitter(
    tls_server: SecuredServer,
) -> None:
    config = tls_server.config(reconnect_wait=0.1, reconnect_jitter=0.0, reconnect_jitter_tls=0.2)
    rng = Recorded()
    times = await losing(Connection(config, rng=rng), tls_server.process)
    assert len(rng.asked) >= 3
    gaps = [later - earlier for earlier, later in pairwise(times)]
    for gap, drawn in zip(gaps, rng.asked, strict=False):
        assert gap >= 0.1 + 0.2 * drawn - CLOCKS_S


async def test_another_server_is_tried_without_a_pause(
    pair: tuple[ServerProcess, ServerProcess],
) -> None:
    """However long the pauses are: they come before the last of a round only."""
    config = fast([one.url for one in pair], custom_reconnect_delay=lambda n: 3600.0)
    async with connected(config) as (js, events):
        at = {one.url: one for one in pair}
        first = js.connection.server
        await kill(at[first])
        await events.wait("reconnected")
        assert js.connection.server != first
        await js.account_info()


async def test_a_custom_delay_is_asked_with_the_number_of_the_round(
    pair: tuple[ServerProcess, ServerProcess],
) -> None:
    rounds: list[int] = []

    def delay(number: int) -> float:
        rounds.append(number)
        return 0.01

    config = fast([one.url for one in pair], custom_reconnect_delay=delay)
    async with connected(config) as (_, events):
        for one in pair:
            await kill(one)
        await events.wait("error", 6)
        await restart(pair[0])
        await events.wait("reconnected")
        assert rounds[:3] == [1, 2, 3]
        assert rounds == sorted(rounds)


async def test_a_pool_comes_back_by_whichever_server_does(
    pair: tuple[ServerProcess, ServerProcess],
) -> None:
    config = fast([one.url for one in pair])
    async with connected(config) as (js, events):
        for one in pair:
            for each in pair:
                await kill(each)
            await events.wait("error", len(events.of("error")) + 2)
            # It may have been with the second one for a moment, before that was killed as well.
            number = len(events.of("reconnected")) + 1
            await restart(one)
            await events.wait("reconnected", number)
            assert js.connection.server == one.url
            await js.account_info()
