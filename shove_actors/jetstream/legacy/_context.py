"""`JetStreamContext`: the legacy names, one to one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from shove_actors._errors import ConsumerExists, ConsumerNotFound, InvalidOption
from shove_actors.jetstream._account import AccountInfo
from shove_actors.jetstream._config import NatsConfig
from shove_actors.jetstream._consumer import ConsumerConfig as NewConsumerConfig
from shove_actors.jetstream._consumer_info import ConsumerInfo
from shove_actors.jetstream._context import JetStream
from shove_actors.jetstream._lister import Lister
from shove_actors.jetstream._message import Message
from shove_actors.jetstream._open import connect as new_connect
from shove_actors.jetstream._options import (
    check_callback,
    check_count,
    check_function,
    check_kind,
    check_text,
)
from shove_actors.jetstream._ordered import OrderedConsumer
from shove_actors.jetstream._pub_ack import PubAck
from shove_actors.jetstream._publish_future import PublishFuture
from shove_actors.jetstream._publish_options import Data, PublishOptions, PubMessage
from shove_actors.jetstream._push import PushConsumer
from shove_actors.jetstream._raw_message import RawMessage
from shove_actors.jetstream._stream import StreamConfig
from shove_actors.jetstream._stream_info import StreamInfo
from shove_actors.jetstream._wire import check_subject

from ._binding import bind, check_subscribe, stream_of
from ._config import ConsumerConfig, difference
from ._subscription import (
    Callback,
    PullSubscription,
    PushSubscription,
    Subscription,
    SyncSubscription,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shove_actors.jetstream._consumer import ConsumerSettings
    from shove_actors.jetstream._ordered import OrderedSettings
    from shove_actors.jetstream._settings import ConnectSettings
    from shove_actors.jetstream._stream import StreamSettings

    from ._options import PullOptions, QueueOptions, SubscribeOptions


@asynccontextmanager
async def connect(
    servers: NatsConfig | str | Sequence[str] = "nats://127.0.0.1:4222",
    **settings: Unpack[ConnectSettings],
) -> AsyncIterator[JetStreamContext]:
    """`jetstream.connect`, with the legacy names. In new code: `jetstream.connect`."""
    async with new_connect(servers, **settings) as js:
        yield JetStreamContext(js)


async def ack_sync(message: Message, timeout: float | None = None) -> None:
    """Legacy name of `Message.double_ack`."""
    await message.double_ack(timeout)


class JetStreamContext:
    """nats.go's legacy `JetStreamContext` over a new `JetStream` (`js`)."""

    def __init__(self, js: JetStream) -> None:
        self.js = js

    # ------------------------------------------------------------------ streams

    async def account_info(self) -> AccountInfo:
        """`JetStream.account_info`."""
        return await self.js.account_info()

    async def add_stream(
        self, config: StreamConfig | None = None, /, **settings: Unpack[StreamSettings]
    ) -> StreamInfo:
        """In new code: `JetStream.create_stream`, which gives a `Stream`."""
        return (await self.js.create_stream(config, **settings)).cached_info

    async def update_stream(
        self, config: StreamConfig | None = None, /, **settings: Unpack[StreamSettings]
    ) -> StreamInfo:
        """In new code: `JetStream.edit_stream`. This one replaces the **whole** configuration."""
        return (await self.js.update_stream(config, **settings)).cached_info

    async def delete_stream(self, name: str) -> None:
        """`JetStream.delete_stream`."""
        await self.js.delete_stream(name)

    async def stream_info(
        self, name: str, *, deleted_details: bool = False, subject_filter: str | None = None
    ) -> StreamInfo:
        """In new code: `Stream.info`."""
        return await self.js.stream_info(
            name, deleted_details=deleted_details, subject_filter=subject_filter
        )

    async def purge_stream(
        self,
        name: str,
        *,
        subject: str | None = None,
        before: int | None = None,
        keep: int | None = None,
    ) -> int:
        """In new code: `Stream.purge`."""
        return await self.js.purge_stream(name, subject=subject, before=before, keep=keep)

    def streams(self, subject: str | None = None) -> Lister[StreamInfo]:
        """In new code: `JetStream.list_streams`. Also for nats.go's `StreamsInfo`."""
        return self.js.list_streams(subject)

    def stream_names(self, subject: str | None = None) -> Lister[str]:
        """`JetStream.stream_names`."""
        return self.js.stream_names(subject)

    async def stream_name_by_subject(self, subject: str) -> str:
        """`JetStream.stream_name_by_subject`; raises `StreamNotFound` where that gives None."""
        check_subject(subject)
        return await stream_of(self.js, subject, {})

    async def get_msg(self, stream: str, sequence: int) -> RawMessage:
        """In new code: `Stream.get_message`."""
        check_count("sequence", sequence)
        return await (await self.js.stream(stream)).get_message(sequence)

    async def get_last_msg(self, stream: str, subject: str) -> RawMessage:
        """In new code: `Stream.get_last_message`."""
        check_subject(subject)
        return await (await self.js.stream(stream)).get_last_message(subject)

    async def delete_msg(self, stream: str, sequence: int) -> None:
        """In new code: `Stream.delete_message`. Raises `MessageDeleteFailed`."""
        await self.js.remove_message(stream, sequence)

    async def secure_delete_msg(self, stream: str, sequence: int) -> None:
        """In new code: `Stream.delete_message(sequence, secure=True)`."""
        await self.js.remove_message(stream, sequence, secure=True)

    # ------------------------------------------------------------------ consumers

    async def add_consumer(
        self,
        stream: str,
        config: NewConsumerConfig | None = None,
        /,
        **settings: Unpack[ConsumerSettings],
    ) -> ConsumerInfo:
        """In new code: `Stream.create_consumer`.

        **The default ack policy is "none"** (see `legacy.ConsumerConfig`). An existing consumer
        that is the same in what is set here is returned, another one raises `ConsumerExists`.
        """
        wanted = _merged(config, settings)
        name = wanted.name or wanted.durable_name
        if name is not None:
            try:
                info = await self.js.consumer_info(stream, name)
            except ConsumerNotFound:
                pass
            else:
                wrong = difference(wanted, info.config, frozenset({"ack_policy"}))
                if wrong is not None:
                    raise ConsumerExists(400, 10148, f"consumer {name!r} exists: its {wrong}")
                return info
        return await self.js.put_consumer(stream, wanted, "create")

    async def update_consumer(
        self,
        stream: str,
        config: NewConsumerConfig | None = None,
        /,
        **settings: Unpack[ConsumerSettings],
    ) -> ConsumerInfo:
        """In new code: `Stream.update_consumer`. Replaces the whole configuration."""
        wanted = _merged(config, settings)
        if not (wanted.name or wanted.durable_name):
            raise InvalidOption("update_consumer needs the consumer's name or durable_name")
        return await self.js.put_consumer(stream, wanted, "update")

    async def delete_consumer(self, stream: str, name: str) -> None:
        """In new code: `Stream.delete_consumer`."""
        await self.js.delete_consumer(stream, name)

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        """In new code: `Consumer.info`."""
        return await self.js.consumer_info(stream, name)

    def consumers(self, stream: str) -> Lister[ConsumerInfo]:
        """In new code: `Stream.list_consumers`. Also for nats.go's `ConsumersInfo`."""
        return self.js.list_consumers(stream)

    def consumer_names(self, stream: str) -> Lister[str]:
        """In new code: `Stream.consumer_names`."""
        return self.js.consumer_names(stream)

    # ------------------------------------------------------------------ publishing

    async def publish(
        self, subject: str, data: Data = b"", **options: Unpack[PublishOptions]
    ) -> PubAck:
        """`JetStream.publish`."""
        return await self.js.publish(subject, data, **options)

    async def publish_msg(self, message: PubMessage, **options: Unpack[PublishOptions]) -> PubAck:
        """`JetStream.publish` with a message."""
        check_kind("message", message, PubMessage, "a PubMessage")
        return await self.js.publish(message, **options)

    async def publish_async(
        self,
        subject: str,
        data: Data = b"",
        *,
        stall_wait: float | None = 0.2,
        **options: Unpack[PublishOptions],
    ) -> PublishFuture:
        """`JetStream.publish_async`."""
        return await self.js.publish_async(subject, data, stall_wait=stall_wait, **options)

    async def publish_msg_async(
        self,
        message: PubMessage,
        *,
        stall_wait: float | None = 0.2,
        **options: Unpack[PublishOptions],
    ) -> PublishFuture:
        """`JetStream.publish_async` with a message."""
        check_kind("message", message, PubMessage, "a PubMessage")
        return await self.js.publish_async(message, stall_wait=stall_wait, **options)

    @property
    def publish_async_pending(self) -> int:
        """`JetStream.publish_async_pending`."""
        return self.js.publish_async_pending

    async def publish_async_complete(self) -> None:
        """`JetStream.publish_async_complete`."""
        await self.js.publish_async_complete()

    # ------------------------------------------------------------------ subscribing

    @asynccontextmanager
    async def subscribe(
        self,
        subject: str,
        callback: Callback,
        *,
        on_error: Callable[[Exception], object] | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> AsyncIterator[PushSubscription]:
        """Call `callback(message)` for each message, and acknowledge it afterwards.

        In new code: a pull consumer and `Consumer.consume`.

        A push consumer is made, or with `durable` (or `bind`) an existing one read, which must be
        what the options say (`ConsumerMismatch`). The acknowledgement is sent when the callback
        has returned, unless `manual_ack` or an ack policy "none"; after an exception of the
        callback it is not, and the exception leaves the block, or goes to `on_error`.
        Leaving the block deletes the consumer if this call has made it.
        """
        check_subscribe(subject, options)
        check_function("callback", callback)
        if on_error is not None:
            check_callback("on_error", on_error)
        acks = not options.get("manual_ack") and options.get("ack_policy") != "none"
        if options.get("ordered"):
            stream = await stream_of(self.js, subject, options)
            async with self._ordered(stream, subject, options) as ordered:
                push = PushSubscription(
                    self.js,
                    stream,
                    None,
                    created=False,
                    callback=callback,
                    acks=False,
                    on_error=on_error,
                )
                async with ordered.consume(push._handle) as push._loop:
                    yield push
            return
        bound = await bind(self.js, subject, options, pull=False, waits=False)
        push = PushSubscription(
            self.js,
            bound.stream,
            bound.info.name,
            created=bound.created,
            callback=callback,
            acks=acks and bound.info.config.ack_policy != "none",
            on_error=on_error,
        )
        async with _ending(push):
            async with PushConsumer(self.js, bound.info).consume(push._handle) as push._loop:
                yield push

    @asynccontextmanager
    async def subscribe_sync(
        self, subject: str, **options: Unpack[SubscribeOptions]
    ) -> AsyncIterator[SyncSubscription]:
        """As `subscribe`, without a callback: `await subscription.next_msg(timeout)`.

        In new code: `Consumer.messages`, or `Consumer.next`. Nothing is acknowledged by itself.
        """
        check_subscribe(subject, options)
        if options.get("ordered"):
            stream = await stream_of(self.js, subject, options)
            async with self._ordered(stream, subject, options) as ordered:
                sync = SyncSubscription(self.js, stream, None, created=False)
                async with ordered.messages() as sync._messages:
                    yield sync
            return
        bound = await bind(self.js, subject, options, pull=False, waits=True)
        sync = SyncSubscription(self.js, bound.stream, bound.info.name, created=bound.created)
        async with _ending(sync):
            async with PushConsumer(self.js, bound.info).messages() as sync._messages:
                yield sync

    def chan_subscribe(
        self, subject: str, **options: Unpack[SubscribeOptions]
    ) -> AbstractAsyncContextManager[SyncSubscription]:
        """As `subscribe_sync`: the subscription is a receive channel itself."""
        return self.subscribe_sync(subject, **options)

    def queue_subscribe(
        self,
        subject: str,
        queue: str,
        callback: Callback,
        *,
        on_error: Callable[[Exception], object] | None = None,
        **options: Unpack[QueueOptions],
    ) -> AbstractAsyncContextManager[PushSubscription]:
        """As `subscribe`; the members of the group `queue` share the messages.

        In new code: nothing but a pull consumer, which is shared by whoever reads it; or a push
        consumer with `deliver_group`. The group's name is the durable's, unless one is given.
        """
        check_text("queue", queue, empty=False)
        return self.subscribe(subject, callback, on_error=on_error, **options, queue=queue)

    def queue_subscribe_sync(
        self, subject: str, queue: str, **options: Unpack[QueueOptions]
    ) -> AbstractAsyncContextManager[SyncSubscription]:
        """As `queue_subscribe`, without a callback."""
        check_text("queue", queue, empty=False)
        return self.subscribe_sync(subject, **options, queue=queue)

    @asynccontextmanager
    async def pull_subscribe(
        self, subject: str, durable: str = "", **options: Unpack[PullOptions]
    ) -> AsyncIterator[PullSubscription]:
        """A pull consumer, made or found; `await subscription.fetch(10)`.

        In new code: `Stream.create_or_update_consumer` and `Consumer.fetch`, which waits for the
        full batch. With `durable=""` it is an ephemeral one.
        """
        check_text("durable", durable)
        wanted: SubscribeOptions = {**options, "durable": durable or None, "queue": None}
        check_subscribe(subject, wanted)
        bound = await bind(self.js, subject, wanted, pull=True, waits=False)
        pull = PullSubscription(self.js, bound.info, created=bound.created)
        async with _ending(pull):
            yield pull

    @asynccontextmanager
    async def _ordered(
        self, stream: str, subject: str, options: SubscribeOptions
    ) -> AsyncIterator[OrderedConsumer]:
        for name in ("durable", "bind", "queue", "manual_ack", "max_deliver", "ack_wait"):
            if options.get(name):
                raise InvalidOption(f"an ordered subscription has no {name}")
        settings: OrderedSettings = {
            "filter_subjects": options.get("filter_subjects") or (subject,),
            "deliver_policy": options.get("deliver_policy", "all"),
            "headers_only": options.get("headers_only", False),
        }
        start, since = options.get("opt_start_seq"), options.get("opt_start_time")
        if start is not None:
            settings["opt_start_seq"] = start
        if since is not None:
            settings["opt_start_time"] = since
        async with self.js.ordered_consumer(stream, **settings) as ordered:
            yield ordered


@asynccontextmanager
async def _ending(subscription: Subscription) -> AsyncIterator[None]:
    """Behind the reading: what was made for it goes with it."""
    try:
        yield
    finally:
        subscription._ended = True
        await subscription._delete()


def _merged(config: NewConsumerConfig | None, settings: ConsumerSettings) -> NewConsumerConfig:
    base = ConsumerConfig() if config is None else config
    check_kind("config", base, NewConsumerConfig, "a ConsumerConfig, or keywords such as name=")
    return replace(base, **settings) if settings else base  # type: ignore[arg-type]
