"""The asyncio side of the bridge: one nats-py client for one TCP (or TLS) connection.

All functions and methods here are **asyncio-flavoured** or synchronous; the dialer, the link and
the connection are their only callers. nats-py keeps what it is good at: the handshake, INFO, TLS
upgrade, authentication, PING and its time-out, server errors, closing. It is *not* asked to
reconnect (`Connection` does that in Trio, where the policy can be read and cancelled) and never
sees a message: those leave the byte stream before it (see `_framing.py`).

Rules
* Nothing here raises into asyncio's callbacks (T2); whatever goes wrong ends this session through
  `on_closed`, and `Connection` opens the next one.
* The first cause of an end wins (`SessionClient.cause`): what follows a loss, such as the end of
  file after our own abort, explains nothing.
* A session that ends is aborted (see `_transport.py`).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nats import errors as nats_errors
from nats.aio.client import Client

from shove_actors._errors import PermissionDenied, TLSError

from ._framing import MessageSink
from ._transport import WireTransport

#: What a server says of a subject that this user may not use. The session goes on.
_DENIED = re.compile(
    r"\'?permissions violation for (publish|subscription) (?:to|with reply of) \"([^\"]*)\"", re.I
)
_ERR_LINE = re.compile(rb"-ERR[ \t]+([^\r\n]*)", re.I)


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

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # nats-py would only extend its own pool, which nobody uses, and keep the old facts.
        if not initial_connection:
            self._server_info = {**self._server_info, **info}
            self._events.on_info(info)

    async def _process_err(self, err_msg: str) -> None:
        # nats-py tells nobody about the errors with which the server ends a connection.
        if "permissions violation" not in err_msg:
            self._note(nats_errors.Error(err_msg.strip("'")))
        elif (denied := self._denied(err_msg)) is not None:
            if self.is_connected:
                self._events.on_notice(denied)
            return
        await super()._process_err(err_msg)

    def _denied(self, err_msg: str) -> PermissionDenied | None:
        # nats-py hands the text over in lower case, and subjects are not.
        line = _ERR_LINE.match(self._ps.buf)
        found = _DENIED.match(line[1].decode(errors="replace") if line else err_msg)
        if found is None:
            return None
        operation = "publish" if found[1].lower() == "publish" else "subscribe"
        return PermissionDenied(
            f"permissions violation: this user may not {operation} to {found[2]!r}; have it "
            "granted on the server, or use other credentials",
            subject=found[2],
            operation=operation,
        )

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
    options = dict(endpoint.options)
    # The owner of the key signs elsewhere; nats-py derives this from a seed only.
    client._public_nkey = options.pop("public_nkey", None)
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
            **options,
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
