"""How often, how fast and to whom a lost connection is opened again, with real servers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from shove_actors._errors import AuthenticationError, ConnectionError, TLSError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, ConnectionEvent
from tests.secured import SecuredServer, write_certificate
from tests.support import wait_until

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


# ------------------------------------------------------------------ refusals


def users(password: str) -> str:
    return f'authorization {{ user: "app", password: "{password}" }}'


def encrypted(ca: trustme.CA, directory: Path, name: str) -> str:
    cert, key = write_certificate(ca, directory, name, "127.0.0.1")
    return f'tls {{ cert_file: "{cert}", key_file: "{key}" }}'


@pytest.mark.parametrize("what", ["credentials", "certificate"])
async def test_one_that_refuses_does_not_end_what_another_may_mend(
    what: str, tmp_path: Path
) -> None:
    """The other one is only down: it is waited for, however often the first one refuses."""
    changes: dict[str, Any] = {"username": "app", "password": "right"}
    scheme, good, bad = "nats", users("right"), users("wrong")
    if what == "certificate":
        ca, other = trustme.CA(), trustme.CA()
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        changes = {"tls_ca_cert": str(tmp_path / "ca.pem")}
        scheme, good = "tls", encrypted(ca, tmp_path, "good")
        bad = encrypted(other, tmp_path, "bad")
    with ServerProcess(config=bad) as refuses, ServerProcess(config=good) as down:
        urls = [f"{scheme}://127.0.0.1:{each.port}" for each in (refuses, down)]
        async with connected(fast(urls, dont_randomize=True, **changes)) as (js, events):
            assert js.connection.server == urls[1]
            await kill(down)
            await events.wait("error", 10)
            await restart(down)
            await events.wait("reconnected")
            assert js.connection.server == urls[1]
            kinds = {type(event.error) for event in events.of("error")}
            assert (AuthenticationError if what == "credentials" else TLSError) in kinds


async def test_when_all_have_refused_twice_it_is_over() -> None:
    """Also if one of them had been down before."""
    with ServerProcess(config=users("wrong")) as refuses, ExitStack() as later:
        with ServerProcess(config=users("right")) as down:
            config = fast([refuses.url, down.url], username="app", password="right")
            events: list[ConnectionEvent] = []

            async def revoke() -> None:
                await kill(down)
                await wait_until(lambda: len(events) >= 6)
                changed = ServerProcess(port=down.port, config=users("changed"))
                await trio.to_thread.run_sync(later.enter_context, changed)

            with trio.fail_after(30), pytest.raises(AuthenticationError):
                await until_it_ends(config, events, revoke)


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
