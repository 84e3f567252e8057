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

What is said and heard while a session is up is `_traffic.py`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

import trio
import trio_asyncio

from shove_actors._errors import (
    BrokerClosed,
    ConnectionError,
    FeatureUnavailable,
    PermissionDenied,
)
from shove_actors._groups import unwrapped
from shove_actors._log import about
from shove_actors._real_clock import refuse_mock_clock

from ._config import NatsConfig, Resolved, ServerAddress
from ._dialer import Dialer, DialerEvents
from ._event_stream import EventStream
from ._events import ConnectionEvent, ConnectionEventKind
from ._link import Link
from ._listeners import Listener, Listeners
from ._options import check_callback, check_seconds
from ._read_floor import PAUSE_S
from ._reader import read_plain
from ._server_facts import ServerFacts
from ._traffic import Traffic

logger = logging.getLogger("shove_actors.jetstream")

#: How long a closing connection may take to flush and say goodbye; a dead server must not hold
#: the application's exit.
CLOSE_BUDGET = 2.0


class Connection(Traffic):
    """A NATS connection. `run` it in a task; everything else may be called from any Trio task.

    `run` may be called again after it failed (a supervisor restarts it): subscriptions survive.
    """

    def __init__(self, config: NatsConfig, *, rng: random.Random | None = None) -> None:
        super().__init__(config, partial(self._emit, "error"), self._text)
        self._rng = rng if rng is not None else random.Random()
        self._listeners = Listeners(config)
        self._loop: trio_asyncio.TrioEventLoop | None = None
        self._dialer: Dialer | None = None
        self._facts = ServerFacts()
        self._read_pause_s = PAUSE_S
        #: Around whatever `run` waits for between two sessions, or during one.
        self._pause = trio.CancelScope()
        self._opened = False
        self._last_error: Exception | None = None
        self.reconnects = 0

    def __repr__(self) -> str:
        where = self._server.redacted if self._server is not None else "not connected"
        return f"<Connection {where}{'' if self.connected else ' (down)'}>"

    # ----------------------------------------------------------------- state

    @property
    def server_version(self) -> str:
        return self._facts.version

    def needs(self, release: tuple[int, int], what: str) -> None:
        """Raises `FeatureUnavailable` when the server is older; one that tells no version passes.

        For what an older server does not refuse, but does wrongly.
        """
        has = self._facts.release
        if has is not None and has < release:
            raise FeatureUnavailable(
                f"{what} needs nats-server {release[0]}.{release[1]}; {self.server} is "
                f"{self._facts.version}, so nothing was sent"
            )

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
        check_callback("listener", listener)
        self._listeners.add(listener)

    def unlisten(self, listener: Listener) -> None:
        """Call it no more. Nothing happens when it is not listening."""
        self._listeners.remove(listener)

    def events(self) -> EventStream:
        """The events from now on, as an async context manager that is iterated over."""
        return EventStream(self)

    @property
    def known_servers(self) -> list[str]:
        """Redacted addresses of all servers that may be tried, those announced by the cluster too.

        Empty while `run` does not run.
        """
        return [] if self._dialer is None else [s.redacted for s in self._dialer.pool.known]

    @property
    def last_error(self) -> Exception | None:
        """The newest error that an event has told of, with redacted text."""
        return self._last_error

    async def drain(self, timeout: float = 30.0) -> None:
        """End every subscription, let what the server has sent reach its sink, then close.

        Returns when the connection has ended, after `timeout` seconds at the latest. Consumers and
        watchers have buffers of their own: drain those first.
        """
        check_seconds("timeout", timeout)
        with trio.move_on_after(timeout):
            await self._end_subscriptions()
        self.close()
        await self.wait_ended()

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
            link = await self._first(dialer, resolved.retry_first_connect, task_status)
            if link is None:
                raise BrokerClosed("the connection was closed before it was connected")
            self._opened = True
            self._attach(link)
            self._emit("connected")
            if not resolved.retry_first_connect:
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

    async def _first(
        self, dialer: Dialer, retry: bool, task_status: trio.TaskStatus[None]
    ) -> Link | None:
        if not retry:
            return await self._unless_closed(dialer.first)
        # From here on it is an outage like any other, so `closed` is announced at its end, too.
        self._opened = True
        task_status.started()
        try:
            return await self._unless_closed(dialer.first)
        except ConnectionError as exc:
            server = dialer.pool.known[-1]
            self._server = server
            self._emit("error", exc)
            return await self._unless_closed(partial(dialer.again, server, exc))

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
        self._replies.denied = None
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
        if not isinstance(exc, PermissionDenied):
            self._emit("error", ConnectionError(self._text(exc)))
            return
        redact = self._config.redact
        denied = PermissionDenied(
            redact(str(exc)), subject=redact(exc.subject), operation=exc.operation
        )
        self._tell_denied(denied)
        self._emit("error", denied)

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
        logger.warning(
            "asyncio reported a failure in the NATS client: %s",
            text,
            extra=about("client_failed"),
        )
        error = ConnectionError(f"failure inside the NATS client: {text}")
        if self._link is not None:
            self._link.client.fail(error)
        else:
            self._emit("error", error)

    def _text(self, exc: BaseException) -> str:
        text = self._config.redact(str(exc)) or type(exc).__name__
        return text.removeprefix("nats: ")

    def _emit(self, kind: ConnectionEventKind, error: Exception | None = None) -> None:
        if error is not None:
            self._last_error = error
        self._listeners.tell(ConnectionEvent(kind=kind, server=self.server, error=error))
