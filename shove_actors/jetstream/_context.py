"""The JetStream context: streams, consumers, publishing and stores over one connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import UsageError
from shove_actors._groups import unwrapped

from ._connection import Connection
from ._context_consumers import ConsumersApi
from ._context_options import JetStreamOptions, TraceHook
from ._context_publish import PublishApi
from ._context_stores import StoresApi
from ._context_streams import StreamsApi

if TYPE_CHECKING:
    from ._pub_ack import PubAck
    from ._publish_future import PublishFuture


class JetStream(StreamsApi, ConsumersApi, PublishApi, StoresApi):
    """JetStream over a connection: streams, consumers, publishing, stores.

        async with jetstream.connect("nats://localhost:4222") as js:
            await js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
            ack = await js.publish("ORDERS.new", b"hello")

    `connect` makes one. To have several over one connection, make them by hand, each in an
    `async with`; leaving it fails the asynchronous publishes that are still outstanding
    (`PublisherClosed`). Without `async with`, everything but `publish_async` works.

    Options: see `JetStreamOptions`. `InvalidOption` for contradictory ones. An API request takes
    `timeout` seconds at most, less if the caller's scope ends earlier.
    Errors: `ApiError` and its subclasses for what the server refuses, `JetStreamNotEnabled` when
    nobody answers for JetStream, `RequestTimeout`, `ConnectionError`. Cancelling a call may leave
    it carried out.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str | None = None,
        api_prefix: str | None = None,
        timeout: float | None = None,
        on_request: TraceHook | None = None,
        on_response: TraceHook | None = None,
        publish_async_max_pending: int = 4000,
        publish_ack_timeout: float | None = None,
        on_publish_error: Callable[[PublishFuture, Exception], object] | None = None,
        on_publish_ack: Callable[[PublishFuture, PubAck], object] | None = None,
    ) -> None:
        super().__init__(
            connection,
            JetStreamOptions(
                domain=domain,
                api_prefix=api_prefix,
                timeout=timeout,
                on_request=on_request,
                on_response=on_response,
                publish_async_max_pending=publish_async_max_pending,
                publish_ack_timeout=publish_ack_timeout,
                on_publish_error=on_publish_error,
                on_publish_ack=on_publish_ack,
            ),
        )

    async def __aenter__(self) -> JetStream:
        if self._entered:
            raise UsageError("this JetStream context is entered already")
        self._block = self._open()
        await self._block.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._block.__aexit__(kind, exc, traceback)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        # What the block raises leaves it as it is; the nursery is nobody's business.
        with unwrapped(layers=1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._publisher.run)
                self._entered = True
                try:
                    yield
                finally:
                    self._entered = False
                    self._publisher.fail_all("the JetStream context was left")
                    nursery.cancel_scope.cancel()
