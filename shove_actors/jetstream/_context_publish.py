"""Publishing into streams: one by one, without waiting for each, or all or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import (
    ConnectionError,
    Disconnected,
    InvalidOption,
    NoStreamResponse,
    NotConnected,
    PublishTimeout,
    UsageError,
)

from ._async_publisher import AsyncPublisher
from ._atomic_batch import AtomicBatch
from ._connection import Connection
from ._context_core import ContextCore
from ._context_options import JetStreamOptions
from ._options import check_count, check_kind, check_seconds
from ._pub_ack import PubAck, is_no_responders, read_ack
from ._publish_future import PublishFuture
from ._publish_options import Data, Encoded, PublishOptions, PubMessage
from ._request import Reply, ask

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PublishApi(ContextCore):
    """The part of `JetStream` that publishes."""

    def __init__(self, connection: Connection, options: JetStreamOptions) -> None:
        super().__init__(connection, options)
        self._publisher = AsyncPublisher(connection, options)
        self._entered = False

    # ------------------------------------------------------------------ one by one

    async def publish(
        self,
        subject: str | PubMessage,
        data: Data = b"",
        *,
        timeout: float | None = None,
        retry_attempts: int = 2,
        retry_wait: float = 0.25,
        **options: Unpack[PublishOptions],
    ) -> PubAck:
        """Store a message and return the stream's acknowledgement.

            ack = await js.publish("ORDERS.new", b"hello", msg_id="order-1")

        Options: see `PublishOptions`. `timeout` (default: the context's) bounds it all, also the
        wait for a connection. While no stream answers it is tried `retry_attempts` times more,
        `retry_wait` seconds apart, because a leader may be being elected.

        Nothing is stored: `NoStreamResponse`, `ApiError` and its subclasses (an expectation that
        does not hold, a stream that is full), `MessageTooLarge`, `InvalidOption`, `HeaderError`,
        `PermissionDenied`, `NotConnected`, `BrokerClosed`. Stored or not, nobody knows:
        `PublishTimeout`, `Disconnected`; then only a message with a `msg_id` can be published again
        safely. The same holds after a cancellation.
        """
        encoded = self._encode(subject, data, options)
        _check_retries(retry_attempts, retry_wait)
        limit = self._limit(timeout)
        connection = self.connection
        sent, refused = False, False
        with trio.move_on_after(limit):
            while True:
                if not connection.connected:
                    await connection.wait_connected()
                sent = True
                reply = await self._ask(encoded)
                if retry_attempts <= 0 or not is_no_responders(reply.header_block, reply.payload):
                    outcome = read_ack(encoded.subject, reply.header_block, reply.payload)
                    if isinstance(outcome, PubAck):
                        return outcome
                    raise outcome
                sent, refused = False, True
                retry_attempts -= 1
                await trio.sleep(retry_wait)
        if refused and not sent:
            raise NoStreamResponse(
                f"no stream has answered on {encoded.subject!r} within {limit:g} s; nothing is "
                "stored. Check the subjects of the streams"
            )
        if not sent:
            raise NotConnected(
                f"no connection within {limit:g} s; the message for {encoded.subject!r} was not "
                "sent"
            )
        raise PublishTimeout(
            f"no acknowledgement from {encoded.subject!r} within {limit:g} s from "
            f"{connection.server or 'any server'}"
        )

    async def _ask(self, encoded: Encoded) -> Reply:
        connection = self.connection
        try:
            return await ask(
                connection.replies,
                encoded.subject,
                lambda reply: connection.publish(
                    encoded.wire_subject, encoded.payload, reply, encoded.block
                ),
            )
        except ConnectionError as exc:
            raise Disconnected(f"no acknowledgement from {encoded.subject!r}: {exc}") from None

    # ------------------------------------------------------------------ without waiting

    async def publish_async(
        self,
        subject: str | PubMessage,
        data: Data = b"",
        *,
        stall_wait: float | None = 0.2,
        retry_attempts: int = 2,
        retry_wait: float = 0.25,
        **options: Unpack[PublishOptions],
    ) -> PublishFuture:
        """Send a message and return at once; the future stands for the acknowledgement.

            for number in range(500):
                await js.publish_async("ORDERS.new", b"hello")
            await js.publish_async_complete()

        At most `publish_async_max_pending` acknowledgements are outstanding. Beyond that the call
        waits up to `stall_wait` seconds (None: as long as the caller's scope) and raises
        `TooManyStalled`; nothing was sent then. Messages are sent in the order of the calls, but
        one that is tried again (`retry_attempts`, while no stream answers) comes later.

        Raises for what is never sent: `InvalidOption`, `HeaderError`, `MessageTooLarge`,
        `NotConnected`, `UsageError` outside of the context's `async with`. Everything else is the
        future's. A call that is cancelled has sent nothing.
        """
        encoded = self._encode(subject, data, options)
        _check_retries(retry_attempts, retry_wait)
        if stall_wait is not None:
            check_seconds("stall_wait", stall_wait)
        if not self._entered:
            raise UsageError(
                "publish_async needs the JetStream context to be entered: "
                "`async with JetStream(connection) as js`, or jetstream.connect"
            )
        return await self._publisher.publish(
            encoded,
            stall_wait=stall_wait,
            connect_wait=self._limit(None),
            attempts=retry_attempts,
            retry_wait=retry_wait,
        )

    @property
    def publish_async_pending(self) -> int:
        """How many acknowledgements are outstanding."""
        return self._publisher.pending

    async def publish_async_complete(self) -> None:
        """Wait until no acknowledgement is outstanding; at once if none is.

        It says nothing about how they ended: ask the futures, or `on_publish_error`.
        """
        await self._publisher.complete()

    async def cleanup_publisher(self) -> None:
        """Fail every outstanding future with `PublisherClosed`. Publishing goes on afterwards."""
        self._publisher.fail_all("the publisher was cleaned up")
        await trio.lowlevel.checkpoint()

    # ------------------------------------------------------------------ all or nothing

    def batch(self, *, timeout: float | None = None) -> AtomicBatch:
        """Messages that are stored together or not at all; see `AtomicBatch`.

        async with js.batch() as batch:
            await batch.add("ORDERS.new", b"one")
            await batch.add("ORDERS.new", b"two")
        print(batch.ack)
        """
        return AtomicBatch(self.connection, self._limit(timeout), self._encode)

    async def publish_batch(
        self, messages: Iterable[PubMessage], *, timeout: float | None = None
    ) -> PubAck:
        """All of `messages` in one atomic batch. Raises as `AtomicBatch` does; `InvalidOption`
        without any message."""
        check_kind("messages", messages, Iterable, "a list of PubMessage")
        async with self.batch(timeout=timeout) as batch:
            for message in messages:
                check_kind("each of messages", message, PubMessage, "a PubMessage")
                await batch.add(message)
        if batch.ack is None:
            raise InvalidOption("a batch needs one message at least")
        return batch.ack

    # ------------------------------------------------------------------ common

    def _limit(self, timeout: float | None) -> float:
        if timeout is not None:
            return check_seconds("timeout", timeout)
        return self.timeout if self.timeout is not None else self.connection.request_timeout

    def _encode(self, subject: str | PubMessage, data: Data, options: PublishOptions) -> Encoded:
        if isinstance(subject, PubMessage):
            if data:
                raise InvalidOption("a PubMessage has its own data; leave out data")
            message, own = subject, options
            options = {**message.options, **own}
            if options.get("headers") is None and message.headers is not None:
                options["headers"] = message.headers
            subject, data = message.subject, message.data
        return Encoded(subject, data, options, self.connection.max_payload)


def _check_retries(attempts: int, wait: float) -> None:
    check_count("retry_attempts", attempts, least=0)
    check_seconds("retry_wait", wait)
