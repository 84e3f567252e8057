"""Watching and listing the objects of a bucket: their descriptions, never their content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from shove_actors._errors import BadObjectMeta

from ._block import block
from ._object_core import ObjectStoreCore
from ._object_info import ObjectInfo
from ._options import check_flag, check_seconds
from ._ordered_buffer import Pushed
from ._ordered_push import OrderedRequest
from ._store_errors import bucket_errors
from ._store_watcher import Watcher, watching
from ._times import datetime_of_ns

_HEARTBEAT = 5.0


class ObjectStoreWatch(ObjectStoreCore):
    """The part of `ObjectStore` that looks at all objects."""

    def watch(
        self,
        *,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        idle_heartbeat: float = _HEARTBEAT,
    ) -> AbstractAsyncContextManager[Watcher[ObjectInfo]]:
        """Descriptions of the bucket's objects: first what is there, then None, then changes.

            async with store.watch() as watcher:
                async for info in watcher:
                    if info is not None:
                        print(info.name, info.size)

        Deleted objects come too, unless `ignore_deletes`. With `updates_only` only what happens
        from now on, and no None. There is no history to include: the bucket keeps one description
        per object. `idle_heartbeat` as in `KeyValue.watch`.
        """
        check_flag("ignore_deletes", ignore_deletes)
        check_flag("updates_only", updates_only)
        check_seconds("idle_heartbeat", idle_heartbeat, least=0.1)
        request = OrderedRequest(
            stream=self._stream,
            filters=(self._meta_prefix + ">",),
            policy="new" if updates_only else "last_per_subject",
            heartbeat=idle_heartbeat,
            mark=not updates_only,
        )
        return self._watching(request, ignore_deletes)

    @block(Watcher, "watch(...)")
    async def _watching(
        self, request: OrderedRequest, ignore_deletes: bool
    ) -> AsyncIterator[Watcher[ObjectInfo]]:
        def read(message: Pushed) -> ObjectInfo | None:
            try:
                info = ObjectInfo.read(
                    message.payload,
                    modified=datetime_of_ns(message.time_ns),
                    revision=message.sequence,
                )
            except BadObjectMeta:
                return None  # somebody else's message below our subjects
            return None if ignore_deletes and info.deleted else info

        async with watching(self._js, request, read, bucket_errors(self.bucket)) as watcher:
            yield watcher

    async def list(self, *, show_deleted: bool = False) -> list[ObjectInfo]:
        """The objects, in the order in which their descriptions were stored. May be empty."""
        check_flag("show_deleted", show_deleted)
        async with self.watch(ignore_deletes=not show_deleted) as watcher:
            return await watcher.initial()
