"""`Publisher` and `Pipeline`: what users publish with."""

from __future__ import annotations

import itertools
import secrets
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import trio

from shove_actors._errors import BatchError, MessageTooLarge, UsageError
from shove_actors.backends import Post, PostWatch
from shove_actors.messaging import (
    KEY,
    MAX_HEADER_BLOCK,
    MSG_ID,
    SequencedTopic,
    Topic,
    encode_headers,
    encode_key,
    validate_message_id,
    validate_user_headers,
)

from ._key_order import KeyOrder
from ._publish_service import PublishService, Waiter
from ._receipt import PublishReceipt

if TYPE_CHECKING:
    from ._observer import PublishObserver

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

M = TypeVar("M")

#: Bytes kept free below the server's `max_payload`: a message that is accepted can always grow
#: by the headers of a retry or a dead letter (PC-056).
HOP_HEADROOM = 1024
#: Messages a pipeline sends between two checkpoints when nothing else makes it wait.
_BURST = 64

#: Subject, payload, header block, the key of a sequenced topic's message, and who watches.
_Prepared: TypeAlias = tuple[str, bytes, bytes, "str | None", "PostWatch | None"]


class Publisher:
    """Publishes typed messages; get one with `broker.publisher()`. Any number may coexist.

    Every publish carries a `Nats-Msg-Id`: the caller's `message_id`, or a fresh unique one.
    """

    def __init__(self, service: PublishService, observer: PublishObserver | None = None) -> None:
        self._service = service
        self._observer = observer
        self._ids = itertools.count(1)
        self._prefix = secrets.token_hex(8).encode()

    async def publish(
        self,
        topic: Topic[M],
        message: M,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        subject: str | None = None,
    ) -> PublishReceipt:
        """Store one message; returns after JetStream's acknowledgement.

        Raises before anything is sent: `EncodeError` (also a `TypeError`) for a message of another
        type, `HeaderError`, `TopologyError` for a subject that the topic does not bind,
        `MessageTooLarge`, and whatever the topic's key function raises. Raises after asking the
        server: `StreamFull`, `TopicNotDeclared`, `JetStreamNotEnabled`, `PublishRefused`,
        `PublishForbidden` (this user may not publish there), `NotConnected` (not sent) or
        `PublishUnknown` (no acknowledgement within the broker's `publish_timeout`; repeating with
        the same `message_id` is safe).

        Cancelling leaves the message sent or not sent, never half-written, and it is not sent
        later: if it is stored, then before whatever is published afterwards.
        """
        where, payload, block, _, watch = self._prepare(
            topic, message, headers, message_id, subject
        )
        return await self._service.publish(where, payload, block, watch)

    async def publish_with_headers(
        self, topic: Topic[M], message: M, headers: Mapping[str, str]
    ) -> PublishReceipt:
        """`publish` with headers; the source system's spelling."""
        return await self.publish(topic, message, headers=headers)

    async def publish_batch(self, topic: Topic[M], messages: Sequence[M]) -> list[PublishReceipt]:
        """Store all messages for one round trip's wait; receipts in the order of `messages`.

        All are encoded and checked before the first is sent. Raises `BatchError` when some were
        not stored: its `results` has, per message, its receipt or its exception.

        Order is promised for sequenced topics, per key: messages of one key are stored in the
        order of `messages`, and none after an earlier one of its key was refused. Otherwise a
        message whose publish had to be repeated may be stored behind later ones. Cancelled, it
        sends nothing more: of each key of a sequenced topic the first few are stored, in order,
        before whatever is published afterwards.
        """
        prepared = [self._prepare(topic, message, None, None, None) for message in messages]
        results = await self._all(prepared)
        failed = [r for r in results if isinstance(r, Exception)]
        if failed:
            raise BatchError(
                f"{len(failed)} of {len(results)} messages of topic {topic.queue!r} were not "
                f"stored; the first failure: {failed[0]}",
                list(results),
            ) from failed[0]
        return [r for r in results if isinstance(r, PublishReceipt)]

    async def _all(self, prepared: Sequence[_Prepared]) -> list[PublishReceipt | Exception]:
        service = self._service
        order = KeyOrder(service)
        waiters: list[Waiter] = []
        posts: list[Post] = []
        results: list[PublishReceipt | Exception] = []
        try:
            for where, payload, block, key, watch in prepared:
                if not service.window.take_nowait():
                    await service.window.take()
                waiter = Waiter()
                post = Post(where, payload, block, service.done, waiter.complete, watch)
                if key is None:
                    service.submit(post)
                    posts.append(post)
                else:
                    order.submit(key, post)
                waiters.append(waiter)
            for waiter in waiters:
                try:
                    results.append(await waiter.wait())
                except Exception as exc:
                    results.append(exc)
        except trio.Cancelled:
            order.give_up()
            for post in posts:
                service.give_up(post)
            raise
        return results

    def pipeline(self, topic: Topic[M], *, max_pending: int = 1000) -> Pipeline[M]:
        """Publish many messages without waiting for each.

            async with publisher.pipeline(ORDERS) as pipe:
                for order in orders:
                    await pipe.send(order)

        `max_pending`: messages of this pipeline that may be unacknowledged; `send` waits beyond.
        Of a sequenced topic one message per key is under way at a time, so the stream has each
        key's messages in the order of the sends, whatever fails meanwhile.
        Leaving the block waits for every acknowledgement and raises one `ExceptionGroup` with
        each failure (its `message` attribute is the message). Cancelled, it waits for nothing, and
        of a sequenced topic sends nothing more: of each key the first few are stored, in order,
        before whatever is published afterwards.
        """
        return Pipeline(self, self._service, topic, max_pending)

    def _prepare(
        self,
        topic: Topic[M],
        message: M,
        headers: Mapping[str, str] | None,
        message_id: str | None,
        subject: str | None,
    ) -> _Prepared:
        """Subject, payload, header block and key; raises what the caller did wrong."""
        if not isinstance(topic, Topic):
            raise UsageError(
                f"publish takes a topic and then the message; the first is {type(topic).__name__}"
            )
        payload = topic.encode(message)
        topology = topic.topology
        key: str | None = None
        if isinstance(topic, SequencedTopic):
            key = topic.key_of(message)
            where = topology.shard_subject(topic.shard_of(key))
            self._service.fence.expect(topology.queue, topology.routing_shards)
            if subject is not None and subject != where:
                topology.check_subject(subject)
        else:
            where = topology.check_subject(
                subject if subject is not None else topology.default_subject or topology.queue
            )
        watch: PostWatch | None = None
        if self._observer is not None:
            headers, watch = self._observer.publishing(topic.queue, where, len(payload), headers)
        if message_id is None and not headers and key is None:
            block = b"NATS/1.0\r\nNats-Msg-Id: %b-%x\r\nNats-Expected-Stream: %b\r\n\r\n" % (
                self._prefix,
                next(self._ids),
                topology.queue.encode(),
            )
        else:
            if message_id is None:
                message_id = f"{self._prefix.decode()}-{next(self._ids):x}"
            else:
                validate_message_id(message_id)
            own = {MSG_ID: message_id}
            if key is not None:
                own[KEY] = encode_key(key)
            if headers:
                validate_user_headers(headers)
                own.update(headers)
            block = encode_headers(own, into=topology.queue)
        # A copy carries the id twice: its own is made from it, and the logical one is kept.
        grown = len(block) + (len(message_id.encode()) if message_id is not None else 0)
        if grown > MAX_HEADER_BLOCK - HOP_HEADROOM:
            raise MessageTooLarge(
                f"message for {where}: headers are {grown:,} bytes (the message id counts twice); "
                f"a stream stores at most {MAX_HEADER_BLOCK:,} (64 KiB), of which "
                f"{HOP_HEADROOM:,} are kept for the headers of retries and dead letters. Move "
                "what is large into the payload"
            )
        size, limit = len(payload) + len(block), self._service.backend.max_payload
        if size > limit - HOP_HEADROOM:
            raise MessageTooLarge(
                f"message for {where}: payload and headers are {size:,} bytes; the server's "
                f"max_payload is {limit:,}, of which {HOP_HEADROOM:,} are kept for the headers "
                "of retries and dead letters. Send less, or raise max_payload on the server"
            )
        return where, payload, block, key, watch


