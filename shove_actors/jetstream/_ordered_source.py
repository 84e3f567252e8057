"""Continuous ordered reading: one pull reading after another, joined without a gap.

Whenever something may have been lost (a gap in the consumer's own numbers, a missed heartbeat, a
consumer that is gone, a reconnect) the present reading is dropped with all that it has buffered,
and a task makes the next consumer, which starts behind the last message that was *handed over*. So
nothing depends on what the dropped reading had: the reader sees each message once, in order.

Which reading counts is `_puller`: None while there is none. Readers that were parked in the old one
wake with its end, see that it is not the one that counts, and go on to the next.
Tests: `test_c22_*`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import trio

from shove_actors._errors import (
    ApiError,
    BadRequest,
    ConnectionClosed,
    IteratorClosed,
    JetStreamError,
    NoHeartbeat,
    NoResponders,
    NotPullConsumer,
    PermissionDenied,
    RequestLimitExceeded,
    ShoveError,
    StreamNotFound,
    UnavailableError,
)

from ._events import ConnectionEvent
from ._message import Message
from ._ordered_state import OrderedState
from ._pull_options import PullOptions
from ._puller import Puller
from ._source import NOTICES_KEPT, OnError, check_on_error

#: Pauses between attempts to make the next consumer.
RETRY_FIRST_S, RETRY_MOST_S = 0.25, 10.0
#: What no other consumer would change.
_FINAL = (ConnectionClosed, PermissionDenied, NotPullConsumer, RequestLimitExceeded, BadRequest)


class OrderedSource:
    """See `_source.Source`. `state` outlives it: the next reading goes on where this one ended."""

    def __init__(
        self, state: OrderedState, options: PullOptions, *, on_error: OnError | None
    ) -> None:
        self.name = f"ordered consumer of stream {state.stream}"
        self._state = state
        self._conn = state.js.connection
        self._options = options
        self._on_error = check_on_error(on_error)
        self._puller: Puller | None = None
        #: The one that the last message came from.
        self._giver: Puller | None = None
        self._lot = trio.lowlevel.ParkingLot()
        self._ended: Exception | None = None
        self._need = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._taken = 0
        self._pulls = 0
        self._notices: deque[Exception] = deque(maxlen=NOTICES_KEPT)

    # ------------------------------------------------------------------ life

    async def ready(self) -> None:
        """Make the first consumer, unless there is one that nobody has read."""
        await self._conn.wait_connected()
        if not self._state.fresh:
            old = self._state.name
            await self._state.create()
            await self._state.delete(old)

    def start(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._conn.listen(self._on_event)
        nursery.start_soon(self._keep)

    def open(self) -> None:
        self._begin()

    def stop(self) -> None:
        self._finish(IteratorClosed("the reading of these messages was stopped"))
        self._retire()

    async def drain(self) -> None:
        puller = self._puller
        if puller is not None:
            await puller.drain()
        await trio.lowlevel.checkpoint_if_cancelled()
        if puller is None or puller is not self._puller:
            self._finish(trio.EndOfChannel())

    async def close(self) -> None:
        self.stop()
        self._conn.unlisten(self._on_event)
        await trio.lowlevel.checkpoint_if_cancelled()

    def _begin(self) -> None:
        """A reading of the present consumer."""
        assert self._nursery is not None
        state, options = self._state, self._options
        state.fresh = False
        if options.stop_after is not None:
            options = replace(options, stop_after=max(1, options.stop_after - self._taken))
        puller = Puller(
            self._conn,
            state.next_subject,
            options,
            name=state.label,
            look_up=_nothing,
            pins={},
            on_error=self.tell,
            on_end=lambda error: self._on_end(puller, error),
        )
        self._puller = puller
        puller.start(self._nursery)
        puller.open()
        self._lot.unpark_all()

    def _retire(self) -> None:
        """The present reading counts no more."""
        puller, self._puller = self._puller, None
        if puller is not None:
            self._pulls += puller.pulls
            puller.stop()
            self._conn.unlisten(puller.on_event)

    def _reset(self) -> None:
        if self._puller is not None and self._ended is None:
            self._retire()
            self._need.set()

    def _finish(self, error: Exception) -> None:
        if self._ended is None or isinstance(error, IteratorClosed):
            self._ended = error
            self._lot.unpark_all()

    async def _keep(self) -> None:
        """Makes the next consumer whenever one is needed."""
        while True:
            await self._need.wait()
            self._need = trio.Event()
            old = self._state.name
            if await self._replace() and self._ended is None:
                self._begin()
                assert self._nursery is not None
                self._nursery.start_soon(self._state.delete, old)

    async def _replace(self) -> bool:
        pause, attempts = RETRY_FIRST_S, 0
        while self._ended is None:
            try:
                await self._conn.wait_connected()
                await self._state.create()
                return True
            except ShoveError as exc:
                attempts += 1
                most = self._state.max_reset_attempts
                if not _may_pass(exc) or (most is not None and attempts >= most):
                    self.tell(exc, final=True)
                    return False
                self.tell(exc)
            await trio.sleep(pause)
            pause = min(2 * pause, RETRY_MOST_S)
        return False

    # ------------------------------------------------------------------ reading

    async def receive(self) -> Message:
        while True:
            self._check_taken()
            puller = self._puller
            if puller is None:
                self._raise_ended()
                await self._lot.park()
                continue
            try:
                message = await puller.receive()
            except (trio.EndOfChannel, IteratorClosed):
                if puller is self._puller:
                    raise
                await trio.lowlevel.checkpoint_if_cancelled()
                continue
            if self._take(puller, message):
                return message

    def receive_nowait(self) -> Message:
        while True:
            self._check_taken()
            puller = self._puller
            if puller is None:
                self._raise_ended()
                raise trio.WouldBlock
            message = puller.receive_nowait()
            if self._take(puller, message):
                return message

    def _take(self, puller: Puller, message: Message) -> bool:
        """Between the buffer and the reader: nobody else runs."""
        if puller is self._puller and self._state.accept(message):
            self._giver = puller
            self._taken += 1
            return True
        self._reset()
        return False

    def _check_taken(self) -> None:
        most = self._options.stop_after
        if most is not None and self._taken >= most:
            raise trio.EndOfChannel

    def _raise_ended(self) -> None:
        if self._ended is not None:
            raise self._ended.with_traceback(None)

    def done(self, message: Message) -> None:
        # With a callback, the reading it came from may have been replaced while it was handled.
        if self._giver is not None and self._giver is self._puller:
            self._giver.done(message)

    # ------------------------------------------------------------------ trouble

    def tell(self, error: Exception, *, final: bool = False) -> None:
        """A notice, or (`final`) the end."""
        if not final:
            self._notices.append(error)
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception as exc:
                error, final = exc, True
        if final:
            self._finish(error)
            self._retire()
        elif isinstance(error, (NoHeartbeat, NoResponders)):
            self._reset()

    def _on_end(self, puller: Puller, error: Exception) -> bool:
        if puller is not self._puller:
            return True
        if isinstance(error, _FINAL):
            self.tell(error, final=True)
        else:
            self.tell(error)
            self._reset()
        return True

    def _on_event(self, event: ConnectionEvent) -> None:
        if event.kind == "reconnected":
            self._reset()
        elif event.kind == "closed" and self._puller is None:
            cause = f": {event.error}" if event.error is not None else ""
            self.tell(ConnectionClosed(f"the connection was closed{cause}"), final=True)

    @property
    def recent(self) -> tuple[Exception, ...]:
        return tuple(self._notices)

    @property
    def buffered(self) -> int:
        return self._puller.buffered if self._puller is not None else 0

    @property
    def pending(self) -> int:
        return self._puller.pending if self._puller is not None else 0

    @property
    def pulls(self) -> int:
        return self._pulls + (self._puller.pulls if self._puller is not None else 0)


async def _nothing() -> Exception | None:
    """The consumer is replaced, not looked for."""
    await trio.lowlevel.checkpoint()
    return None


def _may_pass(error: ShoveError) -> bool:
    if isinstance(error, StreamNotFound):
        return False
    if isinstance(error, ApiError):
        return error.code >= 500 or error.code == 429
    return isinstance(error, (UnavailableError, JetStreamError))
