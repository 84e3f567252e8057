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

Rules
* Nothing here raises into asyncio's callbacks (T2); whatever goes wrong ends this session through
  `on_closed`, and `Connection` opens the next one.
* The first cause of an end wins (`SessionClient.cause`): what follows a loss, such as the end of
  file after our own abort, explains nothing.
* A session that ends is aborted, never closed by waiting for its write buffer: a peer that does
  not read would hold the close, and with it the reconnect, for ever.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import ParseResult

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.transport import Transport

from shove_actors._errors import TLSError

#: subject, sid, reply, header block, payload
MessageSink = Callable[[bytes, int, bytes, "bytes | None", bytes], None]

_H, _M = ord("H"), ord("M")
#: No line of the protocol is longer; without a limit a peer that never ends one fills the memory.
_LONGEST_LINE = 1 << 20


class ProtocolBroken(Exception):
    """What arrived is not the NATS protocol."""


class _Wire(asyncio.Protocol):
    """Splits what arrives: lines while connecting, then messages and control lines."""

    def __init__(self, on_made: Callable[[asyncio.Transport], None]) -> None:
        self._on_made = on_made
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
        # Told here and not by the result of `create_connection`: a cancelled call may lose that
        # result, and the socket with it.
        self._on_made(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
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
                head = body + int(parts[-2])
                if not body <= head <= end:
                    raise ProtocolBroken("a message with impossible sizes arrived")
                if end + 2 > size:
                    self._wait_for(data, position, end + 2 - position)
                    return
                reply = parts[2] if len(parts) == 5 else b""
                sink(parts[0], int(parts[1]), reply, data[body:head], data[head:end])
                position = end + 2
            elif first == _M and data.startswith(b"MSG ", position):
                parts = data[position + 4 : eol].split(b" ")
                body = eol + 2
                end = body + int(parts[-1])
                if end < body:  # going backwards would never end
                    raise ProtocolBroken("a message with an impossible size arrived")
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
        if len(self._tail) > _LONGEST_LINE:
            raise ProtocolBroken("a line without an end arrived")

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
                if isinstance(self.error, OSError):
                    raise self.error  # such as the alert that says which certificate is missing
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


class WireTransport(Transport):
    """nats-py's transport interface over `_Wire`."""

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self._addresses = addresses
        self._wire: _Wire | None = None
        self._raw: asyncio.Transport | None = None
        self._greeted = False
        self.encrypted = False

    def _made(self, transport: asyncio.Transport) -> None:
        self._raw = transport

    def _protocol(self) -> _Wire:
        assert self._wire is not None
        return self._wire

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        loop = asyncio.get_running_loop()
        for host, port in self._addresses:
            self._wire = _Wire(self._made)
            try:
                await asyncio.wait_for(
                    loop.create_connection(self._protocol, host, port), connect_timeout
                )
                return
            except OSError:
                if (host, port) == self._addresses[-1]:
                    raise

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        assert self._raw is not None
        wire = _Wire(self._made)
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

    # -- reading by somebody else (see `_reader.py`) ---------------------------------------

    def borrow_socket(self) -> socket.socket | None:
        """A duplicate to read from, and asyncio stops reading. None: it has to go on itself."""
        raw = self._raw
        if raw is None or self.encrypted or raw.is_closing():
            return None
        own = raw.get_extra_info("socket")
        if own is None:
            return None
        duplicate = cast(socket.socket, own.dup())
        duplicate.setblocking(False)
        raw.pause_reading()
        return duplicate

    def give_socket_back(self) -> None:
        raw = self._raw
        if raw is not None and not raw.is_closing():
            raw.resume_reading()

    def feed(self, data: bytes) -> None:
        assert self._wire is not None
        self._wire.data_received(data)

    def read_failed(self, error: OSError | None) -> None:
        """End of file (None) or an error, met by whoever borrowed the socket."""
        assert self._wire is not None
        if error is not None:
            self._wire.error = self._wire.error or error
        self._wire.eof_received()
        self.abort()

    def write(self, payload: bytes) -> None:
        if self._raw is not None:
            self._raw.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        if self._raw is not None:
            self._raw.writelines(payload)

    @property
    def error(self) -> Exception | None:
        """What broke the connection, if the transport or the protocol said so."""
        return None if self._wire is None else self._wire.error

    @property
    def unsent(self) -> int:
        """Bytes the kernel has not taken yet."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    async def read(self, buffer_size: int) -> bytes:
        assert self._wire is not None
        return await self._wire.read()

    async def readline(self) -> bytes:
        """For the handshake: the greeting, then whatever is not another INFO.

        The server may announce changes at any time; nats-py would take an INFO in place of the
        PONG for a failed connect.
        """
        assert self._wire is not None
        line = await self._wire.readline()
        while self._greeted and line.startswith(b"INFO "):
            line = await self._wire.readline()
        self._greeted = True
        return line

    async def drain(self) -> None:
        if self._wire is not None:
            await self._wire.drain()

    async def wait_closed(self) -> None:
        if self._wire is not None:
            await self._wire.wait_closed()

    def close(self) -> None:
        # See the rules above. Whoever wants to be sure of the last bytes has pinged before.
        self.abort()

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
    """Where and as whom to connect. Holds credentials, so it has no readable repr.

    `addresses`: what the host's name stands for, one at least. Looked up by the caller, because a
    look-up in asyncio's thread cannot be cancelled.
    """

    addresses: Sequence[tuple[str, int]]
    host: str
    port: int
    tls: bool
    client_cert: bool
    ssl_context: ssl.SSLContext | None
    tls_hostname: str | None
    options: dict[str, Any]

    def __repr__(self) -> str:
        return f"<Endpoint {self.host}:{self.port}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvents:
    """Where a session reports to. None of these may raise or wait.

    `on_notice`: the server complained and the session goes on (a permission, for instance).
    `on_info`: the server announced changes. `on_closed`: the session has ended, once.
    """

    on_message: MessageSink
    on_notice: Callable[[Exception], None]
    on_info: Callable[[dict[str, Any]], None]
    on_closed: Callable[[], None]


class SessionClient(Client):
    """nats-py's client over our transport, for exactly one connection attempt."""

    def __init__(self, endpoint: Endpoint, events: SessionEvents) -> None:
        super().__init__()
        self._transport = self.wire = WireTransport(endpoint.addresses)
        self._endpoint = endpoint
        self._events = events
        self._closing_task: asyncio.Task[None] | None = None
        #: Why the session ended, once it has. Raw text of the server's: redact before showing.
        self.cause: Exception | None = None

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
        if self.info.get("tls_verify") and not self._endpoint.client_cert:
            # With TLS 1.3 the refusal would come after the handshake, as an alert that a broken
            # pipe may hide.
            raise TLSError(
                f"{self._endpoint.host}:{self._endpoint.port} wants a client certificate; set "
                "tls_client_cert and tls_client_key"
            )
        return super()._connect_command()

    async def _process_info(
        self, info: dict[str, Any], initial_connection: bool = False
    ) -> None:
        # nats-py would only extend its own pool, which nobody uses, and keep the old facts.
        if not initial_connection:
            self._server_info = {**self._server_info, **info}
            self._events.on_info(info)

    async def _process_err(self, err_msg: str) -> None:
        # nats-py tells nobody about the errors with which the server ends a connection.
        if "permissions violation" not in err_msg:
            self._note(nats_errors.Error(err_msg.strip("'")))
        await super()._process_err(err_msg)

    async def _process_op_err(self, e: Exception) -> None:
        self._note(self.wire.error or e)
        self.wire.abort()  # or nats-py's close would wait for a write buffer that nobody reads
        await super()._process_op_err(e)

    def _note(self, cause: Exception) -> None:
        if self.cause is None:
            self.cause = cause

    def fail(self, cause: Exception) -> None:
        """End the session because of `cause`."""
        self._note(cause)
        self.wire.abort()

    async def ping(self) -> None:
        """asyncio-flavoured. Return when the server has read everything written so far.

        Not nats-py's `rtt`: the PONG of one that was cancelled would be given to a future that is
        done, and that exception ends the read loop. Ended by the session's end with
        `asyncio.CancelledError`.
        """
        if self.is_closed:
            raise nats_errors.ConnectionClosedError
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pongs.append(future)
        self.wire.write(b"PING\r\n")
        await asyncio.shield(future)

    async def report_error(self, exc: Exception) -> None:
        """asyncio-flavoured. nats-py's error callback; fatal ones come by other ways, too."""
        if self.is_connected and not isinstance(exc, (OSError, nats_errors.UnexpectedEOF)):
            self._events.on_notice(exc)

    async def report_closed(self) -> None:
        """asyncio-flavoured. nats-py's callback at the end of its close."""
        for future in self._pongs:
            if not future.done():
                future.cancel()
        self._events.on_closed()

    def watch_tasks(self) -> None:
        """T2: a read loop or flusher that ends by itself would leave a connection that looks
        alive. Closing makes it a lost connection, which is what it is."""

        def ended(_: object) -> None:
            if not self.is_closed and self._closing_task is None:
                self.fail(nats_errors.Error("a task of the NATS client ended by itself"))
                self._closing_task = asyncio.get_running_loop().create_task(self.close())

        for task in (self._reading_task, self._flusher_task):
            assert task is not None
            task.add_done_callback(ended)

    @property
    def info(self) -> dict[str, Any]:
        """What the server has told of itself."""
        return self._server_info


async def open_session(endpoint: Endpoint, events: SessionEvents) -> SessionClient:
    """asyncio-flavoured. Connect once; returns a client whose messages flow to `on_message`."""
    client = SessionClient(endpoint, events)
    scheme = "tls" if endpoint.tls else "nats"
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    try:
        await client.connect(
            servers=[f"{scheme}://{host}:{endpoint.port}"],
            error_cb=client.report_error,
            closed_cb=client.report_closed,
            allow_reconnect=False,
            dont_randomize=True,
            skip_subject_validation=True,
            tls=endpoint.ssl_context,
            tls_hostname=endpoint.tls_hostname,
            **endpoint.options,
        )
        if not client.is_connected:
            # nats-py takes an end of file in place of the PONG for success.
            raise nats_errors.Error("the server closed the connection during the handshake")
        client.watch_tasks()
        client.wire.start_messages(events.on_message)
    except BaseException:
        client.wire.abort()
        if client._reading_task is not None:
            await client.close()  # ends nats-py's tasks; quick after the abort
        raise
    return client
