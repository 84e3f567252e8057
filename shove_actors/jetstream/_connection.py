"""The bridge: one NATS connection, kept alive in Trio.

    any task -> write() -> [egress task] -> transport -> server
    server -> socket callback -> sink of the subscription (or the reply inbox) -> lane buffers

Invariants
* A sink runs inside the socket's callback: it never waits and never raises. It appends to a
  buffer and wakes a task, nothing else.
* One session (nats-py client, TCP or TLS connection) at a time. When it ends, for whatever
  reason, every waiting reply fails at once, then the reconnect policy below opens the next one,
  all subscriptions are replayed, and listeners hear `reconnected`.
* Nothing written before a loss is written again after it: whoever sent it hears of the loss and
  knows better whether it is still right (a publish is repeated with its id; an acknowledgement
  only while its lease lasts).
* The asyncio loop belongs to this object (opened and closed by `run`), so a stray asyncio failure
  ends a session, not the application (PC-094), and the application's asyncio failures cannot end
  ours.

Why the reconnect policy is ours and not nats-py's: nats-py's first connect goes round for minutes
(PC-015), expired credentials close it for good (PC-016), a dying read loop leaves it deaf (T2),
and none of its waits can be seen or cancelled from Trio. One attempt of nats-py is exact; the
loop around it is thirty lines here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
import sys
from collections.abc import Callable

import trio
import trio_asyncio
from nats import errors as nats_errors

from shove_actors._errors import (
    AuthenticationError,
    BrokerClosed,
    ConnectionError,
    NotConnected,
    RequestTimeout,
    TLSError,
)

from ._aio import Endpoint, SessionClient, open_session
from ._config import NatsConfig, Resolved, ServerAddress
from ._egress import Egress
from ._events import ConnectionEvent, ConnectionEventKind
from ._replies import Replies
from ._wire import hpub, pub, status_of, sub, unsub

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

logger = logging.getLogger("shove_actors.jetstream")

#: subject, reply, header block, payload
Sink = Callable[[bytes, bytes, "bytes | None", bytes], None]
Listener = Callable[[ConnectionEvent], None]

#: How long a closing connection may take to flush and say goodbye; a dead server must not hold
#: the application's exit.
CLOSE_BUDGET = 2.0
#: The server's limit until its INFO tells otherwise.
DEFAULT_MAX_PAYLOAD = 1 << 20


class Reply:
    """An answer to `request`: payload, and the status line for a status message."""

    __slots__ = ("header_block", "payload")

    def __init__(self, payload: bytes, header_block: bytes | None) -> None:
        self.payload = payload
        self.header_block = header_block

    @property
    def status(self) -> tuple[int, str] | None:
        return None if self.payload else status_of(self.header_block)


class _Waiter:
    """One task waiting for one reply."""

    __slots__ = ("result", "task")

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.result: Reply | Exception | None = None


def _resume(argument: object, header_block: bytes | None, payload: bytes | Exception) -> None:
    waiter = argument
    assert isinstance(waiter, _Waiter)
    waiter.result = (
        payload if isinstance(payload, Exception) else Reply(payload, header_block)
    )
    if waiter.task is not None:
        task, waiter.task = waiter.task, None
        trio.lowlevel.reschedule(task)


class Connection:
    """A NATS connection. `run` it in a task; everything else may be called from any Trio task.

    `run` may be called again after it failed (a supervisor restarts it): subscriptions survive.
    """

    def __init__(self, config: NatsConfig, *, rng: random.Random | None = None) -> None:
        self._config = config
        self._rng = rng if rng is not None else random.Random()
        self._egress = Egress()
        self._replies = Replies(b"_INBOX." + secrets.token_hex(11).encode())
        self._sinks: dict[int, tuple[bytes, Sink]] = {}
        self._next_sid = 1
        self._listeners: list[Listener] = []
        self._loop: trio_asyncio.TrioEventLoop | None = None
        self._session: SessionClient | None = None
        self._server: ServerAddress | None = None
        self._known: list[ServerAddress] = []
        self._flushing: set[trio.CancelScope] = set()
        self._up = trio.Event()
        self._down = trio.Event()
        self._closing = trio.Event()
        self._over = trio.Event()
        self._ended: Exception | None = None
        self._last_error: Exception | None = None
        self._info: dict[str, object] = {}
        self.reconnects = 0
        self.subscribe(self._replies.subject, self._replies.deliver)
        self.listen(self._call_user)

    def __repr__(self) -> str:
        where = self._server.redacted if self._server is not None else "not connected"
        return f"<Connection {where}{'' if self.connected else ' (down)'}>"

    # ----------------------------------------------------------------- state

    @property
    def connected(self) -> bool:
        return self._session is not None

    @property
    def server(self) -> str:
        """Redacted address of the current or last server."""
        return self._server.redacted if self._server is not None else ""

    @property
    def server_version(self) -> str:
        return str(self._info.get("version", ""))

    @property
    def max_payload(self) -> int:
        value = self._info.get("max_payload", DEFAULT_MAX_PAYLOAD)
        return value if isinstance(value, int) else DEFAULT_MAX_PAYLOAD

    def listen(self, listener: Listener) -> None:
        """Call `listener(event)` for every event. One that raises is logged and removed."""
        self._listeners.append(listener)

    async def wait_connected(self) -> None:
        """Return once connected; raise why not, once that is final."""
        while not self.connected:
            self._check_open()
            await self._up.wait()
            self._check_open()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _check_open(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._closing.is_set():
            raise BrokerClosed("the connection is closed; use it inside its `async with` block")

    # ----------------------------------------------------------------- writing

    def write(self, data: bytes) -> bool:
        """Queue protocol bytes. False (and nothing queued) when there is no connection."""
        if self._session is None:
            return False
        self._egress.write(data)
        return True

    def publish(
        self, subject: bytes, payload: bytes, reply: bytes = b"", header_block: bytes = b""
    ) -> bool:
        """Core publish, unacknowledged. False when there is no connection."""
        if header_block:
            return self.write(hpub(subject, reply, header_block, payload))
        return self.write(pub(subject, reply, payload))

    # ----------------------------------------------------------------- subscribing

    def subscribe(self, subject: bytes, sink: Sink) -> int:
        """Register a sink; replayed on every reconnect until `unsubscribe`."""
        sid = self._next_sid
        self._next_sid += 1
        self._sinks[sid] = (subject, sink)
        self.write(sub(subject, sid))
        return sid

    async def unsubscribe(self, sid: int) -> None:
        """End interest. What the server had sent before still reaches the sink, then nothing."""
        entry = self._sinks.get(sid)
        if entry is None:
            return
        if self.write(unsub(sid)):
            with trio.CancelScope(deadline=trio.current_time() + CLOSE_BUDGET, shield=True):
                try:
                    await self.flush(CLOSE_BUDGET)
                except (ConnectionError, RequestTimeout, BrokerClosed):
                    # Without a connection the interest has ended anyway.
                    pass
        self._sinks.pop(sid, None)

    def move_subscription(self, sid: int, subject: bytes) -> None:
        """Another subject for the same sink, from the next connect on. Only while disconnected."""
        entry = self._sinks.get(sid)
        if entry is not None:
            self._sinks[sid] = (subject, entry[1])

    def new_inbox(self) -> bytes:
        return b"_INBOX." + secrets.token_hex(11).encode()

    @property
    def replies(self) -> Replies:
        return self._replies

    # ----------------------------------------------------------------- asking

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: float | None = None,
        header_block: bytes = b"",
    ) -> Reply:
        """Ask and wait for one reply, at most `timeout` seconds (default: the config's).

        The wait includes waiting for a connection. Raises `RequestTimeout` when no reply came,
        `ConnectionError` when the connection was lost meanwhile (the request may or may not have
        been carried out). Cancelling forgets the reply; the request may have been sent.
        """
        limit = self._config.request_timeout if timeout is None else timeout
        with trio.move_on_after(limit):
            await self.wait_connected()
            waiter = _Waiter()
            reply_to = self._replies.expect(_resume, waiter)
            try:
                self.publish(subject.encode(), payload, reply_to, header_block)
                if waiter.result is None:
                    waiter.task = trio.lowlevel.current_task()

                    def abort(_: object) -> trio.lowlevel.Abort:
                        waiter.task = None
                        return trio.lowlevel.Abort.SUCCEEDED

                    await trio.lowlevel.wait_task_rescheduled(abort)
            finally:
                self._replies.forget(reply_to)
            if isinstance(waiter.result, Exception):
                raise waiter.result
            assert waiter.result is not None
            return waiter.result
        raise RequestTimeout(
            f"no answer to {subject} within {limit:g} s from {self.server or 'any server'}"
        )

    async def flush(self, timeout: float = 5.0) -> None:
        """Return when the server has read everything written so far (PING/PONG)."""
        session, loop = self._session, self._loop
        if session is None or loop is None:
            raise NotConnected("not connected")
        self._egress.flush_now()
        with trio.move_on_after(timeout) as scope:
            self._flushing.add(scope)
            try:
                await loop.run_aio_coroutine(session.rtt(int(timeout) + 1))
                return
            except (nats_errors.Error, OSError, asyncio.CancelledError) as exc:
                raise ConnectionError(f"the connection was lost: {self._text(exc)}") from None
            finally:
                self._flushing.discard(scope)
        if self._session is not session:
            raise NotConnected(f"the connection to {self.server} was lost")
        raise RequestTimeout(f"no PONG within {timeout:g} s from {self.server}")

    def drop_session(self, reason: str) -> None:
        """Treat the current session as lost (it does not answer); the policy opens the next."""
        if self._session is not None:
            self._last_error = ConnectionError(reason)
            self._session.wire.abort()

    # ----------------------------------------------------------------- life

    def close(self) -> None:
        """Ask `run` to flush and end. Returns at once."""
        self._closing.set()

    async def wait_ended(self) -> None:
        """Until `run` has returned or failed."""
        await self._over.wait()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Connect, report started, keep the connection until `close`.

        Raises `ConfigError` for a bad configuration, `ConnectionError` (or its subclasses) when
        the first connect fails or the reconnect limit is reached. Cancelling closes at once.
        """
        resolved = await trio.to_thread.run_sync(self._config.validate)
        self._known = list(resolved.servers)
        self._ended = None
        self._over = trio.Event()
        if not resolved.dont_randomize:
            self._rng.shuffle(self._known)
        try:
            async with trio_asyncio.open_loop() as loop, trio.open_nursery() as nursery:
                loop.set_exception_handler(self._asyncio_failure)
                self._loop = loop
                nursery.start_soon(self._egress.run)
                await self._first_connect(resolved)
                self._emit("connected")
                task_status.started()
                while await self._serve():
                    if not await self._reconnect(resolved):
                        break
                nursery.cancel_scope.cancel()
        except BaseException as exc:
            error = exc
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            if isinstance(error, Exception):
                self._ended = error
                self._emit("closed", error)
                raise error from error.__cause__
            raise
        finally:
            self._loop = None
            self._lost(None)
            self._up.set()
            self._over.set()
        self._ended = BrokerClosed("the connection is closed")
        self._emit("closed")

    async def _serve(self) -> bool:
        """Until the session ends. True: reconnect; False: we were asked to close."""
        session = self._session
        assert session is not None
        asked = False
        try:
            async with trio.open_nursery() as nursery:

                async def watch_close() -> None:
                    nonlocal asked
                    await self._closing.wait()
                    asked = True
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch_close)
                await self._down.wait()
                nursery.cancel_scope.cancel()
        finally:
            # Asked, cancelled or lost: say goodbye within the budget.
            with trio.move_on_after(CLOSE_BUDGET, shield=True):
                await self._hang_up(session, polite=not self._down.is_set())
        return not asked

    async def _hang_up(self, session: SessionClient, *, polite: bool) -> None:
        loop = self._loop
        assert loop is not None
        try:
            if polite:
                self._egress.flush_now()
                await loop.run_aio_coroutine(session.rtt(2))
            await loop.run_aio_coroutine(session.close())
        except (nats_errors.Error, OSError, asyncio.CancelledError, RuntimeError):
            pass
        finally:
            session.wire.abort()
            error = self._last_error
            self._lost(error)

    def _lost(self, error: Exception | None) -> None:
        if self._session is None:
            return
        self._session = None
        self._up = trio.Event()
        self._egress.detach()
        for scope in self._flushing:
            scope.cancel()
        what = f": {self._text(error)}" if error is not None else ""
        self._replies.fail_all(NotConnected(f"the connection to {self.server} was lost{what}"))
        self._emit("disconnected", error)

    # ----------------------------------------------------------------- connecting

    async def _first_connect(self, resolved: Resolved) -> None:
        errors: list[Exception] = []
        for server in self._known:
            try:
                await self._attempt(resolved, server)
                return
            except ConnectionError as exc:
                errors.append(exc)
        # The last cause speaks; an authentication or TLS refusal is more telling than a refusal
        # to listen, whichever server it came from.
        telling = [e for e in errors if isinstance(e, AuthenticationError | TLSError)]
        raise (telling or errors)[-1]

    async def _reconnect(self, resolved: Resolved) -> bool:
        """True once connected again; False when asked to close meanwhile."""
        if not resolved.allow_reconnect:
            raise ConnectionError(
                f"the connection to {self.server} was lost{self._because()} and "
                "allow_reconnect is off"
            )
        limit = resolved.max_reconnect_attempts
        attempts: dict[ServerAddress, int] = {}
        refused: dict[ServerAddress, int] = {}
        last: Exception | None = self._last_error
        round_ = 0
        while True:
            pool = [s for s in self._known if limit is None or attempts.get(s, 0) < limit]
            if not pool:
                raise ConnectionError(
                    f"gave up after {limit} reconnect attempts to each of "
                    f"{', '.join(s.redacted for s in self._known)}; "
                    f"last error: {self._text(last) if last else 'unknown'}"
                ) from None
            round_ += 1
            for index, server in enumerate(pool):
                if index == len(pool) - 1 and await self._closed_during(resolved, round_):
                    return False
                attempts[server] = attempts.get(server, 0) + 1
                try:
                    await self._attempt(resolved, server)
                except AuthenticationError as exc:
                    last = exc
                    refused[server] = refused.get(server, 0) + 1
                    self._emit("error", exc)
                    if refused[server] >= 2:
                        # The same refusal twice is not going to change by asking again.
                        raise
                except TLSError:
                    raise
                except ConnectionError as exc:
                    last = exc
                    self._emit("error", exc)
                else:
                    self.reconnects += 1
                    self._emit("reconnected")
                    return True

    async def _closed_during(self, resolved: Resolved, round_: int) -> bool:
        delay = resolved.reconnect_delay(round_, self._rng)
        with trio.move_on_after(delay):
            await self._closing.wait()
            return True
        return False

    async def _attempt(self, resolved: Resolved, server: ServerAddress) -> None:
        """One attempt on one server; replays subscriptions. Raises `ConnectionError` kinds."""
        loop = self._loop
        assert loop is not None
        self._server = server
        self._last_error = None
        down = trio.Event()
        endpoint = Endpoint(
            host=server.host,
            port=server.port,
            tls=server.tls,
            ssl_context=resolved.ssl_context if server.tls else None,
            tls_hostname=(resolved.tls_hostname or server.host) if server.tls else None,
            options=resolved.client_options(server),
        )
        session: SessionClient | None = None
        failure: BaseException | None = None
        with trio.move_on_after(resolved.connect_timeout):
            try:
                session = await loop.run_aio_coroutine(
                    open_session(endpoint, self._on_message, self._on_error, down.set)
                )
            except TLSError:
                raise
            except (OSError, nats_errors.Error, asyncio.TimeoutError, ssl.SSLError, ValueError,
                    ModuleNotFoundError) as exc:
                failure = exc
        if session is None:
            raise self._classify(server, failure, resolved.connect_timeout) from None
        self._down = down
        self._session = session
        self._info = session.info
        self._learn_servers(server)
        self._egress.attach(
            session.wire.write,
            lambda: session.wire.unsent,
            lambda: self._drained(session),
        )
        replay = b"".join(sub(subject, sid) for sid, (subject, _) in self._sinks.items())
        self._egress.write(replay)
        self._egress.flush_now()
        self._up.set()

    async def _drained(self, session: SessionClient) -> None:
        loop = self._loop
        if loop is not None:
            try:
                await loop.run_aio_coroutine(session.wire.drain())
            except (OSError, asyncio.CancelledError, RuntimeError):
                # The session is ending; `_down` tells those who need to know.
                await trio.lowlevel.checkpoint()

    def _classify(
        self, server: ServerAddress, failure: BaseException | None, timeout: float
    ) -> ConnectionError:
        where = server.redacted
        if failure is None or isinstance(failure, asyncio.TimeoutError):
            return ConnectionError(f"{where} did not complete the handshake in {timeout:g} s")
        text = self._text(failure)
        lower = text.lower()
        if isinstance(failure, ssl.SSLError) or "certificate" in lower:
            return TLSError(f"TLS with {where} failed: {text}")
        if "authorization" in lower or "authentication" in lower:
            return AuthenticationError(f"{where} refused the credentials: {text}")
        if isinstance(failure, ModuleNotFoundError):
            return ConnectionError(
                f"cannot authenticate to {where}: {text}; "
                "install the extra `shove-actors[nkeys]` for nkeys and credentials files"
            )
        return ConnectionError(f"cannot connect to {where}: {text}")

    def _learn_servers(self, current: ServerAddress) -> None:
        urls = self._info.get("connect_urls")
        for url in urls if isinstance(urls, list) else ():
            host, _, port = str(url).rpartition(":")
            found = current.at(host.strip("[]"), int(port))
            if all((found.host, found.port) != (k.host, k.port) for k in self._known):
                self._known.append(found)
                self._emit("discovered")

    # ----------------------------------------------------------------- callbacks

    def _on_message(
        self,
        subject: bytes,
        sid: int,
        reply: bytes,
        header_block: bytes | None,
        payload: bytes,
    ) -> None:
        entry = self._sinks.get(sid)
        if entry is None:
            return
        try:
            entry[1](subject, reply, header_block, payload)
        except Exception as exc:
            # A sink must not raise; one that does is our bug, and must not stop the ingress.
            logger.exception("a subscription's sink failed")
            self._emit("error", exc)

    def _on_error(self, exc: Exception) -> None:
        error = ConnectionError(self._text(exc))
        self._last_error = error
        if self._session is not None:
            self._emit("error", error)

    def _asyncio_failure(self, loop: object, context: dict[str, object]) -> None:
        """asyncio's exception handler: a failed session, never a crash of the application."""
        exc = context.get("exception")
        text = self._text(exc) if isinstance(exc, BaseException) else str(context.get("message"))
        logger.warning("asyncio reported a failure in the NATS client: %s", text)
        self._last_error = ConnectionError(f"failure inside the NATS client: {text}")
        self._emit("error", self._last_error)
        if self._session is not None:
            self._session.wire.abort()

    def _call_user(self, event: ConnectionEvent) -> None:
        """The callbacks of the configuration. One that raises is logged, never passed on."""
        callback = {
            "disconnected": self._config.on_disconnected,
            "reconnected": self._config.on_reconnected,
            "closed": self._config.on_closed,
            "error": self._config.on_error,
        }.get(event.kind)
        if callback is not None:
            try:
                callback(event)
            except Exception:
                logger.exception("the on_%s callback failed", event.kind)

    def _because(self) -> str:
        return f" ({self._text(self._last_error)})" if self._last_error is not None else ""

    def _text(self, exc: BaseException | None) -> str:
        if exc is None:
            return ""
        text = self._config.redact(str(exc)) or type(exc).__name__
        return text.removeprefix("nats: ")

    def _emit(self, kind: ConnectionEventKind, error: Exception | None = None) -> None:
        event = ConnectionEvent(kind=kind, server=self.server, error=error)
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("a connection listener failed and was removed")
                self._listeners.remove(listener)
