"""What the tests of the connection share: impatient settings, a record of events, a fake server."""

from __future__ import annotations

import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from shove_actors.jetstream import Connection, ConnectionEvent, JetStream, NatsConfig, connect

#: For something that should happen at once: long enough for a busy machine.
SOON_S = 10.0


def fast(url: str | list[str], **changes: Any) -> NatsConfig:
    """A configuration that neither waits long nor gives up early."""
    settings: dict[str, Any] = {
        "reconnect_wait": 0.02,
        "reconnect_jitter": 0.0,
        "reconnect_jitter_tls": 0.0,
        "connect_timeout": 2.0,
        "request_timeout": 5.0,
    }
    return NatsConfig(url, **{**settings, **changes})


class Lag:
    """By how much this process, and the server if it is to be asked, were late for their turns."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def measure(self, connection: Connection | None) -> None:
        while True:
            began = trio.current_time()
            await trio.sleep(0.01)
            if connection is not None:
                await connection.flush()
            self.seconds += max(0.0, trio.current_time() - began - 0.015)


@asynccontextmanager
async def lag(connection: Connection | None = None) -> AsyncIterator[Lag]:
    """For a bound of the specification that the machine must not widen by itself.

        async with lag(js.connection) as late:
            ...
        assert took < 0.8 + late.seconds

    On a quiet machine it stays near 0, so the bound is the table's; a machine that other programs
    keep busy takes exactly as much more as it was seen to take.
    """
    late = Lag()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(late.measure, connection)
        yield late
        nursery.cancel_scope.cancel()


class Events:
    """Every event of a connection, in order."""

    def __init__(self, connection: Connection) -> None:
        self.all: list[ConnectionEvent] = []
        self._more = trio.Event()
        connection.listen(self._add)

    def _add(self, event: ConnectionEvent) -> None:
        self.all.append(event)
        self._more.set()

    @property
    def kinds(self) -> list[str]:
        """Without `error`, of which there is one per failed attempt."""
        return [event.kind for event in self.all if event.kind != "error"]

    def of(self, kind: str) -> list[ConnectionEvent]:
        return [event for event in self.all if event.kind == kind]

    async def wait(self, kind: str, count: int = 1) -> ConnectionEvent:
        """The `count`-th event of this kind."""
        with trio.fail_after(SOON_S):
            while len(self.of(kind)) < count:
                self._more = trio.Event()
                await self._more.wait()
        return self.of(kind)[count - 1]


@asynccontextmanager
async def connected(config: NatsConfig) -> AsyncIterator[tuple[JetStream, Events]]:
    async with connect(config) as js:
        yield js, Events(js.connection)


async def until_it_ends(
    config: NatsConfig, events: list[ConnectionEvent], trouble: Callable[[], Awaitable[object]]
) -> None:
    """Connects, makes `trouble`, and stays: what the connection ends with is raised."""
    async with connect(config) as js:
        js.connection.listen(events.append)
        await trouble()
        await trio.sleep_forever()


class FakeServer:
    """Speaks just enough NATS to be connected to; then it says what the test wants."""

    def __init__(self) -> None:
        self.url = ""
        self.info: dict[str, Any] = {"version": "2.15.1", "max_payload": 1 << 20, "headers": True}
        #: Sent in the same write as the answer to the handshake's PING, before and after it.
        self.before_pong = b""
        self.after_pong = b""
        self.answers_ping = True
        self.sids: dict[bytes, bytes] = {}
        self.received: list[bytes] = []
        self.sessions = 0
        self._stream: trio.SocketStream | None = None

    async def say(self, data: bytes) -> None:
        """To the present client."""
        assert self._stream is not None
        await self._stream.send_all(data)

    async def hang_up(self) -> None:
        assert self._stream is not None
        await self._stream.aclose()

    async def serve(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.sessions += 1
        first = True
        buffer = b""
        try:
            await stream.send_all(b"INFO " + json.dumps(self.info).encode() + b"\r\n")
            async for chunk in stream:
                *lines, buffer = (buffer + chunk).split(b"\r\n")
                for line in lines:
                    self.received.append(line)
                    if line.startswith(b"SUB "):
                        _, subject, sid = line.split(b" ")
                        self.sids[subject] = sid
                    elif line == b"PING" and (self.answers_ping or first):
                        after = self.after_pong if first else b""
                        before = self.before_pong if first else b""
                        first = False
                        await stream.send_all(before + b"PONG\r\n" + after)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


@asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        fake.url = f"nats://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, fake.serve, [listener])
        yield fake
        nursery.cancel_scope.cancel()


def shown_by(error: BaseException) -> str:
    """A traceback with local variables and all causes, without the frames of the tests, which
    know the secrets."""
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    todo = [shown]
    while todo:
        one = todo.pop()
        one.stack[:] = [frame for frame in one.stack if "/tests/" not in frame.filename]
        todo += [x for x in (one.__cause__, one.__context__) if x is not None]
        todo += getattr(one, "exceptions", None) or []
    return "".join(shown.format()) + " ".join(texts_of(error))


def texts_of(error: BaseException | None) -> Iterator[str]:
    """What an exception shows: itself, its causes and contexts, the members of a group."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        exc = todo.pop()
        if exc is None or id(exc) in seen:
            continue
        seen.add(id(exc))
        yield f"{exc!s} {exc!r} {exc.args!r}"
        todo += [exc.__cause__, exc.__context__, *getattr(exc, "exceptions", ())]
