"""One-off reads: one request, one inbox, and an end.

A batch needs no task: what comes is put into it by the socket's callback, and its reader keeps the
two times (how long to wait at all, and how long silence may last) while it waits. An inbox whose
request is over is used again (`_inbox_pool.py`); any other ends with the block, so whatever the
server still has for it goes to nobody else's account.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import trio

from shove_actors._errors import (
    ConnectionClosed,
    ConnectionError,
    InvalidOption,
    IteratorClosed,
    NoHeartbeat,
    RequestTimeout,
    ShoveError,
    UsageError,
)

from ._connection import Connection
from ._events import ConnectionEvent
from ._fetch_errors import error_of
from ._message import Message
from ._options import check_count, check_seconds
from ._pull_ledger import NEVER, NS
from ._pull_options import MANY, GroupOptions
from ._pull_status import Verdict, verdict_of
from ._wire import header_value, pub, status_of

MAX_WAIT_S = 30.0
HEARTBEAT_S = 5.0
#: With a shorter wait no heartbeats are asked for, unless the caller wants them.
HEARTBEAT_FROM_S = 10.0
#: How long the answer to "what is there now" may take, and then the one to "are you there".
NO_WAIT_S = 3.0
NO_WAIT_PROOF_S = 2.0
#: The server's word that the time is over may be late by this much.
GRACE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """One request, checked."""

    batch: int
    max_bytes: int | None
    max_wait: float | None
    heartbeat: float | None
    groups: GroupOptions


def fetch_options(
    count: int | None = None,
    *,
    max_bytes: int | None = None,
    max_wait: float = MAX_WAIT_S,
    heartbeat: float | None = None,
    groups: GroupOptions | None = None,
) -> FetchOptions:
    """Raises `InvalidOption`."""
    if (count is None) == (max_bytes is None):
        raise InvalidOption("give either a count or max_bytes")
    if count is not None:
        check_count("count", count)
    if max_bytes is not None:
        check_count("max_bytes", max_bytes)
    check_seconds("max_wait", max_wait)
    if heartbeat is None:
        beat = HEARTBEAT_S if max_wait >= HEARTBEAT_FROM_S else None
    else:
        beat = check_seconds("heartbeat", heartbeat)
        if 2 * beat > max_wait:
            raise InvalidOption(
                f"heartbeat is {beat:g} s; it must be at most half of max_wait ({max_wait:g} s)"
            )
    return FetchOptions(
        batch=count if count is not None else MANY,
        max_bytes=max_bytes,
        max_wait=max_wait,
        heartbeat=beat,
        groups=groups or GroupOptions(),
    )


def no_wait_options(count: int, *, groups: GroupOptions | None = None) -> FetchOptions:
    """Raises `InvalidOption`."""
    return FetchOptions(
        batch=check_count("count", count),
        max_bytes=None,
        max_wait=None,
        heartbeat=None,
        groups=groups or GroupOptions(),
    )


class FetchBatch:
    """The messages of one request, as they come. Made by `Consumer.fetch` and its like.

        async with consumer.fetch(10, max_wait=2.0) as batch:
            async for message in batch:
                await message.ack()
        if batch.error is not None:
            raise batch.error

    It ends with the last message asked for, when the time is over, or with `error`. A short or an
    empty batch is no error when the server said so. When it said nothing (until a second after the
    time, or for five seconds after `fetch_no_wait`), `error` is `RequestTimeout`: there may be
    messages. What was received before an error remains valid. Leaving the block early ends the
    request; what is not settled comes again after the consumer's `ack_wait`.
    """

    def __init__(
        self,
        conn: Connection,
        subject: bytes,
        options: FetchOptions,
        *,
        name: str,
        pins: dict[str, bytes],
        on_taken: Callable[[Message], object] | None = None,
    ) -> None:
        self._conn = conn
        self._subject = subject
        self._options = options
        self._name = name
        self._pins = pins
        self._on_taken = on_taken
        self._items: deque[Message] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._sid = 0
        self._inbox = self._reply_to = b""
        self._wanted = options.batch
        self._bytes_left = options.max_bytes
        self._end_by = NEVER
        self._heard = 0.0
        self._over = False
        self._closed = False
        #: What ended the batch, other than its last message or the time.
        self.error: Exception | None = None
        #: How many messages have come.
        self.received = 0

    def __repr__(self) -> str:
        return f"<FetchBatch of {self._name}, {self.received} received>"

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> FetchBatch:
        await self._conn.wait_connected()
        self._send()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the request. What was not read is dropped."""
        self._close()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._sid:
                if not self._over:
                    self._finish(None)
                self._conn.unlisten(self._on_event)
            self._items.clear()

    def _send(self) -> None:
        options, conn = self._options, self._conn
        now = trio.current_time()
        body = b'{"batch":%d' % options.batch
        if options.max_bytes is not None:
            body += b',"max_bytes":%d' % options.max_bytes
        body += options.groups.body()
        group = options.groups.group
        pin = self._pins.get(group) if group is not None else None
        if pin:
            body += b',"id":"%b"' % pin
        if options.max_wait is None:
            body += b',"no_wait":true}'
            self._end_by = NO_WAIT_S
        else:
            expiry = self._expiry(options.max_wait, trio.current_effective_deadline() - now)
            body += b',"expires":%d' % round(expiry * NS)
            beat = options.heartbeat
            if beat is not None and 2 * beat <= expiry:
                body += b',"idle_heartbeat":%d' % round(beat * NS)
            else:
                self._options = options = _without_heartbeat(options)
            body += b"}"
            self._end_by = expiry + GRACE_S
        self._heard = now
        conn.listen(self._on_event)
        self._reply_to, self._inbox, self._sid = conn.inboxes.take(self._on_message)
        # What waits to be written (acknowledgements of the batch before) leaves with it, at once.
        conn.write_through(pub(self._subject, self._reply_to, body))

    @staticmethod
    def _expiry(max_wait: float, left: float) -> float:
        """A nearer deadline of the caller's: the server's answer should come before it."""
        if left >= max_wait:
            return max_wait
        return max(left - min(left / 10, 1.0), 0.001)

    # ------------------------------------------------------------------ reading

    def __aiter__(self) -> FetchBatch:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except (trio.EndOfChannel, IteratorClosed):
            raise StopAsyncIteration from None

    async def receive(self) -> Message:
        """The next message. Raises `trio.EndOfChannel` when the batch is over (look at `error`),
        `IteratorClosed` outside the block. Cancelling it loses nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._items:
            if not self._reply_to:
                raise UsageError(
                    "a fetch is used as `async with consumer.fetch(...) as batch:`; the request "
                    "goes out when the block is entered"
                )
            if self._closed:
                raise IteratorClosed("this batch was closed")
            if self._over:
                raise trio.EndOfChannel
            await self._wait()
        return self._take()

    def receive_nowait(self) -> Message:
        """As `receive`, but raises `trio.WouldBlock` when none has come."""
        if not self._items:
            if self._closed:
                raise IteratorClosed("this batch was closed")
            if self._over:
                raise trio.EndOfChannel
            raise trio.WouldBlock
        return self._take()

    def _take(self) -> Message:
        message = self._items.popleft()
        if self._on_taken is not None:
            self._on_taken(message)
        return message

    async def _wait(self) -> None:
        """Until something has come, or a time is over."""
        beat = self._options.heartbeat
        began = trio.current_time()
        with trio.CancelScope() as scope:
            while not self._items and not self._over:
                # Silence counts from when somebody waits for its end.
                silent_at = max(self._heard, began) + 2 * beat if beat else NEVER
                scope.deadline = min(silent_at, self._over_at(began))
                if scope.deadline <= trio.current_time():
                    break
                await self._lot.park()
        if self._items or self._over:
            return
        now = trio.current_time()
        if beat and now >= max(self._heard, began) + 2 * beat:
            self._finish(NoHeartbeat(f"nothing was heard of {self._name} for {2 * beat:g} s"))
        elif now >= self._over_at(began):
            # "There is nothing" is the server's to say. It has not.
            if self._options.max_wait is None and (self.received or await self._held_back()):
                self._finish(None)
            elif not self._over and not self._items:
                self._finish(
                    RequestTimeout(
                        f"the server did not answer the request to {self._name} in time; whether "
                        "there are messages is unknown, ask again"
                    )
                )

    async def _held_back(self) -> bool:
        """At `max_ack_pending` the server says nothing to a request without a wait. Does it to
        another one?"""
        subject = self._subject.decode().replace(".CONSUMER.MSG.NEXT.", ".CONSUMER.INFO.", 1)
        try:
            await self._conn.request(subject, timeout=NO_WAIT_PROOF_S)
        except ShoveError:
            return False
        return True

    def _over_at(self, began: float) -> float:
        """When the server's last word is overdue. Whoever comes late, because it was busy without
        letting the connection read, looks at what has come meanwhile first."""
        return max(self._heard + self._end_by, began + GRACE_S)

    # ------------------------------------------------------------------ arrivals

    def _on_message(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        self._heard = trio.current_time()
        if not payload and header_block is not None:
            status = status_of(header_block)
            if status is not None:
                if subject == self._reply_to:
                    self._on_status(*status)
                return
        if self._closed:
            return
        message = Message(self._conn, subject, reply, header_block, payload)
        group = self._options.groups.group
        if group is not None and header_block is not None:
            pin = header_value(header_block, b"Nats-Pin-Id")
            if pin is not None:
                self._pins[group] = pin
        self._items.append(message)
        self.received += 1
        if self._bytes_left is not None:
            self._bytes_left -= message.size
        if self.received >= self._wanted:
            self._finish(None, clean=True)
        elif self._bytes_left is not None and self._bytes_left <= 0:
            self._finish(None)
        elif self._lot:
            self._lot.unpark()

    def _on_status(self, code: int, text: str) -> None:
        if self._over:
            return
        verdict = verdict_of(code, text)
        if verdict is Verdict.ALIVE:
            self._lot.unpark_all()  # they have a new deadline
            return
        if verdict is Verdict.UNPINNED and self._options.groups.group is not None:
            self._pins.pop(self._options.groups.group, None)
        error = error_of(verdict, code, text, self._name)
        self._finish(error, clean=error is None)

    def _on_event(self, event: ConnectionEvent) -> None:
        if event.kind in ("disconnected", "closed"):
            kind = ConnectionClosed if event.kind == "closed" else ConnectionError
            cause = f": {event.error}" if event.error is not None else ""
            self._finish(kind(f"the connection was lost while a fetch waited{cause}"))

    def _finish(self, error: Exception | None, *, clean: bool = False) -> None:
        """`clean`: the server has said, or shown, that the request is over."""
        if self._over:
            return
        self._over = True
        self.error = error
        if clean:
            self._conn.inboxes.give_back(self._inbox, self._sid)
        else:
            self._conn.forget_subscription(self._sid)
        self._lot.unpark_all()


def _without_heartbeat(options: FetchOptions) -> FetchOptions:
    return FetchOptions(
        batch=options.batch,
        max_bytes=options.max_bytes,
        max_wait=options.max_wait,
        heartbeat=None,
        groups=options.groups,
    )
