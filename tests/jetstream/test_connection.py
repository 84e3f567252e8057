"""The connection: events, the reconnect policy, requests, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
from collections.abc import Iterator
from functools import partial

import psutil
import pytest
import trio
import trio_asyncio

from shove_actors._errors import (
    BrokerClosed,
    ConfigError,
    ConnectionError,
    NotConnected,
    RequestTimeout,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, ConnectionEvent, NatsConfig, connect
from shove_actors.jetstream._address import ServerAddress
from shove_actors.jetstream._pool import ServerPool
from tests.support import wait_until

from .kit import SOON_S, Events, connected, fake_server, fast, until_it_ends


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where nobody listens: bound, so that nobody takes it meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def restart(server: ServerProcess) -> None:
    await trio.to_thread.run_sync(server.restart)


async def kill(server: ServerProcess) -> None:
    await trio.to_thread.run_sync(server.kill)


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
    assert not pool.refused(a)
    assert pool.refused(a)


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
    with pytest.raises(ConnectionError, match="gave up after 3") as caught:
        await until_it_ends(config, events := [], partial(kill, own_server))
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
    with pytest.raises(ConnectionError, match="allow_reconnect is off"):
        await until_it_ends(
            fast(own_server.url, allow_reconnect=False), events := [], partial(kill, own_server)
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


# ------------------------------------------------------------------------------ requests


async def test_c33_requests_cancelled_quickly(server: ServerProcess) -> None:
    """T4: four hundred, cancelled before, while and after the answer comes."""
    async with connected(fast(server.url)) as (js, _events):
        connection = js.connection
        heard: list[int] = []

        def echo(subject: bytes, reply: bytes, block: bytes | None, payload: bytes) -> None:
            heard.append(int(payload))
            connection.publish(reply, payload)

        connection.subscribe(b"conn.echo", echo)
        answered = 0
        for number in range(400):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    @nursery.start_soon
                    async def cancel(scope: trio.CancelScope = scope, n: int = number) -> None:
                        for _ in range(n % 7):
                            await trio.lowlevel.checkpoint()
                        if n % 3:
                            await trio.sleep(0.0005 * (n % 4))
                        scope.cancel()

                    reply = await connection.request("conn.echo", b"%d" % number)
                    assert reply.payload == b"%d" % number
                    answered += 1
                    nursery.cancel_scope.cancel()
        # Nothing was given to the wrong task, whatever was sent has arrived, and nobody waits.
        assert (await connection.request("conn.echo", b"400")).payload == b"400"
        assert heard == sorted(set(heard))
        assert heard[-1] == 400
        assert 0 < answered <= len(heard)
        assert len(connection.replies) == 0


async def test_request_without_responders(server: ServerProcess) -> None:
    async with connected(fast(server.url)) as (js, _events):
        reply = await js.connection.request("conn.nobody")
        assert reply.status == (503, "")


async def test_request_without_an_answer(server: ServerProcess) -> None:
    async with connected(fast(server.url)) as (js, _events):
        js.connection.subscribe(b"conn.mute", lambda *message: None)
        with pytest.raises(RequestTimeout, match=r"conn\.mute within 0\.05 s"):
            await js.connection.request("conn.mute", timeout=0.05)
        assert len(js.connection.replies) == 0


async def test_loss_fails_everybody_who_waits_at_once(own_server: ServerProcess) -> None:
    errors: list[BaseException] = []
    async with connected(fast(own_server.url)) as (js, _events):
        connection = js.connection
        connection.subscribe(b"conn.mute", lambda *message: None)
        await connection.flush()

        async def ask() -> None:
            try:
                await connection.request("conn.mute", timeout=30)
            except ConnectionError as exc:
                errors.append(exc)

        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(ask)
                await wait_until(lambda: len(connection.replies) == 50)
                await kill(own_server)
        assert len(errors) == 50
        assert len({id(error) for error in errors}) == 50, "one exception for each task"
        assert len(connection.replies) == 0
        assert not connection.write(b"PING\r\n")
        with pytest.raises(NotConnected):
            await connection.flush()


async def test_request_waits_for_the_connection(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        await kill(own_server)
        await events.wait("disconnected")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart, own_server)
            info = await js.account_info()
        assert "limits" in info


# ------------------------------------------------------------------------------ subscriptions


async def test_subscriptions_are_replayed(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        send, receive = trio.open_memory_channel[bytes](10)
        sid = js.connection.subscribe(b"conn.a", lambda s, r, h, p: send.send_nowait(p))
        await restart(own_server)
        await events.wait("reconnected")
        js.connection.publish(b"conn.a", b"1")
        with trio.fail_after(SOON_S):
            assert await receive.receive() == b"1"
        await js.connection.unsubscribe(sid)
        js.connection.publish(b"conn.a", b"2")
        await js.connection.flush()
        with pytest.raises(trio.WouldBlock):
            receive.receive_nowait()


async def test_unsubscribe_hears_what_was_sent_before(server: ServerProcess) -> None:
    async with connected(fast(server.url)) as (js, _events):
        got: list[bytes] = []
        sid = js.connection.subscribe(b"conn.b", lambda s, r, h, p: got.append(p))
        for _ in range(100):
            js.connection.publish(b"conn.b", b"x")
        await js.connection.unsubscribe(sid)
        assert len(got) == 100
        await js.connection.unsubscribe(sid)


async def test_unsubscribe_without_a_connection(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        got: list[bytes] = []
        sid = js.connection.subscribe(b"conn.c", lambda s, r, h, p: got.append(p))
        await kill(own_server)
        await js.connection.unsubscribe(sid)  # whether the loss was noticed yet or not
        await events.wait("disconnected")
        await restart(own_server)
        await js.connection.wait_connected()
        js.connection.publish(b"conn.c", b"x")
        await js.connection.flush()
        assert got == []


async def test_a_failing_sink_is_reported(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(fast(server.url)) as (js, events):

        def sink(*message: object) -> None:
            raise ValueError("sink")

        js.connection.subscribe(b"conn.bad", sink)
        js.connection.publish(b"conn.bad", b"x")
        event = await events.wait("error")
        assert isinstance(event.error, ValueError)
        assert (await js.connection.request("conn.nobody")).status == (503, "")
        assert events.kinds == []
    assert "sink failed" in caplog.text


# ------------------------------------------------------------------------------ ending


class Boom(Exception):
    pass


async def test_an_exception_of_the_block_leaves_as_it_is(server: ServerProcess) -> None:
    boom = Boom()
    with pytest.raises(Boom) as caught:
        async with connect(fast(server.url)):
            raise boom
    assert caught.value is boom
    assert boom.__context__ is None


async def test_close_ends_the_wait_for_a_reconnect(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url, reconnect_wait=60.0)) as (_js, events):
        await kill(own_server)
        await events.wait("disconnected")
        started = trio.current_time()
    assert trio.current_time() - started < 10.0
    assert events.kinds == ["disconnected", "closed"]


async def test_close_ends_an_attempt_that_hangs(own_server: ServerProcess) -> None:
    """First connect and reconnect alike: the listener accepts and says nothing."""
    async with trio.open_nursery() as nursery:
        silent = await trio.open_tcp_listeners(0, host="127.0.0.1")
        accepted = trio.Event()

        async def say_nothing(stream: trio.SocketStream) -> None:
            accepted.set()
            async for _ in stream:
                pass

        nursery.start_soon(trio.serve_listeners, say_nothing, silent)
        port = silent[0].socket.getsockname()[1]
        config = fast(f"nats://127.0.0.1:{port}", connect_timeout=60.0)
        connection = Connection(config)
        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as inner:

                async def run() -> None:
                    with pytest.raises(BrokerClosed):
                        await connection.run()

                inner.start_soon(run)
                await accepted.wait()
                connection.close()
        nursery.cancel_scope.cancel()


async def test_run_again_after_it_failed(own_server: ServerProcess) -> None:
    """What a supervisor does; subscriptions survive, and nobody waits busily meanwhile."""
    connection = Connection(fast(own_server.url, max_reconnect_attempts=1))
    events = Events(connection)
    got: list[bytes] = []
    connection.subscribe(b"conn.again", lambda s, r, h, p: got.append(p))

    async def run_and_fail(*, task_status: trio.TaskStatus[None]) -> None:
        with pytest.raises(ConnectionError):
            await connection.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run_and_fail)
        await kill(own_server)
        await connection.wait_ended()
        with pytest.raises(ConnectionError, match="gave up"):
            await connection.wait_connected()
    await restart(own_server)
    async with trio.open_nursery() as nursery:
        waiting = trio.Event()

        async def wait() -> None:
            await connection.wait_connected()
            waiting.set()

        await nursery.start(connection.run)
        nursery.start_soon(wait)
        await waiting.wait()
        connection.publish(b"conn.again", b"x")
        await connection.flush()
        assert got == [b"x"]
        connection.close()
    assert events.kinds == ["connected", "disconnected", "closed", "connected", "closed"]


async def test_bad_configuration_reaches_those_who_wait() -> None:
    connection = Connection(NatsConfig("nats://x", reconnect_wait=-1.0))
    with pytest.raises(ConfigError, match="reconnect_wait"):
        await connection.run()
    with pytest.raises(ConnectionError, match="reconnect_wait"):
        await connection.wait_connected()
    await connection.wait_ended()


async def test_cancelling_during_a_host_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    release = trio.Event()

    async def slow(*args: object, **kwargs: object) -> list[object]:
        await release.wait()
        return []

    monkeypatch.setattr(trio.socket, "getaddrinfo", slow)
    with trio.fail_after(SOON_S), trio.move_on_after(0.2) as scope:
        async with connect(fast("nats://slow.example", connect_timeout=60.0)):
            pass
    assert scope.cancelled_caught


def tasks_under(task: trio.lowlevel.Task) -> set[str]:
    names: set[str] = set()
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            names |= {child.name} | tasks_under(child)
    return names


def open_loops() -> int:
    gc.collect()
    return sum(
        isinstance(thing, trio_asyncio.TrioEventLoop) and not thing.is_closed()
        for thing in gc.get_objects()
    )


def sockets() -> set[tuple[object, ...]]:
    """To servers; closed ones that the kernel still remembers have no descriptor."""
    process = psutil.Process()
    # The name before psutil 6.
    connections = getattr(process, "net_connections", None) or process.connections
    found = connections("tcp")
    return {(c.fd, c.laddr, c.raddr) for c in found if c.raddr}


@pytest.mark.parametrize("how", ["normal", "raised", "cancelled", "lost", "refused", "stray"])
async def test_nothing_is_left(how: str, own_server: ServerProcess, closed_port: int) -> None:
    """No task, socket, loop, asyncio task; and no thread but those that Trio keeps for reuse."""
    import threading

    def threads() -> set[str]:
        return {t.name for t in threading.enumerate() if "Trio thread" not in t.name}

    here = trio.lowlevel.current_task()
    before = (tasks_under(here), sockets(), open_loops(), threads())
    descriptors = psutil.Process().num_fds()
    config = fast(own_server.url, max_reconnect_attempts=1)
    if how == "refused":
        config.url_or_urls = f"nats://127.0.0.1:{closed_port}"
    inside = (0, 0)
    try:
        with trio.CancelScope() as scope:
            async with connect(config) as js:
                await js.account_info()
                inside = (open_loops(), len(sockets()))
                if how == "raised":
                    raise Boom
                if how == "cancelled":
                    scope.cancel()
                    await trio.sleep_forever()
                if how == "lost":
                    await kill(own_server)
                    await trio.sleep_forever()
                if how == "stray":
                    loop = js.connection._loop
                    assert loop is not None
                    loop.call_soon(lambda: [][0])
                    loop.create_task(asyncio.sleep(3600))
                    await js.connection.flush()
    except (Boom, ConnectionError):
        assert how in ("raised", "lost", "refused", "stray")
    else:
        assert how in ("normal", "cancelled", "stray")
    if how != "refused":
        assert inside[0] == before[2] + 1
        assert inside[1] == len(before[1]) + 1
    assert (tasks_under(here), sockets(), open_loops(), threads()) == before
    assert psutil.Process().num_fds() <= descriptors
    assert not [t for t in gc.get_objects() if isinstance(t, asyncio.Task) and not t.done()]


async def test_the_user_s_own_asyncio_is_not_ours(server: ServerProcess) -> None:
    """The bridge has a loop of its own, inside another one as well as beside it."""
    async with trio_asyncio.open_loop() as outer, connected(fast(server.url)) as (js, _events):
        assert js.connection._loop is not outer
        await js.account_info()
        assert asyncio.get_running_loop() is outer
        await trio_asyncio.aio_as_trio(asyncio.sleep)(0)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="needs SIGUSR2")
async def test_lame_duck_of_a_real_server(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (_js, events):
        os.kill(own_server.pid, signal.SIGUSR2)
        await events.wait("lame_duck")
