"""The asyncio side of the bridge: one nats-py client for one TCP (or TLS) connection.

All functions and methods here are **asyncio-flavoured** or synchronous; `_connection.py` is their
only caller. nats-py keeps what it is good at: the handshake, INFO, TLS upgrade, authentication,
PING and its time-out, server errors, closing. It is *not* asked to reconnect (`Connection` does
that in Trio, where the policy can be read and cancelled) and never sees a message:

The transport given to nats-py splits the byte stream. `MSG` and `HMSG` go straight from the
socket's callback to `on_message`; every other line goes to nats-py's own read loop. Why: under
trio-asyncio each asyncio callback costs tens of microseconds, and nats-py's way takes three of
them per read plus a regular-expression parse, an e-mail header parse and a queue per message.
nats-py's traps T1 to T3, T6 and T9 (see the JetStream notes in the docs) cannot occur either:
there is no per-subscription queue, no header dictionary and no handler inside its read loop.

Rules: nothing here raises into asyncio's callbacks (T2); whatever goes wrong ends this session
through `on_closed`, and `Connection` opens the next one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import ParseResult

from nats.aio.client import Client
from nats.aio.transport import Transport

from shove_actors._errors import TLSError

if TYPE_CHECKING:
    #: subject, sid, reply, header block, payload
    MessageSink = Callable[[bytes, int, bytes, bytes | None, bytes], None]

# asyncio's selector transport reads up to 256 KiB at a time, so a line longer than this is not
# a message header but an INFO or garbage, which nats-py judges.
_H, _M = ord("H"), ord("M")


class _Wire(asyncio.Protocol):
    """Splits what arrives: lines while connecting, then messages and control lines."""

    def __init__(self) -> None:
        self.on_message: MessageSink | None = None
        self.lost = False
        self.error: Exception | None = None
        self._tail = b""
        self._chunks: list[bytes] = []
        self._held = 0
        self._need = 0
        self._control = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._paused: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- called by asyncio ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        if self.on_message is None:
            self._control += data
            self._wake()
            return
        try:
            self._split(data)
        except Exception as exc:  # an exception here would only be logged by asyncio
            self.error = exc
            self.lost = True
            self._wake()

    def eof_received(self) -> bool:
        self.lost = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.error = self.error or exc
        self._wake()
        self.resume_writing()
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        if self._paused is None:
            self._paused = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None and not paused.done():
            paused.set_result(None)

    # -- the two streams -----------------------------------------------------------------

    def start_messages(self, on_message: MessageSink) -> None:
        """From now on messages go to `on_message`; what is buffered is split first."""
        self.on_message = on_message
        early = bytes(self._control)
        self._control.clear()
        self._split(early)

    def _split(self, data: bytes) -> None:
        if self._need:
            # In the middle of a large message: collect without copying what is there already.
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._held = self._need = 0
        elif self._tail:
            data = self._tail + data
        self._tail = b""
        sink = self.on_message
        assert sink is not None
        position, size = 0, len(data)
        while position < size:
            eol = data.find(b"\r\n", position)
            if eol < 0:
                break
            first = data[position]
            if first == _H and data.startswith(b"HMSG ", position):
                parts = data[position + 5 : eol].split(b" ")
                body = eol + 2
                end = body + int(parts[-1])
                if end + 2 > size:
                    self._wait_for(data, position, end + 2 - position)
                    return
                head = body + int(parts[-2])
                reply = parts[2] if len(parts) == 5 else b""
                sink(parts[0], int(parts[1]), reply, data[body:head], data[head:end])
                position = end + 2
            elif first == _M and data.startswith(b"MSG ", position):
                parts = data[position + 4 : eol].split(b" ")
                body = eol + 2
                end = body + int(parts[-1])
                if end + 2 > size:
                    self._wait_for(data, position, end + 2 - position)
                    return
                reply = parts[2] if len(parts) == 4 else b""
                sink(parts[0], int(parts[1]), reply, None, data[body:end])
                position = end + 2
            else:
                self._control += data[position : eol + 2]
                position = eol + 2
                self._wake()
        self._tail = data[position:]

    def _wait_for(self, data: bytes, position: int, need: int) -> None:
        rest = data[position:]
        self._chunks.append(rest)
        self._held = len(rest)
        self._need = need

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def readline(self) -> bytes:
        while (end := self._control.find(b"\n")) < 0:
            if self.lost:
                break
            await self._wait()
        end = len(self._control) if end < 0 else end + 1
        line = bytes(self._control[:end])
        del self._control[:end]
        return line

    async def read(self) -> bytes:
        while not self._control:
            if self.lost:
                if isinstance(self.error, OSError):
                    raise self.error
                return b""
            await self._wait()
        data = bytes(self._control)
        self._control.clear()
        return data

    def at_eof(self) -> bool:
        return self.lost and not self._control

    async def drain(self) -> None:
        if self._paused is not None:
            await asyncio.shield(self._paused)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)


class WireTransport(Transport):  # type: ignore[misc]
    """nats-py's transport interface over `_Wire`."""

    def __init__(self) -> None:
        self._wire: _Wire | None = None
        self._raw: asyncio.Transport | None = None
        self.encrypted = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        loop = asyncio.get_running_loop()
        raw, wire = await asyncio.wait_for(
            loop.create_connection(_Wire, uri.hostname, uri.port), connect_timeout
        )
        self._raw, self._wire = cast(asyncio.Transport, raw), wire

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        assert self._raw is not None
        wire = _Wire()
        raw = await asyncio.wait_for(
            asyncio.get_running_loop().start_tls(
                self._raw,
                wire,
                ssl_context,
                server_hostname=uri if isinstance(uri, str) else uri.hostname,
            ),
            connect_timeout,
        )
        if raw is None:
            raise ssl.SSLError("the connection was closed during the TLS handshake")
        self._raw, self._wire = raw, wire
        self.encrypted = True

    def start_messages(self, on_message: MessageSink) -> None:
        assert self._wire is not None
        self._wire.start_messages(on_message)

    def write(self, payload: bytes) -> None:
        if self._raw is not None:
            self._raw.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        if self._raw is not None:
            self._raw.writelines(payload)

    @property
    def unsent(self) -> int:
        """Bytes the kernel has not taken yet."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    async def read(self, buffer_size: int) -> bytes:
        assert self._wire is not None
        return await self._wire.read()

    async def readline(self) -> bytes:
        assert self._wire is not None
        return await self._wire.readline()

    async def drain(self) -> None:
        if self._wire is not None:
            await self._wire.drain()

    async def wait_closed(self) -> None:
        if self._wire is not None:
            await self._wire.wait_closed()

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    def at_eof(self) -> bool:
        return self._wire is None or self._wire.at_eof()

    def __bool__(self) -> bool:
        # True also before connecting: nats-py must keep the transport that it was given.
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where and as whom to connect. Holds credentials, so it has no readable repr."""

    host: str
    port: int
    tls: bool
    ssl_context: ssl.SSLContext | None
    tls_hostname: str | None
    options: dict[str, Any]

    def __repr__(self) -> str:
        return f"<Endpoint {self.host}:{self.port}>"


