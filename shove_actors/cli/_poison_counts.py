"""How many keys of a FAIL_ALL topic are poisoned, for `top`, which asks again every second.

The number of messages in the bucket is no answer: a released key leaves a marker behind. So the
bucket is read, and again only after something was written to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shove_actors import PermissionDenied, TopicNotDeclared
from shove_actors.backends.nats._browse import next_messages
from shove_actors.jetstream import JetStream, header_value
from shove_actors.messaging import bucket_stream, poison_bucket

#: A bucket with more keys than this, released ones included, is not read.
MOST: Final = 10_000
_REMOVED: Final = (b"DEL", b"PURGE")


def bucket_of(queue: str) -> str:
    """The stream of a topic's bucket; only FAIL_ALL topics have one."""
    return bucket_stream(poison_bucket(queue))


class PoisonCounts:
    """Remembers what it has read."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._known: dict[str, tuple[object, int | None]] = {}

    async def of(self, bucket: str, info: Mapping[str, Any]) -> int | None:
        """`info`: of the bucket's stream, now. None: it may not be read, or is too large to be."""
        state = info["state"]
        messages, last = state.get("messages", 0), state.get("last_seq", 0)
        seen = info.get("created"), messages, last
        known = self._known.get(bucket)
        if known is not None and known[0] == seen:
            return known[1]
        count = None
        if messages <= MOST:
            try:
                count = await self._count(bucket, last) if messages else 0
            except PermissionDenied:
                pass
            except TopicNotDeclared:
                return None  # deleted a moment ago
        self._known[bucket] = seen, count
        return count

    async def _count(self, bucket: str, last: int) -> int:
        # The newest of each key counts, should the bucket keep more.
        found: dict[str, bool] = {}
        sequence = 1
        while sequence <= last and (batch := await next_messages(self._js, bucket, sequence)):
            for kept in batch:
                block = kept.raw_headers
                how = None if block is None else header_value(block, b"KV-Operation")
                found[kept.subject] = how not in _REMOVED
            sequence = batch[-1].sequence + 1
        return sum(found.values())
