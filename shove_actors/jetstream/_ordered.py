"""Ordered consumers: a stream in order, each message once, nothing to acknowledge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

from shove_actors._errors import AlreadyConsuming, FetchTimeout

from ._block import Block, block
from ._consume import Consuming, Handler, check_handler, consuming
from ._consumer_info import ConsumerInfo
from ._fetch import MAX_WAIT_S, FetchBatch, FetchOptions, fetch_options, no_wait_options
from ._message import Message
from ._messages import MessageIterator, reading
from ._ordered_source import OrderedSource
from ._ordered_state import OrderedSettings as OrderedSettings
from ._ordered_state import OrderedState
from ._pull_options import ReadingSettings, reading_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._context import JetStream

#: The interval of heartbeats that continuous reading asks for.
HEARTBEAT_S = 5.0

_Reading = TypeVar("_Reading")


class OrderedConsumer:
    """A stream's messages in order. Made by `ordered_consumer`, used within its block.

    Behind it is a consumer in the server's memory, which is replaced whenever something may have
    been lost; the next one starts behind the last message that was read. `messages`, `consume`,
    `fetch` and `next` go on where the last of them ended; one of them at a time
    (`AlreadyConsuming`). Each `fetch` makes a consumer of its own.

    With `deliver_policy="last_per_subject"` a replacement before everything was read goes on by
    sequence, so revisions in between may appear.
    """

    def __init__(self, state: OrderedState) -> None:
        self._state = state
        self._busy = False

    def __repr__(self) -> str:
        return f"<OrderedConsumer of stream {self._state.stream}>"

    @property
    def cached_info(self) -> ConsumerInfo:
        """Of the present consumer, when it was made."""
        assert self._state.info is not None
        return self._state.info

    async def info(self) -> ConsumerInfo:
        """Ask the server about the present consumer. Raises `ConsumerNotFound`."""
        return await self._state.js.consumer_info(self._state.stream, self._state.name)

    def messages(
        self, **settings: Unpack[ReadingSettings]
    ) -> AbstractAsyncContextManager[MessageIterator]:
        """As `Consumer.messages`; `heartbeat` is 5 s. Errors that another consumer cannot mend
        (`StreamNotFound`, `ConnectionClosed`, ...) are raised when reading."""
        return self._alone(reading(self._source(settings), eager=True))

    def consume(
        self, handler: Handler, **settings: Unpack[ReadingSettings]
    ) -> AbstractAsyncContextManager[Consuming]:
        """As `Consumer.consume`; see `messages`."""
        check_handler(handler)
        return self._alone(consuming(self._source(settings), handler))

    def fetch(
        self,
        count: int | None = None,
        *,
        max_bytes: int | None = None,
        max_wait: float = MAX_WAIT_S,
        heartbeat: float | None = None,
    ) -> AbstractAsyncContextManager[FetchBatch]:
        """As `Consumer.fetch`."""
        options = fetch_options(count, max_bytes=max_bytes, max_wait=max_wait, heartbeat=heartbeat)
        return self._alone(self._fetching(options))

    def fetch_no_wait(self, count: int) -> AbstractAsyncContextManager[FetchBatch]:
        """As `Consumer.fetch_no_wait`."""
        return self._alone(self._fetching(no_wait_options(count)))

    async def next(self, max_wait: float = MAX_WAIT_S) -> Message:
        """The next message. Raises `FetchTimeout`, or what `fetch` ended with."""
        asked_at = trio.current_time()
        async with self.fetch(1, max_wait=max_wait) as batch:
            async for message in batch:
                return message
        if batch.error is not None:
            raise batch.error
        # Cut short by a nearer deadline of the caller's: that one is to be heard.
        if trio.current_effective_deadline() < asked_at + max_wait:
            await trio.sleep_until(trio.current_effective_deadline())
        raise FetchTimeout(f"no message from {self._state.label} within {max_wait:g} s")

    def _source(self, settings: ReadingSettings) -> OrderedSource:
        options = reading_options(ReadingSettings, settings, default_heartbeat=HEARTBEAT_S)
        return OrderedSource(self._state, options, on_error=settings.get("on_error"))

    @block(FetchBatch, "fetch(...)")
    async def _fetching(self, options: FetchOptions) -> AsyncIterator[FetchBatch]:
        state = self._state
        if not state.fresh:
            old = state.name
            await state.create()
            await state.delete(old)
        state.fresh = False
        batch = FetchBatch(
            state.js.connection,
            state.next_subject,
            options,
            name=state.label,
            pins={},
            on_taken=state.accept,
        )
        async with batch:
            yield batch

    def _alone(self, reading: Block[_Reading]) -> Block[_Reading]:
        return reading.within(self._one_at_a_time)

    @asynccontextmanager
    async def _one_at_a_time(self, reading: Block[_Reading]) -> AsyncIterator[_Reading]:
        if self._busy:
            raise AlreadyConsuming(f"{self!r} is being read already; one reading at a time")
        self._busy = True
        try:
            async with reading as found:
                yield found
        finally:
            self._busy = False


@block(OrderedConsumer, "ordered_consumer(...)")
async def ordered_consumer(
    js: JetStream, stream: str, settings: OrderedSettings
) -> AsyncIterator[OrderedConsumer]:
    """The block: the first consumer exists when it is entered, none when it is left.

    Raises `InvalidOption`, `StreamNotFound`, `FilterError` and what else refuses the consumer.
    """
    state = OrderedState(js, stream, settings)
    await state.create()
    try:
        yield OrderedConsumer(state)
    finally:
        with trio.CancelScope(shield=True):
            await state.delete(state.name)
