"""Two readers of one socket, one at a time: no byte lost, nothing heard after the end, no leak."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlparse

import psutil
import pytest
import trio
import trio.testing
import trio_asyncio

from shove_actors._errors import ConnectionError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream, _connection, connect
from shove_actors.jetstream._reader import read_plain
from shove_actors.jetstream._transport import WireTransport
from tests.secured import SecuredServer
from tests.support import wait_until

from .kit import SOON_S, connected, fake_server, fast


@dataclass
class Wired:
    """A transport past its handshake, its peer, and the payloads that the sink was given."""

    wire: WireTransport
    peer: trio.SocketStream
    got: list[bytes] = field(default_factory=list)

    @property
    def asyncio_reads(self) -> bool:
        assert self.wire._raw is not None
        return self.wire._raw.is_reading()

    async def control(self) -> bytes:
        """What nats-py's read loop would be given next."""
        return await trio_asyncio.aio_as_trio(self.wire.read)(0)

    async def closed(self) -> None:
        with trio.fail_after(SOON_S):
            await trio_asyncio.aio_as_trio(self.wire.wait_closed)()


@asynccontextmanager
async def wired() -> AsyncIterator[Wired]:
    async with trio_asyncio.open_loop():
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener:
            host, port = listener.socket.getsockname()[:2]
            wire = WireTransport([(host, port)])
            await trio_asyncio.aio_as_trio(wire.connect)(urlparse(f"nats://{host}:{port}"), 0, 5.0)
            peer = await listener.accept()
        one = Wired(wire, peer)
        wire.start_messages(lambda subject, sid, reply, head, payload: one.got.append(payload))
        # asyncio begins to read a pass after it has connected.
        await wait_until(lambda: one.asyncio_reads)
        try:
            async with peer:
                yield one
        finally:
            wire.abort()
            await one.closed()


def msg(payload: bytes) -> bytes:
    return b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload)


def descriptors() -> int:
    return psutil.Process().num_fds()


# ------------------------------------------------------------------------------ handing over


async def test_asyncio_rests_meanwhile_and_reads_again() -> None:
    async with wired() as one:
        before = descriptors()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_plain, one.wire)
            await wait_until(lambda: not one.asyncio_reads)
            await one.peer.send_all(msg(b"first"))
            await wait_until(lambda: one.got == [b"first"])
            assert not one.asyncio_reads
            nursery.cancel_scope.cancel()
        assert one.asyncio_reads
        assert descriptors() == before
        await one.peer.send_all(msg(b"second"))
        await wait_until(lambda: one.got == [b"first", b"second"])


async def test_cancelled_before_it_has_begun() -> None:
    async with wired() as one:
        before = descriptors()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_plain, one.wire)
            nursery.cancel_scope.cancel()
        assert one.asyncio_reads
        assert descriptors() == before
        await one.peer.send_all(msg(b"x"))
        await wait_until(lambda: one.got == [b"x"])


async def test_no_byte_is_lost_between_the_two_readers() -> None:
    """A stream in odd pieces, while the socket changes hands at every possible moment."""
    rng = random.Random(3)
    count = 4000
    sent = [b"%d" % number + b"x" * rng.choice([0, 1, 30, 3000]) for number in range(count)]
    stream = b"".join(msg(payload) + b"+OK\r\n" for payload in sent)
    shares = {"trio": 0, "asyncio": 0}
    async with wired() as one:

        async def send() -> None:
            position = 0
            while position < len(stream):
                size = rng.choice([1, 5, 100, 4000, 20000])
                await one.peer.send_all(stream[position : position + size])
                position += size

        async def some_passes() -> None:
            for _ in range(rng.randrange(6)):
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while len(one.got) < count:
                before = len(one.got)
                await some_passes()
                shares["asyncio"] += len(one.got) - before
                async with trio.open_nursery() as reading:
                    reading.start_soon(read_plain, one.wire)
                    await trio.lowlevel.checkpoint()
                    before = len(one.got)
                    await some_passes()
                    reading.cancel_scope.cancel()
                shares["trio"] += len(one.got) - before
        assert one.got == sent
        lines = b""
        while len(lines) < count * len(b"+OK\r\n"):
            lines += await one.control()
        assert lines == b"+OK\r\n" * count
    assert min(shares.values()) > 0, shares


async def test_somebody_else_took_the_bytes() -> None:
    """Readable, and nothing there: wait on. That says nothing about the connection."""
    async with wired() as one:
        thief = one.wire.borrow_socket()
        assert thief is not None
        stolen = 0
        with thief, socket.socket(fileno=os.dup(one.peer.socket.fileno())) as sender:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_plain, one.wire)
                for number in range(1, 500):
                    await trio.testing.wait_all_tasks_blocked()
                    # Both are told by the same poll; which of them runs first is drawn by lot.
                    sender.send(msg(b"x"))
                    await trio.lowlevel.wait_readable(thief)
                    try:
                        stolen += thief.recv(100) == msg(b"x")
                    except BlockingIOError:
                        pass
                    assert stolen + len(one.got) == number
                    if min(stolen, len(one.got)) >= 5:
                        break
                nursery.cancel_scope.cancel()
        assert min(stolen, len(one.got)) >= 5
        assert one.asyncio_reads


# ------------------------------------------------------------------------------ ends


