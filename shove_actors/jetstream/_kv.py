"""Key-value buckets."""

from __future__ import annotations

import trio

from ._kv_status import KeyValueStatus
from ._kv_values import KeyValueValues
from ._kv_watch import KeyValueWatch
from ._options import check_seconds
from ._store_errors import of_bucket

_NS = 1_000_000_000
#: Markers that are younger stay for those who have been away for a while.
KEEP_MARKERS = 1800.0


class KeyValue(KeyValueValues, KeyValueWatch):
    """A key-value bucket: keys are strings, values bytes. Made by `JetStream.kv` and its like.

        kv = await js.create_kv(bucket="settings", history=5)
        revision = await kv.put("colour", "blue")
        await kv.update("colour", "green", revision)
        print((await kv.get("colour")).value)

    Every call is one request, or a few, each bounded by the context's time-out. Errors: the ones
    named at the calls (`KvError`), `ApiError` and its subclasses, `RequestTimeout`,
    `ConnectionError`. Keys: letters, digits, `- / _ = .`, no dot at either end (`InvalidKey`).
    """

    async def purge_deletes(self, *, older_than: float | None = KEEP_MARKERS) -> int:
        """Remove deleted and purged keys for good. Returns how many messages were removed.

        Of markers younger than `older_than` seconds (by the server's clock) only the history is
        removed; None removes all. What is written meanwhile is not touched.
        """
        if older_than is not None and older_than != 0:
            check_seconds("older_than", older_than)
        async with self.watch(meta_only=True) as watcher:
            markers = [entry for entry in await watcher.initial() if entry.is_marker]
        limit = self._js.clock.now_ns() / _NS - (older_than or 0.0)
        removed = 0
        for marker in markers:
            young = older_than is not None and marker.created.timestamp() > limit
            # By sequence: a value that was written since then survives.
            removed += await self._js.purge_stream(
                self._stream,
                subject=self._read_prefix + marker.key,
                before=marker.revision + (0 if young else 1),
            )
        await trio.lowlevel.checkpoint()
        return removed

    async def status(self) -> KeyValueStatus:
        """The bucket's settings and size, asked for now. Raises `BucketNotFound`."""
        with of_bucket(self.bucket):
            return KeyValueStatus.read(await self._js.stream_info(self._stream))