class SessionClient(Client):  # type: ignore[misc]
    """nats-py's client over our transport, for exactly one connection attempt."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._transport = WireTransport()
        self._endpoint = endpoint

    @property
    def wire(self) -> WireTransport:
        return cast(WireTransport, self._transport)

    async def _select_next_server(self) -> None:
        # One attempt: nats-py would go round its pool for minutes even with reconnecting off.
        server = self._server_pool[0]
        await self._connect_to_server(server)
        self._current_server = server

    def _connect_command(self) -> bytes:
        # The last moment before credentials leave: a server that does not offer TLS, or somebody
        # who removed the offer on the way, must not see them (C3, PC-133).
        if self._endpoint.tls and not self.wire.encrypted:
            raise TLSError(
                f"{self._endpoint.host}:{self._endpoint.port} does not offer TLS, but the URL "
                "requires it (tls://); nothing was sent"
            )
        return cast(bytes, super()._connect_command())

    @property
    def info(self) -> dict[str, Any]:
        """The server's last INFO."""
        return cast("dict[str, Any]", self._server_info)


async def open_session(
    endpoint: Endpoint,
    on_message: MessageSink,
    on_error: Callable[[Exception], None],
    on_closed: Callable[[], None],
) -> SessionClient:
    """asyncio-flavoured. Connect once; returns a client whose messages flow to `on_message`."""
    client = SessionClient(endpoint)

    async def error_cb(exc: Exception) -> None:
        on_error(exc)

    async def closed_cb() -> None:
        on_closed()

    scheme = "tls" if endpoint.tls else "nats"
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    try:
        await client.connect(
            servers=[f"{scheme}://{host}:{endpoint.port}"],
            error_cb=error_cb,
            closed_cb=closed_cb,
            allow_reconnect=False,
            dont_randomize=True,
            skip_subject_validation=True,
            tls=endpoint.ssl_context,
            tls_hostname=endpoint.tls_hostname,
            **endpoint.options,
        )
    except BaseException:
        client.wire.abort()
        raise

    def internal_task_ended(_: object) -> None:
        # T2: a read loop or flusher that ended by itself would leave a connection that looks
        # alive. Closing makes it a lost connection, which is what it is.
        if not client.is_closed:
            client.wire.abort()
            asyncio.get_running_loop().create_task(client.close())

    for task in (client._reading_task, client._flusher_task):
        task.add_done_callback(internal_task_ended)
    client.wire.start_messages(on_message)
    return client
