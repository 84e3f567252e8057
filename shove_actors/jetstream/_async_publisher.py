"""Publishing without waiting for each acknowledgement.

Invariants
* A message counts as pending from the moment it is written until its future is done, and only
  then: what was refused before it was written (too large, a bad option, no connection) and a call
  that was cancelled use up nothing (`test_c25_*`).
* Every future gets done: by its acknowledgement, by the last of its attempts, by its deadline, by
  the loss of the connection (nobody will ever answer on an inbox that is gone), or by the end of
  the context.
* What waits to be written is bounded, however large the messages are (`test_a_slow_network_*`).
* An acknowledgement is handled inside the socket's callback: it never waits and never raises. What
  has to happen later (another attempt, a deadline) is a timer of the one task `run`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque

import trio

from shove_actors._errors import (
    Disconnected,
    NotConnected,
    PublisherClosed,
    PublishTimeout,
    TooManyStalled,
    UnavailableError,
)
from shove_actors._log import about

from ._connection import Connection
from ._context_options import JetStreamOptions
from ._pub_ack import PubAck, is_no_responders, read_ack
from ._publish_future import PublishFuture
from ._publish_options import Encoded
from ._wire import hpub, pub

logger = logging.getLogger("shove_actors.jetstream")

#: After so many messages, or bytes, in a row without a wait, others get their turn.
_FAIRNESS = 32
_FAIRNESS_BYTES = 1 << 20
#: With so many bytes still in this process, wait until they have left, as a socket would have it.
_MOST_BACKLOG = 8 << 20


class AsyncPublisher:
    """The pending publishes of one JetStream context."""

    def __init__(self, connection: Connection, options: JetStreamOptions) -> None:
        self._connection = connection
        self._options = options
        self._pending: dict[PublishFuture, None] = {}
        self._room = trio.lowlevel.ParkingLot()
        self._idle = trio.lowlevel.ParkingLot()
        #: Attempts that are due later.
        self._retries: list[tuple[float, int, PublishFuture]] = []
        #: In the order of their deadlines, because all have the same time-out.
        self._deadlines: deque[PublishFuture] = deque()
        self._count = itertools.count()
        self._earlier = trio.Event()
        #: When the task `run` looks at the timers next, at the latest.
        self._wakes_at = float("inf")
        self._row = 0
        self._row_bytes = 0

    @property
    def _ack_timeout(self) -> float:
        for seconds in (self._options.publish_ack_timeout, self._options.timeout):
            if seconds is not None:
                return seconds
        return self._connection.request_timeout

    @property
    def pending(self) -> int:
        return len(self._pending)

    # ----------------------------------------------------------------- publishing

    async def publish(
        self,
        encoded: Encoded,
        *,
        stall_wait: float | None,
        connect_wait: float,
        attempts: int,
        retry_wait: float,
    ) -> PublishFuture:
        self._row += 1
        self._row_bytes += len(encoded.payload)
        if self._row >= _FAIRNESS or self._row_bytes >= _FAIRNESS_BYTES:
            self._row = self._row_bytes = 0
            await trio.lowlevel.checkpoint()
            if self._connection.backlog > _MOST_BACKLOG:
                await self._until_written()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        most = self._options.publish_async_max_pending
        if not self._connection.connected or len(self._pending) >= most:
            await self._wait_for_room(most, stall_wait, connect_wait, encoded.subject)
        timeout = self._ack_timeout
        deadline = trio.current_time() + timeout
        future = PublishFuture(encoded, attempts, retry_wait, deadline)
        self._pending[future] = None
        if timeout < float("inf"):
            deadlines = self._deadlines
            while deadlines and deadlines[0].done:
                deadlines.popleft()
            deadlines.append(future)
            if deadline < self._wakes_at:
                self._wakes_at = deadline
                self._earlier.set()
        self._send(future)
        return future

    async def _until_written(self) -> None:
        try:
            await self._connection.flush(float("inf"))
        except UnavailableError:
            pass  # lost, and with it the backlog

    async def _wait_for_room(
        self, most: int, stall_wait: float | None, connect_wait: float, subject: str
    ) -> None:
        # Either wait may undo the other, so the last look is at both, without a checkpoint after.
        while True:
            if not self._connection.connected:
                with trio.move_on_after(connect_wait):
                    await self._connection.wait_connected()
                if not self._connection.connected:
                    raise NotConnected(
                        f"no connection within {connect_wait:g} s; the message for {subject!r} was "
                        "not sent"
                    )
            if len(self._pending) < most:
                return
            with trio.move_on_after(float("inf") if stall_wait is None else stall_wait):
                while len(self._pending) >= most:
                    await self._room.park()
            if len(self._pending) >= most:
                raise TooManyStalled(
                    f"{most} acknowledgements are outstanding (publish_async_max_pending) and none "
                    f"came within {stall_wait:g} s (stall_wait); the message for {subject!r} was "
                    "not sent"
                )

    def _send(self, future: PublishFuture) -> None:
        encoded = future._encoded
        reply = future._reply = self._connection.replies.expect(self._answered, future)
        if encoded.block:
            data = hpub(encoded.wire_subject, reply, encoded.block, encoded.payload)
        else:
            data = pub(encoded.wire_subject, reply, encoded.payload)
        if not self._connection.write(data):
            self._connection.replies.forget(reply)
            self._finish(future, _lost(future, "there is no connection for another attempt"))

    # ----------------------------------------------------------------- outcomes

    def _answered(
        self, argument: object, header_block: bytes | None, payload: bytes | Exception
    ) -> None:
        future = argument
        assert isinstance(future, PublishFuture)
        if future.done:
            return
        if isinstance(payload, Exception):
            denied = not isinstance(payload, OSError)
            self._finish(future, payload if denied else _lost(future, str(payload)))
            return
        if future._attempts > 0 and is_no_responders(header_block, payload):
            future._attempts -= 1
            due = trio.current_time() + future._retry_wait
            if not self._retries or due < self._retries[0][0]:
                self._earlier.set()
            heapq.heappush(self._retries, (due, next(self._count), future))
            return
        self._finish(future, read_ack(future.subject, header_block, payload))

    def _finish(self, future: PublishFuture, outcome: PubAck | Exception) -> None:
        self._pending.pop(future, None)
        self._connection.replies.forget(future._reply)
        future._settle(outcome)
        if self._room:
            self._room.unpark()
        if not self._pending:
            self._idle.unpark_all()
        options = self._options
        try:
            if isinstance(outcome, PubAck):
                if options.on_publish_ack is not None:
                    options.on_publish_ack(future, outcome)
            elif options.on_publish_error is not None:
                options.on_publish_error(future, outcome)
        except Exception:
            logger.exception(
                "a publish callback failed",
                extra=about("publish_callback_failed", subject=future.subject),
            )

    def fail_all(self, why: str) -> None:
        """Nobody waits for acknowledgements any more."""
        for future in list(self._pending):
            self._finish(
                future,
                PublisherClosed(f"{why}; whether {future.subject!r} was stored is unknown"),
            )
        self._retries.clear()
        self._deadlines.clear()

    async def complete(self) -> None:
        """Until nothing is pending."""
        await trio.lowlevel.checkpoint()
        while self._pending:
            await self._idle.park()

    # ----------------------------------------------------------------- timers

    async def run(self) -> None:
        """The task that keeps the timers."""
        while True:
            self._earlier = trio.Event()
            next_at = self._wakes_at = min(self._send_due(), self._fail_late())
            with trio.CancelScope(deadline=next_at):
                await self._earlier.wait()

    def _send_due(self) -> float:
        retries, now = self._retries, trio.current_time()
        while retries and (retries[0][0] <= now or retries[0][2].done):
            future = heapq.heappop(retries)[2]
            if not future.done:
                self._send(future)
        return retries[0][0] if retries else float("inf")

    def _fail_late(self) -> float:
        deadlines, now = self._deadlines, trio.current_time()
        while deadlines and (deadlines[0]._deadline <= now or deadlines[0].done):
            future = deadlines.popleft()
            if not future.done:
                self._finish(
                    future,
                    PublishTimeout(
                        f"no acknowledgement from {future.subject!r} within "
                        f"{self._ack_timeout:g} s (publish_ack_timeout)"
                    ),
                )
        return deadlines[0]._deadline if deadlines else float("inf")


def _lost(future: PublishFuture, why: str) -> Disconnected:
    return Disconnected(f"no acknowledgement from {future.subject!r}: {why}")
