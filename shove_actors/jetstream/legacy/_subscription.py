"""Legacy subscriptions: with a callback, without one, and pulling."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import trio

from shove_actors._errors import (
    AlreadyAcked,
    ConnectionClosed,
    ConnectionError,
    FetchDisconnected,
    FetchTimeout,
    IteratorClosed,
    ShoveError,
    UsageError,
)
from shove_actors.jetstream._consume import Consuming, refuse_inside
from shove_actors.jetstream._consumer_handle import Consumer
from shove_actors.jetstream._consumer_info import ConsumerInfo
from shove_actors.jetstream._context import JetStream
from shove_actors.jetstream._fetch import FetchBatch
from shove_actors.jetstream._message import Message
from shove_actors.jetstream._messages import MessageIterator
from shove_actors.jetstream._options import check_count, check_seconds

#: How long the deletion of a consumer may hold the end of its subscription.
DELETE_BUDGET = 2.0
#: A request ends before its caller's time does, so that the answer still arrives.
_SHORTER, _SHORTER_AT_MOST = 0.1, 5.0

Callback = Callable[[Message], "Awaitable[object] | object"]


class Subscription:
    """What all subscriptions have in common. Leaving the block is `unsubscribe`."""

    def __init__(self, js: JetStream, stream: str, name: str | None, *, created: bool) -> None:
        self._js = js
        self._stream = stream
        self._name = name
        self._created = created
        self._ended = False

    @property
    def consumer_name(self) -> str:
        """Of the consumer that is read."""
        return self._name or ""

    async def consumer_info(self) -> ConsumerInfo:
        """Legacy name of `Consumer.info`."""
        if self._name is None:
            raise UsageError("an ordered subscription replaces its consumer as it needs")
        return await self._js.consumer_info(self._stream, self._name)

    async def unsubscribe(self) -> None:
        """End it, and drop what is buffered. A consumer that this subscription has made is
        deleted; one that existed is left. Nothing happens the second time."""
        if self._ended:
            await trio.lowlevel.checkpoint()
            return
        self._ended = True
        await self._stop()
        await self._delete()

    async def drain(self) -> None:
        """As `unsubscribe`, but what has been sent already is processed first."""
        if self._ended:
            await trio.lowlevel.checkpoint()
            return
        await self._process_rest()
        await self.unsubscribe()

    async def _stop(self) -> None:
        """Hand over nothing more."""
        await trio.lowlevel.checkpoint()

    async def _process_rest(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _delete(self) -> None:
        if not self._created or self._name is None:
            return
        self._created = False
        with trio.move_on_after(DELETE_BUDGET, shield=True):
            try:
                await self._js.delete_consumer(self._stream, self._name)
            except ShoveError:
                pass  # gone already, or no connection: an ephemeral one ends by itself


class PushSubscription(Subscription):
    """A callback is called for each message. Made by `JetStreamContext.subscribe`."""

    def __init__(
        self,
        js: JetStream,
        stream: str,
        name: str | None,
        *,
        created: bool,
        callback: Callback,
        acks: bool,
        on_error: Callable[[Exception], object] | None,
    ) -> None:
        super().__init__(js, stream, name, created=created)
        self._callback = callback
        self._acks = acks
        self._on_error = on_error
        self._loop: Consuming | None = None

    async def _handle(self, message: Message) -> None:
        try:
            answer = self._callback(message)
            if inspect.isawaitable(answer):
                await answer
        except Exception as exc:
            # Not acknowledged: it comes again.
            if self._on_error is None:
                raise
            self._on_error(exc)
            return
        if self._acks:
            try:
                await message.ack()
            except AlreadyAcked:
                pass  # the callback was faster

    async def _stop(self) -> None:
        # A callback at work finishes; whoever leaves the block waits for it.
        assert self._loop is not None
        self._loop.stop()
        await trio.lowlevel.checkpoint()

    async def _process_rest(self) -> None:
        assert self._loop is not None
        refuse_inside(self._loop, "drain()")
        await self._loop.drain()
        await self._loop.wait_closed()


class SyncSubscription(Subscription):
    """Messages are asked for one by one, and never acknowledged by themselves.

    It is also a receive channel, as nats.go's `ChanSubscribe` has one: `async for`, `receive`,
    `receive_nowait`. Made by `JetStreamContext.subscribe_sync`.
    """

    _messages: MessageIterator

    async def next_msg(self, timeout: float | None = None) -> Message:
        """Legacy name of `MessageIterator.next`. Raises `FetchTimeout` (a `TimeoutError`)."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        return await self._messages.next(timeout)

    async def receive(self) -> Message:
        """The next message, however long it takes."""
        return await self._messages.receive()

    def receive_nowait(self) -> Message:
        """The next message, or `trio.WouldBlock`."""
        return self._messages.receive_nowait()

    def __aiter__(self) -> SyncSubscription:
        return self

    async def __anext__(self) -> Message:
        return await self._messages.__anext__()

    async def _stop(self) -> None:
        await self._messages.aclose()

    async def drain(self) -> None:
        """The server sends no more. Read what is buffered; `IteratorClosed` or the end of `async
        for` comes behind it, and then `unsubscribe` (or leaving the block)."""
        if self._ended:
            await trio.lowlevel.checkpoint()
            return
        await self._messages.drain()


class PullSubscription(Subscription):
    """Messages are fetched. Made by `JetStreamContext.pull_subscribe`."""

    def __init__(self, js: JetStream, info: ConsumerInfo, *, created: bool) -> None:
        super().__init__(js, info.stream, info.name, created=created)
        self._consumer = Consumer(js, info)

    async def fetch(self, batch: int, timeout: float = 5.0) -> list[Message]:
        """What is there, `batch` messages at most; if there is nothing, wait for the first.

        Returns as soon as there is something: three stored of ten asked for are returned at once,
        where the new `Consumer.fetch` waits for all ten. Raises `FetchTimeout` (a `TimeoutError`)
        when nothing came in `timeout` seconds, `FetchDisconnected` when the connection was lost;
        otherwise what `Consumer.fetch_list` raises.
        """
        check_count("batch", batch)
        check_seconds("timeout", timeout)
        if self._ended:
            raise IteratorClosed("the subscription has ended")
        deadline = trio.current_time() + timeout - min(timeout * _SHORTER, _SHORTER_AT_MOST)
        if batch > 1:
            found = await self._take(self._consumer.fetch_no_wait(batch))
            if found:
                return found
        left = deadline - trio.current_time()
        found = await self._take(self._consumer.fetch(1, max_wait=left)) if left > 0 else []
        if not found:
            raise FetchTimeout(
                f"no message from {self._name!r} of stream {self._stream!r} within {timeout:g} s"
            )
        if batch > 1:
            found += await self._take(self._consumer.fetch_no_wait(batch - 1), needed=False)
        return found

    async def _take(self, fetch: FetchBatch, *, needed: bool = True) -> list[Message]:
        try:
            async with fetch as batch:
                found = [message async for message in batch]
        except ConnectionError as exc:
            if not needed:
                return []
            raise FetchDisconnected(str(exc)) from exc
        if found or not needed or batch.error is None:
            return found
        if isinstance(batch.error, (ConnectionError, ConnectionClosed)):
            raise FetchDisconnected(str(batch.error)) from batch.error
        raise batch.error