async def test_end_of_file() -> None:
    """What came before it is heard: the messages, and the line that says why."""
    async with wired() as one:
        before = descriptors()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_plain, one.wire)
            await wait_until(lambda: not one.asyncio_reads)
            await one.peer.send_all(msg(b"last") + b"-ERR 'Stale Connection'\r\n")
            await one.peer.send_eof()
        assert one.got == [b"last"]
        assert one.wire.error is None
        assert not one.wire.at_eof(), "nats-py must read the line first"
        assert await one.control() == b"-ERR 'Stale Connection'\r\n"
        assert await one.control() == b""
        assert one.wire.at_eof()
        await one.closed()
        assert descriptors() == before - 1


async def test_reset_by_the_peer() -> None:
    async with wired() as one:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_plain, one.wire)
            await wait_until(lambda: not one.asyncio_reads)
            one.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await one.peer.aclose()
        assert isinstance(one.wire.error, ConnectionResetError)
        with pytest.raises(ConnectionResetError):
            await one.control()
        await one.closed()
        assert isinstance(one.wire.error, ConnectionResetError), "the first cause wins"


async def test_nothing_is_delivered_after_an_abort() -> None:
    """The duplicate stays readable: what comes now could not be acknowledged any more."""
    async with wired() as one:
        before = descriptors()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_plain, one.wire)
            await wait_until(lambda: not one.asyncio_reads)
            one.wire.abort()
            await one.closed()
            # The reader ends by itself once there is something that it must not read.
            with trio.fail_after(SOON_S):
                await one.peer.send_all(msg(b"late"))
                await wait_until(lambda: not nursery.child_tasks)
        assert one.got == []
        assert descriptors() == before - 1


async def test_an_abort_between_readiness_and_reading() -> None:
    async with wired() as one:
        with socket.socket(fileno=os.dup(one.peer.socket.fileno())) as sender:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_plain, one.wire)
                await wait_until(lambda: not one.asyncio_reads)
                await trio.testing.wait_all_tasks_blocked()
                sender.send(msg(b"late"))
                one.wire.abort()
                await wait_until(lambda: not nursery.child_tasks)
        assert one.got == []


@pytest.mark.parametrize("how", ["aborted", "hung up"])
async def test_a_transport_that_is_closing_lends_nothing(how: str) -> None:
    async with wired() as one:
        if how == "aborted":
            one.wire.abort()
        else:
            await one.peer.aclose()
            await wait_until(one.wire.at_eof)
        before = descriptors()
        assert one.wire.borrow_socket() is None
        with trio.fail_after(SOON_S):
            await read_plain(one.wire)
        one.wire.give_socket_back()
        assert descriptors() == before
        await one.closed()


def test_a_transport_that_never_connected_lends_nothing() -> None:
    wire = WireTransport([("127.0.0.1", 1)])
    assert wire.borrow_socket() is None
    wire.give_socket_back()
    wire.abort()
    assert wire.borrow_socket() is None


async def test_without_a_descriptor_to_spare_asyncio_goes_on() -> None:
    resource = pytest.importorskip("resource")
    async with wired() as one:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            borrowed = one.wire.borrow_socket()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert borrowed is None
        assert one.asyncio_reads
        await one.peer.send_all(msg(b"x"))
        await wait_until(lambda: one.got == [b"x"])


# ------------------------------------------------------------------------------ in a connection


def wire_of(js: JetStream) -> WireTransport:
    link = js.connection._link
    assert link is not None
    return link.client.wire


async def test_a_lost_connection_is_read_again_by_the_next_session() -> None:
    async with fake_server() as fake, connected(fast(fake.url)) as (js, events):
        for number in range(1, 4):
            first = wire_of(js)
            await wait_until(lambda wire=first: not wire._raw.is_reading())  # type: ignore[misc]
            await fake.hang_up()
            await events.wait("reconnected", number)
            assert wire_of(js) is not first
            await js.connection.flush()
        await wait_until(lambda: not wire_of(js)._raw.is_reading())  # type: ignore[union-attr]
        assert [event.error for event in events.of("error")] == []


async def test_the_reason_that_the_server_gives_is_the_cause() -> None:
    async with fake_server() as fake, connected(fast(fake.url)) as (_js, events):
        await fake.say(b"-ERR 'Stale Connection'\r\n")
        await fake.hang_up()
        lost = await events.wait("disconnected")
        assert isinstance(lost.error, ConnectionError)
        assert "stale connection" in str(lost.error).lower()


async def test_tls_is_read_by_asyncio(tls_server: SecuredServer) -> None:
    async with connected(tls_server.config(reconnect_wait=0.02)) as (js, _events):
        got: list[bytes] = []
        js.connection.subscribe(b"reader.tls", lambda s, r, h, payload: got.append(payload))
        for number in range(500):
            js.connection.publish(b"reader.tls", b"%d" % number)
        await js.connection.flush()
        wire = wire_of(js)
        assert wire.encrypted
        assert wire.borrow_socket() is None
        assert wire._raw is not None
        assert wire._raw.is_reading()
        assert got == [b"%d" % number for number in range(500)]


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_the_goodbye_is_heard(
    how: str, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio reads again: the PONG ends the goodbye, and what came before it is delivered."""
    monkeypatch.setattr(_connection, "CLOSE_BUDGET", SOON_S * 1.5)
    got: list[bytes] = []
    started = trio.current_time()
    with trio.CancelScope() as scope:
        async with connect(fast(server.url)) as js:
            js.connection.subscribe(b"reader.bye", lambda s, r, h, payload: got.append(payload))
            await js.connection.flush()
            assert not wire_of(js)._raw.is_reading()  # type: ignore[union-attr]
            for number in range(500):
                js.connection.publish(b"reader.bye", b"%d" % number)
            if how == "cancelled":
                scope.cancel()
                await trio.sleep_forever()
    assert trio.current_time() - started < SOON_S
    assert got == [b"%d" % number for number in range(500)]
