"""Consumers, by the names of their streams.

Two layers. Methods that give a `Consumer` or a `PushConsumer` are for applications. `consumer_info`
and `delete_consumer` take names and are one request each.
"""

from __future__ import annotations

import secrets
import string
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from shove_actors._errors import InvalidOption, NotPullConsumer, NotPushConsumer

from ._consumer import ConsumerConfig
from ._consumer_handle import Consumer
from ._consumer_info import ConsumerInfo, PauseState
from ._context_core import ContextCore
from ._lister import Lister
from ._options import check_count, check_kind, check_text
from ._push import PushConsumer
from ._times import from_datetime
from ._wire import check_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._consumer import ConsumerSettings
    from ._context import JetStream
    from ._ordered import OrderedConsumer, OrderedSettings

_LETTERS = string.ascii_letters + string.digits


class ConsumersApi(ContextCore):
    """The part of `JetStream` that is about consumers."""

    # ------------------------------------------------------------------ handles

    async def create_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        /,
        *,
        action: str | None = "create",
        **settings: Unpack[ConsumerSettings],
    ) -> Consumer:
        """Make a pull consumer. Settings may come as a `ConsumerConfig`, as keywords, or both.

            consumer = await js.create_consumer("ORDERS", durable_name="billing")

        Idempotent for an equal configuration; a consumer of that name with another one raises
        `ConsumerExists`. Without a name it gets one of eight random characters. Other errors:
        `StreamNotFound`, `FilterError`, `MaxConsumersReached`, `ApiError`; `InvalidOption` for a
        push consumer's settings.

        `action`: "create", "update", or None for either. It needs nats-server 2.10; an older server
        does not know it and treats every call as create-or-update.
        """
        wanted = _merged(config, settings)
        if wanted.deliver_subject:
            raise InvalidOption("deliver_subject makes a push consumer; use create_push_consumer")
        return Consumer(self._js, await self.put_consumer(stream, wanted, action))

    async def update_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        /,
        **settings: Unpack[ConsumerSettings],
    ) -> Consumer:
        """Replace a pull consumer's whole configuration: what is left out returns to its default.

        Start from `consumer.config` to keep the rest. Raises `ConsumerDoesNotExist` for a missing
        one, `ConsumerCreateFailed` for a change that cannot be made.
        """
        return await self.create_consumer(stream, config, action="update", **settings)

    async def create_or_update_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        /,
        **settings: Unpack[ConsumerSettings],
    ) -> Consumer:
        """Make a pull consumer, or replace its whole configuration if it exists."""
        return await self.create_consumer(stream, config, action=None, **settings)

    async def consumer(self, stream: str, name: str) -> Consumer:
        """The handle of an existing pull consumer. Raises `ConsumerNotFound`, `NotPullConsumer`."""
        info = await self.consumer_info(stream, name)
        if info.config.deliver_subject:
            raise NotPullConsumer(
                f"consumer {name} of stream {stream} is a push consumer; use push_consumer"
            )
        return Consumer(self._js, info)

    async def create_push_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        /,
        *,
        action: str | None = "create",
        **settings: Unpack[ConsumerSettings],
    ) -> PushConsumer:
        """Make a push consumer, which needs a `deliver_subject`. See `create_consumer`.

        With `deliver_group` its readers share the messages. `flow_control` needs `idle_heartbeat`.
        """
        wanted = _merged(config, settings)
        if not wanted.deliver_subject:
            raise NotPushConsumer("a push consumer needs a deliver_subject, such as an inbox")
        return PushConsumer(self._js, await self.put_consumer(stream, wanted, action))

    async def update_push_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        /,
        **settings: Unpack[ConsumerSettings],
    ) -> PushConsumer:
        """As `update_consumer`."""
        return await self.create_push_consumer(stream, config, action="update", **settings)

    async def create_or_update_push_consumer(
        self,
        stream: str,
        config: ConsumerConfig | None = None,
        /,
        **settings: Unpack[ConsumerSettings],
    ) -> PushConsumer:
        """As `create_or_update_consumer`."""
        return await self.create_push_consumer(stream, config, action=None, **settings)

    async def push_consumer(self, stream: str, name: str) -> PushConsumer:
        """The handle of an existing push consumer. Raises `ConsumerNotFound`,
        `NotPushConsumer`."""
        info = await self.consumer_info(stream, name)
        if not info.config.deliver_subject:
            raise NotPushConsumer(f"consumer {name} of stream {stream} is a pull consumer")
        return PushConsumer(self._js, info)

    def ordered_consumer(
        self, stream: str, /, **settings: Unpack[OrderedSettings]
    ) -> AbstractAsyncContextManager[OrderedConsumer]:
        """Read a stream in order, each message once, whatever happens on the way.

            async with js.ordered_consumer("ORDERS", filter_subjects=["ORDERS.new"]) as ordered:
                async with ordered.messages() as messages:
                    async for message in messages:
                        print(message.metadata.stream_sequence)

        Nothing is acknowledged. See `OrderedConsumer`.
        """
        from ._ordered import ordered_consumer

        check_name(stream, "stream")
        return ordered_consumer(self._js, stream, settings)

    # ------------------------------------------------------------------ by name

    async def put_consumer(
        self, stream: str, config: ConsumerConfig, action: str | None = None
    ) -> ConsumerInfo:
        """The request behind all of these: pull or push, made or changed."""
        check_kind("config", config, ConsumerConfig, "a ConsumerConfig")
        if action not in (None, "create", "update"):
            raise InvalidOption(f"action is {action!r}; give 'create', 'update' or None")
        name = config.name or config.durable_name or _random_name()
        check_name(stream, "stream")
        check_name(name, "consumer")
        body: dict[str, Any] = {"stream_name": stream, "config": config.wire()}
        if config.name is None and config.durable_name is None:
            body["config"]["name"] = name
        if action is not None:
            body["action"] = action
        op = f"CONSUMER.CREATE.{stream}.{name}"
        if config.filter_subject and not config.filter_subjects:
            op += f".{config.filter_subject}"
        return ConsumerInfo.read(await self.call(op, body))

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        """Raises `ConsumerNotFound`, `StreamNotFound`."""
        check_name(stream, "stream")
        check_name(name, "consumer")
        return ConsumerInfo.read(await self.call(f"CONSUMER.INFO.{stream}.{name}"))

    def list_consumers(self, stream: str) -> Lister[ConsumerInfo]:
        """Infos of all consumers of a stream, page by page of 256."""
        check_name(stream, "stream")

        async def page(offset: int) -> tuple[list[ConsumerInfo], int, int]:
            answer = await self.call(f"CONSUMER.LIST.{stream}", {"offset": offset})
            found = [ConsumerInfo.read(raw) for raw in answer.get("consumers") or ()]
            return found, len(found), answer.get("total", 0)

        return Lister(page)

    def consumer_names(self, stream: str) -> Lister[str]:
        """Names of all consumers of a stream, page by page of 1024."""
        check_name(stream, "stream")

        async def page(offset: int) -> tuple[list[str], int, int]:
            answer = await self.call(f"CONSUMER.NAMES.{stream}", {"offset": offset})
            found = list(answer.get("consumers") or ())
            return found, len(found), answer.get("total", 0)

        return Lister(page)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Raises `ConsumerNotFound`. Whoever reads it gets `ConsumerDeleted`."""
        check_name(stream, "stream")
        check_name(name, "consumer")
        await self.call(f"CONSUMER.DELETE.{stream}.{name}")

    async def pause_consumer(self, stream: str, name: str, until: datetime) -> PauseState:
        """Deliver nothing until that moment (aware). A moment in the past resumes.

        Needs nats-server 2.11. Raises `ConsumerNotFound`.
        """
        check_kind("until", until, datetime, "an aware datetime")
        return await self._pause(stream, name, {"pause_until": from_datetime(until)})

    async def resume_consumer(self, stream: str, name: str) -> PauseState:
        """Deliver again. Nothing happens when it does not pause."""
        return await self._pause(stream, name, {})

    async def _pause(self, stream: str, name: str, body: dict[str, Any]) -> PauseState:
        check_name(stream, "stream")
        check_name(name, "consumer")
        return PauseState.read(await self.call(f"CONSUMER.PAUSE.{stream}.{name}", body))

    async def reset_consumer(self, stream: str, name: str, seq: int | None = None) -> int:
        """Deliver again everything that is not acknowledged, from the acknowledgement floor on,
        or from `seq` on. Returns the sequence it starts with.

        Raises `ConsumerInvalidReset` when the deliver policy forbids that sequence,
        `ConsumerNotFound` (looked up first: the server does not answer for a missing one).
        Needs nats-server 2.14.
        """
        if seq is not None:
            check_count("seq", seq)
        await self.consumer_info(stream, name)
        body = {} if seq is None else {"seq": seq}
        answer = await self.call(f"CONSUMER.RESET.{stream}.{name}", body)
        return int(answer.get("reset_seq", 0))

    async def unpin_consumer(self, stream: str, name: str, group: str) -> None:
        """Free the pinned client of a priority group: another one gets its turn.

        An unknown group is an `ApiError` (10160). Needs nats-server 2.11.
        """
        check_name(stream, "stream")
        check_name(name, "consumer")
        check_text("group", group, empty=False)
        await self.call(f"CONSUMER.UNPIN.{stream}.{name}", {"group": group})

    @property
    def _js(self) -> JetStream:
        return cast("JetStream", self)


def _merged(config: ConsumerConfig | None, settings: ConsumerSettings) -> ConsumerConfig:
    if config is None:
        config = ConsumerConfig()
    check_kind("config", config, ConsumerConfig, "a ConsumerConfig, or keywords such as name=")
    return replace(config, **settings) if settings else config  # type: ignore[arg-type]


def _random_name() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(8))
