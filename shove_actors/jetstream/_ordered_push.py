"""An ordered push reader: a stream's messages in order, each once, whatever happens on the way.

    server -> socket callback -> `_arrived` -> buffer -> `receive` (any task)
                  heartbeats, gaps, losses  -> `_trouble` -> [keeper task] -> the next consumer

It stands on an ephemeral push consumer that nobody acknowledges to. Whenever something may have
been lost (a gap in the consumer's numbers, two heartbeats missed, a lost connection, a status that
says so) the consumer is given up, and another one made that starts behind the last message in the
buffer. `OrderedTracker` is the arithmetic of that, `OrderedBuffer` what has not been taken yet;
here is what moves bytes.

Invariants
* What is in the buffer is in order and without a gap, through all consumers.
* Messages of a consumer that is not the present one are ignored: each consumer has an inbox of its
  own, and `_consumer` says which one counts. Between giving up one and having another it is None.
* The reader ends for good when it is left or stopped, when the connection is closed, when the
  stream is gone (or has been made anew), or when the server refuses the consumer. What is buffered
  then is still read, except after `stop`.
* Leaving tells the server, within a bound. What a dead connection keeps from us the server removes
  by itself.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from shove_actors._errors import (
    ApiError,
    BrokerClosed,
    ConnectionClosed,
    ConnectionError,
    JetStreamError,
    JetStreamNotEnabled,
    PermissionDenied,
    RequestTimeout,
    ServerTooOld,
    StreamNotFound,
)
from shove_actors._groups import unwrapped

from ._api_errors import TEMPORARY
from ._clock import parse_time_ns
from ._events import ConnectionEvent
from ._ordered_buffer import OrderedBuffer, Pushed
from ._ordered_tracker import DeliverPolicy, InitialPhase, OrderedTracker
from ._wire import header_value, status_of

if TYPE_CHECKING:
    from ._context import JetStream

NS = 1_000_000_000
#: Refusals that may pass: the server is busy, or has too many consumers for now.
_WORTH_ANOTHER_TRY = TEMPORARY | {10026}
#: "Last per subject" without a filter.
_NO_FILTER = 10094
#: Between attempts to make a consumer; doubled up to the second one.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
#: How long the first attempt to make the next consumer may take; doubled up to the second one.
_ATTEMPT, _LONGEST_ATTEMPT = 2.0, 30.0
#: How long leaving may take on a connection that does not answer.
_LEAVE_BUDGET = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedRequest:
    """What to read. `mark`: put None behind what was there at the start."""

    stream: str
    filters: tuple[str, ...]
    policy: DeliverPolicy = "all"
    start: int = 0
    headers_only: bool = False
    heartbeat: float = 5.0
    mark: bool = False


class _Consumer:
    """One consumer of the reader, by name, and the subscription it pushes to."""

    __slots__ = ("made", "name", "sid")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sid = 0
        #: The server has said so.
        self.made = False


@asynccontextmanager
async def ordered_push(
    js: JetStream, request: OrderedRequest, translate: Callable[[Exception], object]
) -> AsyncIterator[OrderedPush]:
    """The reader, once its first consumer exists. Raises what refuses that one, or what
    `translate` raises in its place."""
    push = OrderedPush(js, request)
    with unwrapped(layers=1):
        async with trio.open_nursery() as nursery:
            js.connection.listen(push._hear)
            try:
                try:
                    await push._create()
                except JetStreamError as exc:
                    translate(exc)
                    raise
                nursery.start_soon(push._keep, nursery)
                yield push
            finally:
                js.connection.unlisten(push._hear)
                push.stop()
                nursery.cancel_scope.cancel()
                await push._leave()


class OrderedPush:
    """A stream's messages in order. Made by `ordered_push`."""

    def __init__(self, js: JetStream, request: OrderedRequest) -> None:
        self._js = js
        self._connection = js.connection
        self._request = request
        self._tracker = OrderedTracker(request.policy, request.start)
        self._phase = InitialPhase() if request.mark else None
        self._prefix = "op_" + secrets.token_hex(8)
        self._serial = 0
        self._consumer: _Consumer | None = None
        #: Given up, not yet gone.
        self._old: list[_Consumer] = []
        self._trouble = trio.Event()
        self._heard = 0.0
        #: When the first consumer was made.
        self._since_ns = 0
        self._over = False
        self._stopped = trio.Event()
        #: How many messages the first consumer had before it when it was made.
        self.initial_pending = 0
        #: How often the consumer had to be replaced.
        self.renewals = 0
        #: What has arrived, to be taken by any task.
        self.buffer = OrderedBuffer(self._answer, marked=not request.mark)

    @property
    def alive(self) -> bool:
        """There is a consumer that sends, as far as is known: one that was asked for, and whose
        making the server has not confirmed, is none."""
        return self._consumer is not None and self._consumer.made

    @property
    def connected(self) -> bool:
        return self._connection.connected

    def stop(self) -> None:
        """End now. What is buffered is dropped, and readers see the end of the channel."""
        self._end(trio.EndOfChannel)
        self.buffer.end(trio.EndOfChannel, drop=True)

    def _answer(self, subject: bytes) -> None:
        self._connection.publish(subject, b"")

    # ----------------------------------------------------------------- arriving

    def _arrived(
        self,
        consumer: _Consumer,
        subject: bytes,
        reply: bytes,
        header_block: bytes | None,
        payload: bytes,
    ) -> None:
        if consumer is not self._consumer:
            return
        self._heard = trio.current_time()
        tokens = reply.split(b".")
        count = len(tokens)
        if count < 9 or tokens[1] != b"ACK":
            self._status(reply, header_block)
            return
        at = 5 if count == 9 else 7
        sequence = int(tokens[at])
        if not self._tracker.accept(int(tokens[at + 1]), sequence):
            self._give_up()
            return
        pending = int(tokens[at + 3])
        self.buffer.put(
            Pushed(subject, sequence, int(tokens[at + 2]), pending, header_block, payload)
        )
        if not self.buffer.marked and self._phase is not None and self._phase.message(pending):
            self.buffer.put_mark()

    def _status(self, reply: bytes, header_block: bytes | None) -> None:
        status = status_of(header_block)
        if status is None:
            return  # somebody else writes to our inbox
        if status[0] != 100:
            self._give_up()
        elif reply:
            self.buffer.ask(reply)
        elif header_block is not None:
            last = header_value(header_block, b"Nats-Last-Consumer")
            stalled = header_value(header_block, b"Nats-Consumer-Stalled")
            if last is not None and not self._tracker.complete(int(last)):
                self._give_up()
            elif stalled:
                self.buffer.ask(stalled)
            elif not self.buffer.marked and self._phase is not None and self._phase.idle():
                self.buffer.put_mark()

    # ----------------------------------------------------------------- keeping

    def _hear(self, event: ConnectionEvent) -> None:
        if event.kind == "disconnected":
            self._give_up()
        elif event.kind == "closed":
            text = "the connection is closed"
            if event.error is not None:
                text = f"{text}: {event.error}"
            self._end(partial(ConnectionClosed, text))

    def _give_up(self) -> None:
        """Nothing that the present consumer sends counts any more; the keeper makes another."""
        if self._consumer is not None:
            self._old.append(self._consumer)
            self._consumer = None
        self._trouble.set()

    def _end(self, why: Callable[[], Exception]) -> None:
        if self._over:
            return
        self._over = True
        self._stopped.set()
        self.buffer.end(why)
        self._give_up()

    async def _keep(self, nursery: trio.Nursery) -> None:
        while True:
            await self._until_lost()
            self._discard_old(nursery)
            if self._over:
                return
            await self._renew(nursery)

    async def _until_lost(self) -> None:
        """While the present consumer counts; two heartbeats missed, and it does not."""
        while self._consumer is not None:
            self._trouble = trio.Event()
            deadline = self._heard + 2 * self._request.heartbeat
            with trio.CancelScope(deadline=deadline):
                await self._trouble.wait()
            if self._heard + 2 * self._request.heartbeat <= deadline <= trio.current_time():
                self._give_up()

    async def _renew(self, nursery: trio.Nursery) -> None:
        """Another consumer, however long it takes; or the end, if there cannot be one."""
        pause, patience = _FIRST_PAUSE, _ATTEMPT
        while not self._over:
            try:
                await self._connection.wait_connected()
            except (BrokerClosed, ConnectionError) as exc:
                self._end(partial(ConnectionClosed, str(exc)))
                return
            try:
                with trio.move_on_after(patience) as attempt:
                    await self._check_stream()
                    await self._create()
                if not attempt.cancelled_caught:
                    self.renewals += 1
                    return
            except (StreamNotFound, PermissionDenied, ServerTooOld) as exc:
                self._end(partial(_again, exc))
            except ApiError as exc:
                if exc.err_code not in _WORTH_ANOTHER_TRY and exc.code < 500:
                    self._end(partial(_again, exc))
            except (ConnectionError, RequestTimeout, JetStreamNotEnabled):
                pass
            self._discard_old(nursery)
            with trio.move_on_after(0 if self._over else pause):
                await self._stopped.wait()
            pause = min(pause * 2, _LONGEST_PAUSE)
            patience = min(patience * 2, _LONGEST_ATTEMPT)

    def _discard_old(self, nursery: trio.Nursery) -> None:
        while self._old:
            nursery.start_soon(self._discard, self._old.pop())

    async def _check_stream(self) -> None:
        """Is it still the stream that was read? One made anew counts from 1 again.

        Such a one is younger than our first consumer; both times are the server's.
        """
        name = self._request.stream
        answer = await self._js.call(f"STREAM.INFO.{name}")
        if (
            parse_time_ns(answer["created"]) > self._since_ns
            or answer["state"].get("last_seq", 0) < self._tracker.stream_seq
        ):
            raise StreamNotFound(404, 10059, f"stream {name} was deleted and made again")

    async def _create(self) -> None:
        self._serial += 1
        consumer = _Consumer(f"{self._prefix}_{self._serial}")
        inbox = self._connection.new_inbox()
        if self._phase is not None:
            self._phase.begin()
        policy, start = self._tracker.begin()
        self._heard = trio.current_time()
        self._consumer = consumer
        consumer.sid = self._connection.subscribe(inbox, partial(self._arrived, consumer))
        try:
            answer = await self._js.call(*self._body(consumer.name, inbox.decode(), policy, start))
            config = answer.get("config") or {}
            if len(self._request.filters) > 1 and not config.get("filter_subjects"):
                raise _several_filters()
        except BaseException as exc:
            # It may have been made or not.
            if consumer is self._consumer:
                self._give_up()
            if isinstance(exc, ApiError) and exc.err_code == _NO_FILTER:
                raise _several_filters() from exc
            raise
        consumer.made = True
        # Heartbeats are due from now on, however long the answer took.
        self._heard = trio.current_time()
        pending = answer.get("num_pending", 0)
        if self._serial == 1:
            self.initial_pending = pending
            self._since_ns = parse_time_ns(answer["created"])
        self._tracker.created((answer.get("delivered") or {}).get("stream_seq", 0))
        if self._phase is None or consumer is not self._consumer or self.buffer.marked:
            return
        if self._phase.created(pending):
            self.buffer.put_mark()

    def _body(
        self, name: str, inbox: str, policy: DeliverPolicy, start: int
    ) -> tuple[str, dict[str, Any]]:
        request = self._request
        config: dict[str, Any] = {
            "name": name,
            "deliver_subject": inbox,
            "deliver_policy": policy,
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": round(request.heartbeat * NS),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if start:
            config["opt_start_seq"] = start
        if request.headers_only:
            config["headers_only"] = True
        op = f"CONSUMER.CREATE.{request.stream}.{name}"
        if len(request.filters) == 1:
            config["filter_subject"] = request.filters[0]
            op = f"{op}.{request.filters[0]}"
        else:
            config["filter_subjects"] = list(request.filters)
        return op, {"stream_name": request.stream, "config": config}

    async def _discard(self, consumer: _Consumer) -> None:
        request = self._request
        self._connection.publish(
            f"{self._js.prefix}CONSUMER.DELETE.{request.stream}.{consumer.name}".encode(), b""
        )
        await self._connection.unsubscribe(consumer.sid)

    async def _leave(self) -> None:
        with trio.move_on_after(_LEAVE_BUDGET, shield=True):
            while self._old:
                await self._discard(self._old.pop())


def _several_filters() -> ServerTooOld:
    # Whoever does not know `filter_subjects` sees no filter at all.
    return ServerTooOld("several patterns at once need nats-server 2.10; watch one, or everything")


def _again(exc: Exception) -> Exception:
    """Another one of the same: whoever reads gets a traceback of its own."""
    if isinstance(exc, ApiError):
        return type(exc)(exc.code, exc.err_code, exc.description)
    if isinstance(exc, PermissionDenied):
        return PermissionDenied(str(exc), subject=exc.subject, operation=exc.operation)
    return type(exc)(str(exc))
