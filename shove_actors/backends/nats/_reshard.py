"""Shards of a stream on a real server: what they are, who is told of a change, and the change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shove_actors._errors import ConsumerNotFound, StreamNotFound, TopicNotDeclared
from shove_actors.jetstream import Connection, JetStream, StreamInfo
from shove_actors.messaging import RESHARDED, ShardLayout, layout_of


class NatsShards:
    """Satisfies `backends._reshard.Reshardable` for the main stream of `queue`."""

    def __init__(self, js: JetStream, queue: str) -> None:
        self._js = js
        self._queue = queue

    async def _info(self) -> StreamInfo:
        try:
            return await self._js.stream_info(self._queue)
        except StreamNotFound as exc:
            raise TopicNotDeclared(f"there is no stream {self._queue!r}; declare it first") from exc

    async def subjects(self) -> Sequence[str]:
        return (await self._info()).config.subjects

    async def bind(self, subjects: Sequence[str], *, resharded: bool = False) -> None:
        config = (await self._info()).config
        metadata = dict(config.metadata or {})
        if resharded:
            metadata[RESHARDED] = str(len(subjects))
        await self._js.update_stream(
            replace(config, subjects=tuple(subjects), metadata=metadata or None)
        )

    async def unsettled(self, shards: int) -> int:
        info = await self._info()
        if info.config.retention == "workqueue" or not info.messages:
            return info.messages
        left = 0
        for shard in range(shards):
            try:
                durable = await self._js.consumer_info(self._queue, f"{self._queue}-shard-{shard}")
            except ConsumerNotFound:
                left += 1  # nobody has ever read this shard: unknown is not zero
            else:
                left += durable.num_pending + durable.num_ack_pending
        return left

    async def delete_durables(self, beyond: int) -> int:
        prefix = f"{self._queue}-shard-"
        found = [
            info.name
            async for info in self._js.list_consumers(self._queue)
            if info.name.startswith(prefix)
        ]
        surplus = [
            name
            for name in found
            if (number := name.removeprefix(prefix)).isdecimal() and int(number) >= beyond
        ]
        for name in surplus:
            try:
                await self._js.delete_consumer(self._queue, name)
            except ConsumerNotFound:
                pass  # somebody else does the same
        return len(surplus)


class ShardWatch:
    """Tells publishers when what they know of a stream's shards may not hold any more."""

    def __init__(self, connection: Connection, js: JetStream) -> None:
        self._connection = connection
        self._js = js
        self._told: dict[str, Callable[[], None]] = {}

    async def layout(self, queue: str, changed: Callable[[], None]) -> ShardLayout:
        """See `Backend.shard_layout`."""
        if queue not in self._told:
            # Before looking, so that no change falls between the two.
            self._connection.subscribe(
                f"$JS.EVENT.ADVISORY.STREAM.UPDATED.{queue}".encode(),
                lambda subject, reply, headers, payload: self._told[queue](),
            )
        self._told[queue] = changed
        try:
            info = await self._js.stream_info(queue)
        except StreamNotFound as exc:
            raise TopicNotDeclared(
                f"there is no stream {queue!r}; call `await broker.declare(topic)`"
            ) from exc
        return layout_of(queue, info.config.subjects)

    def disconnected(self) -> None:
        """What is announced meanwhile is not heard."""
        for changed in list(self._told.values()):
            changed()
