"""Consumers, by the names of their streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from ._consumer import ConsumerConfig, ConsumerInfo
from ._context_core import ContextCore
from ._wire import check_name


class ConsumersApi(ContextCore):
    """The part of `JetStream` that is about consumers."""

    async def create_consumer(
        self, stream: str, config: ConsumerConfig, *, action: str | None = "create"
    ) -> ConsumerInfo:
        """`action`: "create", "update", or None for create-or-update.

        The action needs nats-server 2.10; an older server does not know it and treats every
        call as create-or-update.
        """
        name = config.name or config.durable_name
        check_name(stream, "stream")
        check_name(name or "", "consumer")
        body: dict[str, Any] = {"stream_name": stream, "config": config.wire()}
        if action is not None:
            body["action"] = action
        op = f"CONSUMER.CREATE.{stream}.{name}"
        if config.filter_subject:
            op += f".{config.filter_subject}"
        return ConsumerInfo.read(await self.call(op, body))

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        check_name(stream, "stream")
        check_name(name, "consumer")
        return ConsumerInfo.read(await self.call(f"CONSUMER.INFO.{stream}.{name}"))

    async def list_consumers(self, stream: str) -> AsyncGenerator[ConsumerInfo, None]:
        """Infos of all consumers of a stream, page by page (256 each)."""
        check_name(stream, "stream")
        offset = 0
        while True:
            page = await self.call(f"CONSUMER.LIST.{stream}", {"offset": offset})
            found = page.get("consumers") or []
            for raw in found:
                yield ConsumerInfo.read(raw)
            offset += len(found)
            if not found or offset >= page.get("total", 0):
                return

    async def delete_consumer(self, stream: str, name: str) -> None:
        check_name(stream, "stream")
        check_name(name, "consumer")
        await self.call(f"CONSUMER.DELETE.{stream}.{name}")

    async def pause_consumer(self, stream: str, name: str, until: str) -> None:
        check_name(stream, "stream")
        check_name(name, "consumer")
        await self.call(f"CONSUMER.PAUSE.{stream}.{name}", {"pause_until": until})
