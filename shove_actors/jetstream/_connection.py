"""The bridge: one NATS connection, kept alive in Trio.

    any task -> write() -> [egress task] -> transport -> server
    server -> socket callback -> sink of the subscription (or the reply inbox) -> lane buffers

Invariants
* One session (nats-py client, TCP or TLS connection) at a time. When it ends, for whatever
  reason, every waiting reply fails at once, then the `Dialer` opens the next one, all
  subscriptions are replayed, and listeners hear `reconnected`.
* Listeners hear `connected`, then per loss one `disconnected` with its cause, and one
  `reconnected` when it is over, and at the very end one `closed`, with the cause unless the user
  closed. Closing is no loss: it is not announced as one. `error` tells of what is neither, such as
  a failed attempt or a refused subscription.
* Nothing written before a loss is written again after it: whoever sent it hears of the loss and
  knows better whether it is still right (a publish is repeated with its id; an acknowledgement
  only while its lease lasts).
* The asyncio loop belongs to this object (opened and closed by `run`), so a stray asyncio failure
  ends a session, not the application (PC-094), and the application's asyncio failures cannot end
  ours.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from functools import partial

import trio
import trio_asyncio

from shove_actors._errors import (
    BrokerClosed,
    ConnectionError,
    NotConnected,
    RequestTimeout,
    UnavailableError,
)
from shove_actors._groups import unwrapped
from shove_actors._real_clock import refuse_mock_clock

from ._availability import Availability
from ._config import NatsConfig, Resolved, ServerAddress
from ._dialer import Dialer, DialerEvents
from ._egress import Egress
from ._events import ConnectionEvent, ConnectionEventKind
from ._link import Link
from ._listeners import Listener, Listeners
from ._read_floor import PAUSE_S
from ._reader import read_plain
from ._replies import Replies
from ._request import Reply, ask
from ._server_facts import ServerFacts
from ._subscriptions import Sink, Subscriptions
from ._wire import check_subject, hpub, pub, sub, unsub

logger = logging.getLogger("shove_actors.jetstream")

#: How long a closing connection may take to flush and say goodbye; a dead server must not hold
#: the application's exit.
CLOSE_BUDGET = 2.0


class Connection:
    """A NATS connection. `run` it in a task; everything else may be called from any Trio task.

    `run` may be called again after it failed (a supervisor restarts it): subscriptions survive.
    """

    def __init__(self, config: NatsConfig, *, rng: random.Random | None = None) -> None:
        self._config = config
        self._rng = rng if rng is not None else random.Random()
        self._egress = Egress()
        self._replies = Replies(b"_INBOX." + secrets.token_hex(11).encode())
        self._subscriptions = Subscriptions(partial(self._emit, "error"))
        self._listeners = Listeners(config)
        self._loop: trio_asyncio.TrioEventLoop | None = None
        self._dialer: Dialer | None = None
        self._link: Link | None = None
        self._server: ServerAddress | None = None
        self._state = Availability(self._text)
        self._facts = ServerFacts()
        self._read_pause_s = PAUSE_S
        #: Around whatever `run` waits for between two sessions, or during one.
        self._pause = trio.CancelScope()
        self._opened = False
        self.reconnects = 0
        self.subscribe(self._replies.subject, self._replies.deliver)

    def __repr__(self) -> str:
        where = self._server.redacted if self._server is not None else "not connected"
        return f"<Connection {where}{'' if self.connected else ' (down)'}>"

    # ----------------------------------------------------------------- state

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def server(self) -> str:
        """Redacted address of the current or last server."""
        return self._server.redacted if self._server is not None else ""

    @property
    def server_version(self) -> str:
        return self._facts.version

    @property
    def read_floor(self) -> float:
        """Nothing that is read now was sent before this moment of Trio's clock."""
        link = self._link
        return trio.current_time() if link is None else link.client.wire.floor.floor

    def watch_reads(self, pause_s: float) -> None:
        """`read_floor` may be wrong by at most `pause_s` seconds from now on. Only ever less."""
        self._read_pause_s = min(self._read_pause_s, pause_s)
        if self._link is not None:
            self._link.client.wire.floor.pause_s = self._read_pause_s

    def probe_reads(self) -> None:
        """Have `read_floor` move on although nothing is being read: a PING, and its PONG."""
        if self._link is not None:
            self._link.client.wire.floor.probe.set()

    @property
    def server_id(self) -> str:
        """Names one server *process*: a restarted server has another one."""
        return self._facts.server_id

    @property
    def max_payload(self) -> int:
        """In bytes; the servers' default until one has told its own."""
        return self._facts.max_payload

    def listen(self, listener: Listener) -> None:
        """Call `listener(event)` for every event. One that raises is logged and removed."""
        self._listeners.add(listener)

    async def wait_connected(self) -> None:
        """Return once connected; raise why not, once that is final."""
        await self._state.wait_up()

    # ----------------------------------------------------------------- writing

    def write(self, data: bytes) -> bool:
        """Queue protocol bytes. False (and nothing queued) when there is no connection."""
        if self._link is None:
            return False
        self._egress.write(data)
        return True

    def write_by(self, data: bytes, deadline: float) -> bool:
        """`write`, for what must not leave after `deadline` (Trio time).

        If this process stood still in between, the session is given up with all that waits in it.
        """
        if self._link is None:
            return False
        self._egress.write_by(data, deadline)
        return True

    def write_through(self, data: bytes) -> bool:
        """`write`, and out at once: for what is a batch already, or what a peer waits for."""
        if self._link is None:
            return False
        self._egress.write_through(data)
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
        sid = self._subscriptions.add(subject, sink)
        self.write(sub(subject, sid))
        return sid

    async def unsubscribe(self, sid: int) -> None:
        """End interest. What the server had sent before still reaches the sink, then nothing."""
        if sid not in self._subscriptions:
            return
        try:
            if self.write(unsub(sid)):
                with trio.move_on_after(CLOSE_BUDGET, shield=True):
                    try:
                        await self.flush(CLOSE_BUDGET)
                    except UnavailableError:
                        # Without a connection the interest has ended anyway.
                        pass
        finally:
            self._subscriptions.remove(sid)

    def move_subscription(self, sid: int, subject: bytes) -> None:
        """Another subject for the same sink, from the next connect on. Only while disconnected."""
        self._subscriptions.move(sid, subject)

    def redirect(self, sid: int, sink: Sink) -> None:
        """Another sink for the same subscription, from the next message on."""
        self._subscriptions.redirect(sid, sink)

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
        check_subject(subject)
        limit = self._config.request_timeout if timeout is None else timeout
        with trio.move_on_after(limit):
            await self.wait_connected()
            wire_subject = subject.encode()
            return await ask(
                self._replies,
                lambda reply_to: self.publish(wire_subject, payload, reply_to, header_block),
            )
        raise RequestTimeout(
            f"no answer to {subject} within {limit:g} s from {self.server or 'any server'}"
        )

    async def flush(self, timeout: float = 5.0) -> None:
        """Return when the server has read everything written so far (PING/PONG).

        Raises `NotConnected` without a connection, `ConnectionError` when it is lost meanwhile,
        `RequestTimeout`. Cancelling it leaves no trace.
        """
        link = self._link
        if link is None:
            raise NotConnected("not connected")
        self._egress.flush_now()
        lost = False
        with trio.move_on_after(timeout):
            if await link.ping():
                return
            lost = True
        if lost or self._link is not link:
            raise ConnectionError(f"the connection to {link.server.redacted} was lost")
        raise RequestTimeout(f"no PONG within {timeout:g} s from {link.server.redacted}")

    def drop_session(self, reason: str) -> None:
        """Treat the current session as lost (it does not answer); the policy opens the next."""
        if self._link is not None:
            self._link.client.fail(ConnectionError(reason))

    # ----------------------------------------------------------------- life

    def close(self) -> None:
        """Ask `run` to flush and end. Returns at once."""
        self._state.closing = True
        self._pause.cancel()

    async def wait_ended(self) -> None:
        """Until `run` has returned or failed."""
        await self._state.wait_over()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connect, report started, keep the connection until `close`.

        Raises `ConfigError` for a bad configuration, `ConnectionError` (or its subclasses) when
        the first connect fails or the policy gives up, `BrokerClosed` when it was closed before it
        was connected, `UsageError` under a mock clock. Cancelled, it says goodbye for at most two
        seconds.
        """
        refuse_mock_clock("a NATS connection")
        self._state.begin()
        self._pause = trio.CancelScope()
        self._server = None
        ended: Exception = BrokerClosed("the connection is closed")
        error: Exception | None = None
        try:
            with unwrapped(layers=4):
                await self._live(task_status)
        except Exception as exc:
            ended = error = exc
            raise
        finally:
            if self._link is not None:
                self._detach(self._link, "was closed")
            self._loop = self._dialer = None
            self._state.end(ended)
            if self._opened:
                self._opened = False
                self._emit("closed", error)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        resolved = await trio.to_thread.run_sync(self._config.validate)
        async with trio_asyncio.open_loop() as loop, trio.open_nursery() as nursery:
            loop.set_exception_handler(self._asyncio_failure)
            self._loop = loop
            self._dialer = dialer = self._new_dialer(resolved, loop)
            nursery.start_soon(self._egress.run)
            link = await self._unless_closed(dialer.first)
            if link is None:
                raise BrokerClosed("the connection was closed before it was connected")
            self._opened = True
            self._attach(link)
            self._emit("connected")
            task_status.started()
            while await self._serve(link):
                cause = self._lost(link)
                link = await self._unless_closed(partial(dialer.again, link.server, cause))
                if link is None:
                    break
                self.reconnects += 1
                self._attach(link)
                self._emit("reconnected")
            nursery.cancel_scope.cancel()

    async def _unless_closed(self, dial: Callable[[], Awaitable[Link]]) -> Link | None:
        """`dial()`, given up at once when asked to close."""
        with trio.CancelScope() as self._pause:
            if not self._state.closing:
                return await dial()
            await trio.lowlevel.checkpoint()
        return None

    async def _serve(self, link: Link) -> bool:
        """Until the session ends. True: it was lost; False: we were asked to close."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_plain, link.client.wire)
                nursery.start_soon(self._probe, link)
                with trio.CancelScope() as self._pause:
                    if self._state.closing:
                        self._pause.cancel()
                    await link.ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            if not link.ended.is_set():
                await self._say_goodbye(link)
        return not self._state.closing

    async def _probe(self, link: Link) -> None:
        """After every pause in what is read: is what comes now fresh? See `_read_floor.py`."""
        floor = link.client.wire.floor
        while True:
            await floor.probe.wait()
            sent_at = trio.current_time()
            self._egress.flush_now()
            await link.ping()
            if link.ended.is_set():
                return
            floor.answered(sent_at)

    async def _say_goodbye(self, link: Link) -> None:
        """Closed or cancelled: let the server read what was written, then leave."""
        try:
            with trio.move_on_after(CLOSE_BUDGET, shield=True):
                self._egress.flush_now()
                await link.ping()
        finally:
            self._detach(link, "was closed")
            with trio.move_on_after(CLOSE_BUDGET, shield=True):
                await link.close()

    def _attach(self, link: Link) -> None:
        """A session is up: replay the subscriptions, let everybody write."""
        self._link = link
        self._server = link.server
        self._facts.replace(link.client.info)
        self._learn_servers()
        wire = link.client.wire
        wire.floor.pause_s = self._read_pause_s
        self._egress.attach(wire.write, lambda: wire.unsent, link.drained, self._overslept)
        self._egress.write(self._subscriptions.replay())
        self._egress.flush_now()
        self._state.up()

    def _overslept(self) -> None:
        self.drop_session("this process stood still with something to say that is void by now")

    def _detach(self, link: Link, what: str) -> None:
        self._link = None
        self._state.down()
        self._egress.detach()
        self._replies.fail_all(ConnectionError(f"the connection to {link.server.redacted} {what}"))

    def _lost(self, link: Link) -> ConnectionError | None:
        """Announce it; returns the cause."""
        raw = link.client.cause
        cause = ConnectionError(self._text(raw)) if raw is not None else None
        self._detach(link, f"was lost{f': {cause}' if cause is not None else ''}")
        self._emit("disconnected", cause)
        return cause

    def _new_dialer(self, resolved: Resolved, loop: trio_asyncio.TrioEventLoop) -> Dialer:
        def failed(server: ServerAddress, error: ConnectionError) -> None:
            self._server = server
            self._emit("error", error)

        return Dialer(
            resolved,
            loop,
            DialerEvents(
                on_message=self._subscriptions.deliver,
                on_notice=self._on_notice,
                on_info=self._on_info,
                on_failure=failed,
            ),
            self._text,
            self._rng,
        )

    def _learn_servers(self) -> None:
        if self._dialer is not None and self._server is not None:
            for _ in self._dialer.learn(self._facts.members, self._server):
                self._emit("discovered")

    # ----------------------------------------------------------------- callbacks

    def _on_notice(self, exc: Exception) -> None:
        self._emit("error", ConnectionError(self._text(exc)))

    def _on_info(self, info: dict[str, object]) -> None:
        if self._link is None:
            return  # `_attach` reads all of it
        self._facts.update(info)
        self._learn_servers()
        if info.get("ldm"):
            self._emit("lame_duck")

    def _asyncio_failure(self, loop: object, context: dict[str, object]) -> None:
        """asyncio's exception handler: a failed session, never a crash of the application."""
        exc = context.get("exception")
        text = self._text(exc) if isinstance(exc, BaseException) else str(context.get("message"))
        text = self._config.redact(text)
        logger.warning("asyncio reported a failure in the NATS client: %s", text)
        error = ConnectionError(f"failure inside the NATS client: {text}")
        if self._link is not None:
            self._link.client.fail(error)
        else:
            self._emit("error", error)

    def _text(self, exc: BaseException) -> str:
        text = self._config.redact(str(exc)) or type(exc).__name__
        return text.removeprefix("nats: ")

    def _emit(self, kind: ConnectionEventKind, error: Exception | None = None) -> None:
        self._listeners.tell(ConnectionEvent(kind=kind, server=self.server, error=error))
