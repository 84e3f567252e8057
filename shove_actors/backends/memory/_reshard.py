"""Shards of a stream of the model: what they are, who is told of a change, and the change."""

from __future__ import annotations

from collections.abc import Sequence

from shove_actors.messaging import Retention, ShardLayout, layout_of

from ._server import MemoryServer


class MemoryShards:
    """Satisfies `backends._reshard.Reshardable` for the main stream of `queue`."""

    def __init__(self, server: MemoryServer, queue: str) -> None:
        self._server = server
        self._queue = queue

    async def subjects(self) -> Sequence[str]:
        return self._server.require_stream(self._queue).settings.subjects

    async def bind(self, subjects: Sequence[str], *, resharded: bool = False) -> None:
        self._server.edit_stream(self._queue, subjects=tuple(subjects))
        if resharded:
            self._server.resharded.add(self._queue)
        for backend in self._server.backends.values():
            changed = backend.shard_watches.get(self._queue)
            if changed is not None:
                backend.link.deliver(changed)

    async def unsettled(self, shards: int) -> int:
        stream = self._server.require_stream(self._queue)
        self._server.advance()
        if stream.settings.retention is Retention.WORK_QUEUE or not stream.messages:
            return len(stream.messages)
        left = 0
        for shard in range(shards):
            durable = stream.durables.get(f"{self._queue}-shard-{shard}")
            # Nobody has ever read this shard: unknown is not zero.
            left += 1 if durable is None else durable.unread + len(durable.pending)
        return left

    async def delete_durables(self, beyond: int) -> int:
        prefix = f"{self._queue}-shard-"
        surplus = [
            name
            for name in self._server.require_stream(self._queue).durables
            if (number := name.removeprefix(prefix)) != name
            and number.isdecimal()
            and int(number) >= beyond
        ]
        for name in surplus:
            self._server.delete_durable(self._queue, name)
        return len(surplus)


def layout(server: MemoryServer, queue: str) -> ShardLayout:
    return layout_of(queue, server.require_stream(queue).settings.subjects)
