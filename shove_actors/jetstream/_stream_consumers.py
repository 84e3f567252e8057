"""The consumers of one stream, as methods of its handle."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING

from ._consumer import ConsumerConfig
from ._consumer_handle import Consumer
from ._consumer_info import ConsumerInfo, PauseState
from ._lister import Lister
from ._push import PushConsumer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._consumer import ConsumerSettings
    from ._context import JetStream
    from ._ordered import OrderedConsumer, OrderedSettings


class StreamConsumers:
    """The part of `Stream` that is about its consumers. `_js` and `name` are the handle's.

    Each method is that of `JetStream` of the same name, for this stream; see there.
    """

    _js: JetStream
    name: str

    async def create_consumer(
        self, config: ConsumerConfig | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """Make a pull consumer; another one of that name raises `ConsumerExists`."""
        return await self._js.create_consumer(self.name, config, **settings)

    async def update_consumer(
        self, config: ConsumerConfig | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """Replace a pull consumer's whole configuration; `ConsumerDoesNotExist`."""
        return await self._js.update_consumer(self.name, config, **settings)

    async def create_or_update_consumer(
        self, config: ConsumerConfig | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """Make a pull consumer, or replace its whole configuration if it exists."""
        return await self._js.create_or_update_consumer(self.name, config, **settings)

    async def consumer(self, name: str) -> Consumer:
        """An existing pull consumer; `ConsumerNotFound`, `NotPullConsumer`."""
        return await self._js.consumer(self.name, name)

    async def create_push_consumer(
        self, config: ConsumerConfig | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> PushConsumer:
        """Make a push consumer; needs a `deliver_subject`."""
        return await self._js.create_push_consumer(self.name, config, **settings)

    async def update_push_consumer(
        self, config: ConsumerConfig | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> PushConsumer:
        """Replace a push consumer's whole configuration; `ConsumerDoesNotExist`."""
        return await self._js.update_push_consumer(self.name, config, **settings)

    async def create_or_update_push_consumer(
        self, config: ConsumerConfig | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> PushConsumer:
        """Make a push consumer, or replace its whole configuration if it exists."""
        return await self._js.create_or_update_push_consumer(self.name, config, **settings)

    async def push_consumer(self, name: str) -> PushConsumer:
        """An existing push consumer; `ConsumerNotFound`, `NotPushConsumer`."""
        return await self._js.push_consumer(self.name, name)

    def ordered_consumer(
        self, **settings: Unpack[OrderedSettings]
    ) -> AbstractAsyncContextManager[OrderedConsumer]:
        """Read this stream in order, each message once. See `OrderedConsumer`."""
        return self._js.ordered_consumer(self.name, **settings)

    async def consumer_info(self, name: str) -> ConsumerInfo:
        """Raises `ConsumerNotFound`."""
        return await self._js.consumer_info(self.name, name)

    def list_consumers(self) -> Lister[ConsumerInfo]:
        """Infos of all consumers."""
        return self._js.list_consumers(self.name)

    def consumer_names(self) -> Lister[str]:
        """Names of all consumers."""
        return self._js.consumer_names(self.name)

    async def delete_consumer(self, name: str) -> None:
        """Raises `ConsumerNotFound`."""
        await self._js.delete_consumer(self.name, name)

    async def pause_consumer(self, name: str, until: datetime) -> PauseState:
        """Deliver nothing until that moment (aware)."""
        return await self._js.pause_consumer(self.name, name, until)

    async def resume_consumer(self, name: str) -> PauseState:
        """Deliver again."""
        return await self._js.resume_consumer(self.name, name)

    async def reset_consumer(self, name: str, seq: int | None = None) -> int:
        """Start over behind the acknowledgement floor, or at `seq`."""
        return await self._js.reset_consumer(self.name, name, seq)

    async def unpin_consumer(self, name: str, group: str) -> None:
        """Free the pinned client of a priority group."""
        await self._js.unpin_consumer(self.name, name, group)