class Pipeline(Generic[M]):
    """See `Publisher.pipeline`. Use it as an async context manager, from any number of tasks."""

    def __init__(
        self, publisher: Publisher, service: PublishService, topic: Topic[M], max_pending: int
    ) -> None:
        if max_pending < 1:
            raise UsageError(f"max_pending={max_pending}: at least 1, or nothing could be sent")
        self._publisher = publisher
        self._service = service
        self._topic = topic
        self._limit = max_pending
        self._order = KeyOrder(service)
        self._pending = 0
        self._since_checkpoint = 0
        self._lot = trio.lowlevel.ParkingLot()
        self._failures: list[Exception] = []
        self.stored = 0
        self.duplicates = 0

    @property
    def pending(self) -> int:
        """Messages sent and not acknowledged yet."""
        return self._pending

    async def send(
        self,
        message: M,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        subject: str | None = None,
    ) -> None:
        """Send one message; waits only while `max_pending` are unacknowledged.

        What the caller did wrong is raised at once, as by `publish`; what the server refuses is
        raised at the end of the block. Cancelled while waiting for room, it has not sent.
        """
        where, payload, block, key, watch = self._publisher._prepare(
            self._topic, message, headers, message_id, subject
        )
        while self._pending >= self._limit:
            await self._lot.park()
        service = self._service
        service.check_open()
        post = Post(where, payload, block, service.done, _Sent(self, message), watch)
        # Counted before waiting: other tasks may be here, too.
        self._pending += 1
        try:
            if not service.window.take_nowait():
                await service.window.take()
            if key is None:
                service.submit(post)
        except BaseException:
            self._give_back()
            raise
        if key is not None:
            self._order.submit(key, post)
        self._since_checkpoint += 1
        if self._since_checkpoint >= _BURST:
            self._since_checkpoint = 0
            await trio.lowlevel.checkpoint()

    def _give_back(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._lot.unpark_all()  # whoever waits for the end, too
        elif self._lot:
            self._lot.unpark()

    def _settled(self, message: object, result: PublishReceipt | Exception) -> None:
        if isinstance(result, Exception):
            result.message = message  # type: ignore[attr-defined]
            self._failures.append(result)
        else:
            self.stored += 1
            self.duplicates += result.duplicate
        self._give_back()

    async def __aenter__(self) -> Pipeline[M]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            self._order.give_up()
            return
        try:
            while self._pending:
                await self._lot.park()
        except trio.Cancelled:
            self._order.give_up()
            raise
        if self._failures:
            group = ExceptionGroup(
                f"{len(self._failures)} messages of topic {self._topic.queue!r} were not stored",
                self._failures,
            )
            if error is None:
                raise group
            if isinstance(error, Exception):
                raise ExceptionGroup("publishing in a pipeline failed", [error, group])


class _Sent:
    """Completion of one pipelined message. A slot object: cheaper than a closure per message."""

    __slots__ = ("message", "pipeline")

    def __init__(self, pipeline: Pipeline[M], message: M) -> None:
        self.pipeline = pipeline
        self.message: object = message

    def __call__(self, result: PublishReceipt | Exception) -> None:
        self.pipeline._settled(self.message, result)
