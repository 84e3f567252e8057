"""The connection: servers, events, the reconnect policy, silence."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio

from shove_actors._errors import BrokerClosed, ConnectionError, RequestTimeout
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, ConnectionEvent
from shove_actors.jetstream._address import ServerAddress
from shove_actors.jetstream._pool import ServerPool

from .kit import SOON_S, Events, connected, fake_server, fast, until_it_ends
from .losses import kill, restart

# ------------------------------------------------------------------------------ servers


async def test_c01_server_list(server: ServerProcess, closed_port: int) -> None:
    urls = f"nats://127.0.0.1:{closed_port}, {server.url}/"
    async with connected(fast(urls, dont_randomize=True)) as (js, _events):
        await js.account_info()
        assert js.connection.server == server.url
        assert js.connection.server_version


def test_pool_tries_the_others_first_and_the_lost_one_last() -> None:
    a, b, c = (ServerAddress(host=name) for name in "abc")
    pool = ServerPool([a, b, c], limit=2)
    pool.lost(b)
    assert pool.round() == [c, a, b]
    for server in (c, a, c):
        pool.tried(server)
    assert pool.round() == [a, b]
    assert not pool.learn(a)
    assert pool.learn(d := ServerAddress(host="d"))
    assert pool.round() == [a, b, d]
    pool.lost(a)
    assert pool.round() == [b, d, c, a]


def test_pool_gives_up_when_all_have_refused_twice_in_a_row() -> None:
    a, b = (ServerAddress(host=name) for name in "ab")
    alone = ServerPool([a], limit=None)
    assert [alone.refused(a), alone.refused(a)] == [False, True]
    pool = ServerPool([a, b], limit=None)
    assert not any(pool.refused(a) for _ in range(5))
    assert not pool.refused(b)
    pool.failed(b)  # down: what it said before does not count
    assert not pool.refused(b)
    assert pool.refused(b)
    pool.learn(ServerAddress(host="c"))
    assert not pool.refused(a)


def test_pool_without_attempts_gives_up_at_once() -> None:
    a = ServerAddress(host="a")
    assert ServerPool([a], limit=0).round() == []


def test_pool_is_shuffled_on_request() -> None:
    servers = [ServerAddress(host=str(n)) for n in range(20)]
    assert ServerPool(servers, limit=None).known == servers
    shuffled = ServerPool(servers, limit=None, shuffle=random.Random(1)).known
    assert shuffled != servers
    assert set(shuffled) == set(servers)


async def test_announced_servers_join_the_pool(server: ServerProcess) -> None:
    async with fake_server() as fake:
        fake.info["connect_urls"] = [server.url.removeprefix("nats://"), "nonsense", "x:y"]
        async with connected(fast(fake.url)) as (js, events):
            await fake.say(b'INFO {"connect_urls":["[::1]:4","127.0.0.1:5"]}\r\n')
            await events.wait("discovered", 2)
            await fake.say(b'INFO {"ldm":true}\r\n')
            await events.wait("lame_duck")
            await fake.hang_up()
            await events.wait("reconnected")
            # The real one was learned first, and those nobody listens on were passed over.
            assert js.connection.server == server.url
            await js.account_info()


# ------------------------------------------------------------------------------ events


async def test_c02_policy_and_events(own_server: ServerProcess) -> None:
    rounds: list[int] = []

    def delay(number: int) -> float:
        rounds.append(number)
        return 0.01

    config = fast(own_server.url, custom_reconnect_delay=delay, max_reconnect_attempts=3)
    events: list[ConnectionEvent] = []
    with pytest.raises(ConnectionError, match="gave up after 3") as caught:
        await until_it_ends(config, events, partial(kill, own_server))
    assert rounds == [1, 2, 3]
    assert [e.kind for e in events] == ["disconnected", "error", "error", "error", "closed"]
    assert isinstance(events[0].error, ConnectionError)
    assert events[-1].error is caught.value


async def test_c02_back_in_time(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        for number in (1, 2):
            await restart(own_server)
            await events.wait("reconnected", number)
            await js.account_info()
        assert js.connection.reconnects == 2
    assert events.kinds == ["disconnected", "reconnected"] * 2 + ["closed"]
    assert events.of("closed")[0].error is None


async def test_first_event_is_connected(server: ServerProcess) -> None:
    connection = Connection(fast(server.url))
    events = Events(connection)
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        connection.close()
    assert events.kinds == ["connected", "closed"]


async def test_closing_is_no_loss(server: ServerProcess) -> None:
    """And neither is being cancelled."""
    connection = Connection(fast(server.url))
    events = Events(connection)
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        nursery.cancel_scope.cancel()
    assert events.kinds == ["connected", "closed"]
    assert events.of("error") == []
    with pytest.raises(BrokerClosed):
        await connection.request("x")


async def test_no_reconnect_when_switched_off(own_server: ServerProcess) -> None:
    events: list[ConnectionEvent] = []
    with pytest.raises(ConnectionError, match="allow_reconnect is off"):
        await until_it_ends(
            fast(own_server.url, allow_reconnect=False), events, partial(kill, own_server)
        )
    assert [e.kind for e in events] == ["disconnected", "closed"]


async def test_callbacks_and_listeners_cannot_hurt(
    own_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def callback(event: ConnectionEvent) -> None:
        called.append(event.kind)
        raise ValueError("by the user")

    config = fast(
        own_server.url,
        on_disconnected=callback,
        on_reconnected=callback,
        on_closed=callback,
    )
    async with connected(config) as (js, events):
        heard: list[str] = []

        def listener(event: ConnectionEvent) -> None:
            heard.append(event.kind)
            raise ValueError("by a listener")

        js.connection.listen(listener)
        await restart(own_server)
        await events.wait("reconnected")
        await js.account_info()
    assert called == ["disconnected", "reconnected", "closed"]
    assert heard == ["disconnected"], "removed after its first failure"
    assert "callback failed" in caplog.text


async def test_permission_violation_is_an_event_and_no_loss() -> None:
    """The session goes on, and the complaint does not turn up later as the cause of a loss."""
    text = """
        authorization { users: [ { user: a, password: b, permissions: {
            publish: { deny: "forbidden" }, subscribe: { deny: "secret.>" } } } ] }
    """
    with ServerProcess(config=text) as process:
        config = fast(process.url, username="a", password="b")
        async with connected(config) as (js, events):
            js.connection.subscribe(b"secret.x", lambda *message: None)
            first = await events.wait("error")
            assert "permissions violation" in str(first.error).lower()
            js.connection.publish(b"forbidden", b"x")
            await events.wait("error", 2)
            await js.connection.flush()
            assert events.kinds == []
            await kill(process)
            lost = await events.wait("disconnected")
            assert "permissions" not in str(lost.error)
            js.connection.close()


async def test_why_the_server_ended_it_is_the_cause(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        js.connection.write(b"NONSENSE nonsense\r\n")
        lost = await events.wait("disconnected")
        assert "protocol" in str(lost.error).lower()
        await events.wait("reconnected")
        await js.account_info()


# ------------------------------------------------------------------------------ silence


async def test_black_hole_with_a_second_server(
    own_server: ServerProcess, server: ServerProcess
) -> None:
    """Stopped for good, with more written than the kernel takes: nobody waits for that write."""
    config = fast(
        [own_server.url, server.url],
        dont_randomize=True,
        ping_interval=0.2,
        max_outstanding_pings=1,
    )
    async with connected(config) as (js, events):
        assert js.connection.server == own_server.url
        own_server.pause()
        for _ in range(24):
            js.connection.publish(b"x", bytes(1 << 20))
        with trio.fail_after(SOON_S):
            with pytest.raises(ConnectionError):
                await js.connection.request("nobody", timeout=SOON_S)
        lost = await events.wait("disconnected")
        assert lost.error is not None
        await events.wait("reconnected")
        assert js.connection.server == server.url
        await js.account_info()
    assert events.kinds == ["disconnected", "reconnected", "closed"]


async def test_leaving_does_not_wait_for_a_dead_server(own_server: ServerProcess) -> None:
    started = trio.current_time()
    async with connected(fast(own_server.url)) as (js, _events):
        own_server.pause()
        js.connection.publish(b"x", bytes(24 << 20))
        started = trio.current_time()
    assert trio.current_time() - started < 8.0, "flush and goodbye have two seconds each"


async def test_a_pong_that_nobody_waits_for_any_more(own_server: ServerProcess) -> None:
    """nats-py gives it to a future that is done; the exception would end its read loop."""
    async with connected(fast(own_server.url)) as (js, events):
        own_server.pause()
        with pytest.raises(RequestTimeout, match="PONG"):
            await js.connection.flush(0.05)
        with trio.move_on_after(0.05) as scope:
            await js.connection.flush(5)
        assert scope.cancelled_caught
        own_server.resume()
        await js.connection.flush(SOON_S)
        await js.account_info()
        assert events.all == []


async def test_dropped_session_says_why(server: ServerProcess) -> None:
    async with connected(fast(server.url)) as (js, events):
        js.connection.drop_session("the server stopped answering")
        lost = await events.wait("disconnected")
        assert str(lost.error) == "the server stopped answering"
        await events.wait("reconnected")
        await js.account_info()
