"""The end of a connection: who hears of it, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import psutil
import pytest
import trio
import trio_asyncio

from shove_actors._errors import BrokerClosed, ConfigError, ConnectionError, PublishUnknown
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, JetStream, Message, NatsConfig, connect

from .kit import SOON_S, Events, connected, fast
from .losses import kill, restart

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


class Boom(Exception):
    pass


async def test_an_exception_of_the_block_leaves_as_it_is(server: ServerProcess) -> None:
    boom = Boom()
    with pytest.raises(Boom) as caught:
        async with connect(fast(server.url)):
            raise boom
    assert caught.value is boom
    assert boom.__context__ is None


async def _reading(js: JetStream) -> None:
    consumer = await js.create_consumer("END", durable_name="d")
    async with consumer.messages() as messages:
        async for _ in messages:
            pass


async def _consuming(js: JetStream) -> None:
    consumer = await js.create_consumer("END", durable_name="d")

    async def handle(message: Message) -> None:
        await message.ack()

    async with consumer.consume(handle) as loop:
        await loop.wait_closed()


async def _watching(js: JetStream) -> None:
    kv = await js.create_kv(bucket="end")
    async with kv.watch() as watcher:
        async for _ in watcher:
            pass


async def _publishing(js: JetStream) -> None:
    while True:
        with contextlib.suppress(PublishUnknown):
            await js.publish("end", b"", timeout=60.0)


async def _by_several(js: JetStream) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_reading, js)
        nursery.start_soon(_watching, js)


@pytest.mark.parametrize(
    "use", [_reading, _consuming, _watching, _publishing, _by_several], ids=lambda f: f.__name__
)
async def test_a_connection_that_is_given_up_is_one_failure(
    own_server: ServerProcess, use: Callable[[JetStream], Awaitable[None]]
) -> None:
    """Whoever waits for it hears of it in the same pass as the block; that makes no group."""
    heard: list[str] = []

    async def trouble(js: JetStream) -> None:
        await trio.sleep(0.2)
        await kill(own_server)

    async def until_it_ends() -> None:
        async with connect(fast(own_server.url, max_reconnect_attempts=1)) as js:
            js.connection.listen(lambda event: heard.append(event.kind))
            await js.create_stream(name="END", subjects=["end"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trouble, js)
                await use(js)

    with trio.fail_after(30), pytest.raises(ConnectionError, match="gave up after 1"):
        await until_it_ends()
    assert "closed" in heard


async def test_a_failure_of_the_block_beside_it_is_another_one(own_server: ServerProcess) -> None:
    async def both() -> None:
        async with connect(fast(own_server.url, max_reconnect_attempts=1)):
            await kill(own_server)
            try:
                await trio.sleep_forever()
            finally:
                raise Boom

    with pytest.raises(BaseExceptionGroup) as caught:
        await both()
    flat = [type(one) for one in caught.value.exceptions]
    assert ConnectionError in flat
    assert caught.value.split(Boom)[0] is not None


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
