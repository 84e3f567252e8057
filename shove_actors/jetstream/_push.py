"""Push consumers: the server sends to a subject, and whoever subscribes to it reads.

With a `deliver_group` all readers of the consumer share its messages. Flow control is answered
where it belongs in the order of arrival: when a reader comes to the server's question, everything
before it has been taken. A heartbeat that says "stalled" is answered at once, unless such a
question waits here already.

Two missed heartbeats are no loss by themselves; but a deleted consumer says nothing, so the server
is asked whether it still exists. Without heartbeats silence means nothing either, so it is asked
after `QUIET_S` of it, and again after as much more: one small request, and only while a reader
waits. (The advisory of the deletion would be quicker, but whoever may not subscribe to
`$JS.EVENT.>`, or uses another account's stream, does not get it.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

from shove_actors._errors import (
    AlreadyConsuming,
    ConnectionClosed,
    ConsumerDeleted,
    ConsumerNotFound,
    IteratorClosed,
    NoHeartbeat,
    NotPushConsumer,
    PermissionDenied,
    ShoveError,
    StreamNotFound,
)

from ._block import Block
from ._connection import Connection
from ._consume import Consuming, Handler, check_handler, consuming
from ._consumer_handle import AGAIN_S, ConsumerHandle
from ._consumer_info import ConsumerInfo
from ._events import ConnectionEvent
from ._inlet import Inlet
from ._message import Message
from ._messages import MessageIterator, reading
from ._options import check_flag
from ._pull_ledger import NEVER
from ._source import NOTICES_KEPT, OnError, check_on_error
from ._wire import header_value, pub, status_of

if TYPE_CHECKING:
    from ._context import JetStream

#: How long a consumer without heartbeats may be silent before the server is asked about it.
QUIET_S = 10.0

_Reading = TypeVar("_Reading")


class PushReader(Inlet[Message | bytes]):
    """One reading. The buffer holds messages, and the subjects of flow control questions."""

    def __init__(
        self,
        conn: Connection,
        info: ConsumerInfo,
        *,
        name: str,
        look_up: Callable[[], Awaitable[Exception | None]],
        on_error: OnError | None,
        nak_on_stop: bool,
    ) -> None:
        super().__init__()
        self.name = name
        self._conn = conn
        self._subject = (info.config.deliver_subject or "").encode()
        self._queue = (info.config.deliver_group or "").encode()
        beats = info.config.idle_heartbeat
        self._has_beats = bool(beats)
        self._patience_s = 2 * beats if beats else QUIET_S
        self._look_up = look_up
        self._on_error = check_on_error(on_error)
        self._nak_on_stop = nak_on_stop
        self._notices: deque[Exception] = deque(maxlen=NOTICES_KEPT)
        self._questions = 0
        self._heard = 0.0
        self._sid = 0
        self._nursery: trio.Nursery | None = None
        self._stopped = False
        self._looking = False

    # ------------------------------------------------------------------ life

    async def ready(self) -> None:
        await self._conn.wait_connected()

    def start(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._conn.listen(self._on_event)

    def open(self) -> None:
        assert self._nursery is not None
        self._heard = trio.current_time()
        self._sid = self._conn.subscribe(self._subject, self._on_message, self._queue)
        self._nursery.start_soon(self._keep)

    def stop(self) -> None:
        if self._halt() and self._sid and self._nursery is not None:
            self._nursery.start_soon(self._conn.unsubscribe, self._sid)

    def _halt(self) -> bool:
        if self._stopped:
            return False
        self._stopped = True
        if self._nak_on_stop:
            for item in self._items:
                if isinstance(item, Message):
                    self._conn.write(pub(item.raw_reply, b"", b"-NAK"))
        self._items.clear()
        self.finish(IteratorClosed("the reading of these messages was stopped"))
        return True

    async def drain(self) -> None:
        await self._conn.unsubscribe(self._sid)
        await trio.lowlevel.checkpoint_if_cancelled()
        self.finish(trio.EndOfChannel())

    async def close(self) -> None:
        self._halt()
        self._conn.unlisten(self._on_event)
        await self._conn.unsubscribe(self._sid)

    @property
    def recent(self) -> tuple[Exception, ...]:
        return tuple(self._notices)

    @property
    def buffered(self) -> int:
        return len(self._items) - self._questions

    @property
    def pending(self) -> int:
        return self.buffered

    @property
    def pulls(self) -> int:
        return 0

    # ------------------------------------------------------------------ reading

    async def receive(self) -> Message:
        while True:
            item = await self.take()
            if isinstance(item, Message):
                return item
            self._answer(item)

    def receive_nowait(self) -> Message:
        while True:
            item = self.take_nowait()
            if isinstance(item, Message):
                return item
            self._answer(item)

    def done(self, message: Message) -> None:
        """Nothing is counted: the server decides how much it sends."""

    def _answer(self, subject: bytes) -> None:
        self._questions -= 1
        self._conn.write(pub(subject, b"", b""))

    # ------------------------------------------------------------------ arrivals

    def _on_message(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        self._heard = trio.current_time()
        if not payload and header_block is not None:
            status = status_of(header_block)
            if status is not None:
                self._on_status(status[0], reply, header_block)
                return
        if not self._stopped:
            self.put(Message(self._conn, subject, reply, header_block, payload))
        elif self._nak_on_stop:
            self._conn.write(pub(reply, b"", b"-NAK"))

    def _on_status(self, code: int, reply: bytes, header_block: bytes) -> None:
        if code != 100 or self._stopped:
            return
        if reply:
            self._questions += 1
            self.put(reply)
            return
        stalled = header_value(header_block, b"Nats-Consumer-Stalled")
        if stalled and not self._questions:
            self._conn.write(pub(stalled, b"", b""))

    # ------------------------------------------------------------------ trouble

    def tell(self, error: Exception) -> None:
        self._notices.append(error)
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception as exc:
                self.finish(exc)

    def _end(self, error: Exception) -> None:
        if self._ended is None:
            if self._on_error is not None:
                try:
                    self._on_error(error)
                except Exception as exc:
                    error = exc
            self.finish(error)

    def _on_event(self, event: ConnectionEvent) -> None:
        if event.kind == "reconnected":
            # Whether it is still there only the server knows, and it sends nothing if not.
            self._heard = trio.current_time()
            self._begin_look()
        elif event.kind == "closed":
            cause = f": {event.error}" if event.error is not None else ""
            self._end(ConnectionClosed(f"the connection was closed{cause}"))
        elif event.kind == "error" and isinstance(event.error, PermissionDenied):
            denied = event.error
            if denied.operation == "subscribe" and denied.subject == self._subject.decode():
                self._end(
                    PermissionDenied(str(denied), subject=denied.subject, operation="subscribe")
                )

    def wait_begins(self, now: float) -> None:
        self._heard = max(self._heard, now)

    async def _keep(self) -> None:
        """Silence is judged only while a reader waits for it to end."""
        while True:
            await trio.sleep_until(max(self._heard + self._patience_s, trio.current_time() + 0.01))
            silent = trio.current_time() - self._heard >= self._patience_s
            if silent and self._waiters and self._conn.connected and self._ended is None:
                self._heard = trio.current_time()
                if self._has_beats:
                    self.tell(
                        NoHeartbeat(f"nothing was heard of {self.name} for {self._patience_s:g} s")
                    )
                self._begin_look()
            elif silent:
                self._heard = trio.current_time()

    def _begin_look(self) -> None:
        if self._nursery is not None and not self._looking and not self._stopped:
            self._looking = True
            self._nursery.start_soon(self._look)

    async def _look(self) -> None:
        try:
            error = await self._look_up()
        finally:
            self._looking = False
        if isinstance(error, (ConsumerDeleted, NotPushConsumer)):
            self._end(error)
        elif isinstance(error, PermissionDenied) and not self._has_beats:
            self._patience_s = NEVER  # it would be refused each time, and reported


class PushConsumer(ConsumerHandle):
    """One push consumer. Made by `create_push_consumer`, `push_consumer`, never by hand.

    Read it with `consume` or `messages`, one at a time for one handle. Members of a
    `deliver_group` open a handle each.
    """

    def __init__(self, js: JetStream, info: ConsumerInfo) -> None:
        super().__init__(js, info)
        self._busy = False

    def consume(
        self, handler: Handler, *, on_error: OnError | None = None, nak_on_stop: bool = False
    ) -> AbstractAsyncContextManager[Consuming]:
        """Call `await handler(message)` for one message at a time, in order.

        As `Consumer.consume`. Raises `AlreadyConsuming`. `ConsumerDeleted` ends the loop: noticed
        after two intervals of `idle_heartbeat`, without one after ten seconds of silence.
        """
        check_handler(handler)
        reader = self._reader(on_error, nak_on_stop)
        return self._alone(consuming(reader, handler))

    def messages(
        self, *, on_error: OnError | None = None, nak_on_stop: bool = False
    ) -> AbstractAsyncContextManager[MessageIterator]:
        """The same as an iterator. See `Consumer.messages`.

        What is not read waits here without a limit, unless the consumer has `flow_control` or
        `max_ack_pending`.
        """
        return self._alone(reading(self._reader(on_error, nak_on_stop), eager=True))

    def _alone(self, reading: Block[_Reading]) -> Block[_Reading]:
        return reading.within(self._one_at_a_time)

    @asynccontextmanager
    async def _one_at_a_time(self, reading: Block[_Reading]) -> AsyncIterator[_Reading]:
        if self._busy:
            raise AlreadyConsuming(f"{self._label} is being read from this handle; open another")
        self._busy = True
        try:
            async with reading as found:
                yield found
        finally:
            self._busy = False

    def _reader(self, on_error: OnError | None, nak_on_stop: bool) -> PushReader:
        return PushReader(
            self._js.connection,
            self._info,
            name=self._label,
            look_up=self._look_up,
            on_error=on_error,
            nak_on_stop=check_flag("nak_on_stop", nak_on_stop),
        )

    async def _look_up(self) -> Exception | None:
        try:
            try:
                info = await self.info()
            except (ConsumerNotFound, StreamNotFound):
                await trio.sleep(AGAIN_S)
                info = await self.info()
        except (ConsumerNotFound, StreamNotFound):
            return ConsumerDeleted(f"{self._label} was deleted")
        except ShoveError as exc:
            return exc
        if not info.config.deliver_subject:
            return NotPushConsumer(f"{self._label} is a pull consumer")
        return None
