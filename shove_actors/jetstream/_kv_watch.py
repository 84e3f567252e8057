"""Many keys: watching, listing, history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from shove_actors._errors import InvalidOption, KeyNotFound

from ._block import block
from ._kv_core import KeyValueCore
from ._kv_entry import KeyValueEntry, entry_reader
from ._options import check_count, check_flag, check_seconds
from ._ordered_push import OrderedRequest
from ._ordered_tracker import DeliverPolicy
from ._store_errors import bucket_errors
from ._store_names import check_key, check_pattern
from ._store_watcher import Watcher, watching

#: As in other clients. A push consumer that vanishes says nothing, so two of these it takes.
HEARTBEAT = 5.0


class KeyValueWatch(KeyValueCore):
    """The part of `KeyValue` that reads many keys."""

    def watch(
        self,
        *patterns: str,
        include_history: bool = False,
        ignore_deletes: bool = False,
        updates_only: bool = False,
        meta_only: bool = False,
        resume_from: int | None = None,
        idle_heartbeat: float = HEARTBEAT,
    ) -> AbstractAsyncContextManager[Watcher[KeyValueEntry]]:
        """Changes of the keys that match one of the patterns (of all keys without one).

            async with kv.watch("orders.*") as watcher:
                async for entry in watcher:
                    if entry is None:
                        print("that is what there was")
                    else:
                        print(entry.key, entry.value)

        First the newest revision of each key, in the order of revisions, then None, then every
        change, markers included. Patterns: `*` for one word, `>` for the rest. Several at once
        need nats-server 2.10 and must not overlap (`FilterError`).

        * `include_history`: first all kept revisions.
        * `updates_only`: nothing but what happens from now on, and no None.
        * `resume_from`: every kept revision from that one on.
        * `ignore_deletes`: no markers. `meta_only`: no values.
        * `idle_heartbeat`: seconds. A consumer that the server has lost is noticed after two.

        These three exclude each other: `include_history`, `updates_only`, `resume_from`. Raises
        `InvalidOption`, `InvalidKey`; entering: `BucketNotFound`, `ApiError`, `RequestTimeout`.
        """
        for name, flag in (
            ("include_history", include_history),
            ("ignore_deletes", ignore_deletes),
            ("updates_only", updates_only),
            ("meta_only", meta_only),
        ):
            check_flag(name, flag)
        chosen = [
            name
            for name, value in (
                ("include_history", include_history),
                ("updates_only", updates_only),
                ("resume_from", resume_from is not None),
            )
            if value
        ]
        if len(chosen) > 1:
            raise InvalidOption(f"{' and '.join(chosen)} exclude each other; give one of them")
        policy: DeliverPolicy = "last_per_subject"
        if include_history:
            policy = "all"
        elif updates_only:
            policy = "new"
        elif resume_from is not None:
            policy = "by_start_sequence"
            check_count("resume_from", resume_from)
        check_seconds("idle_heartbeat", idle_heartbeat, least=0.1)
        request = OrderedRequest(
            stream=self._stream,
            filters=tuple(self._read_prefix + check_pattern(p) for p in patterns or (">",)),
            policy=policy,
            start=resume_from or 0,
            headers_only=meta_only,
            heartbeat=idle_heartbeat,
            mark=not updates_only,
        )
        return self._watching(request, ignore_deletes)

    @block(Watcher, "watch(...)")
    async def _watching(
        self, request: OrderedRequest, ignore_deletes: bool
    ) -> AsyncIterator[Watcher[KeyValueEntry]]:
        read = entry_reader(self.bucket, self._read_prefix, ignore_deletes=ignore_deletes)
        async with watching(self._js, request, read, bucket_errors(self.bucket)) as watcher:
            yield watcher

    async def keys(self, *patterns: str) -> list[str]:
        """The keys that have a value (and match one of the patterns), sorted. May be empty."""
        async with self.watch(*patterns, ignore_deletes=True, meta_only=True) as watcher:
            return sorted({entry.key for entry in await watcher.initial()})

    def list_keys(self, *patterns: str) -> AbstractAsyncContextManager[KeyLister]:
        """As `keys`, but as they come, for buckets with very many.

            async with kv.list_keys("orders.>") as keys:
                async for key in keys:
                    print(key)

        In no order; a key that is written meanwhile may come twice.
        """
        return self._listing(self.watch(*patterns, ignore_deletes=True, meta_only=True))

    @asynccontextmanager
    async def _listing(
        self, watch: AbstractAsyncContextManager[Watcher[KeyValueEntry]]
    ) -> AsyncIterator[KeyLister]:
        async with watch as watcher:
            yield KeyLister(watcher)

    async def history(self, key: str) -> list[KeyValueEntry]:
        """All kept revisions of a key, oldest first, markers included. Raises `KeyNotFound`."""
        async with self.watch(check_key(key), include_history=True) as watcher:
            found = await watcher.initial()
        if not found:
            raise KeyNotFound(f"{self.bucket}/{key} has no revision")
        return found


class KeyLister(trio.abc.ReceiveChannel[str]):
    """Keys as they come; ends behind the last one that was there at the start."""

    def __init__(self, watcher: Watcher[KeyValueEntry]) -> None:
        self._watcher = watcher

    async def receive(self) -> str:
        """The next key. Raises `trio.EndOfChannel` after the last one."""
        return self._key(await self._watcher.receive())

    def receive_nowait(self) -> str:
        """The next key if it has arrived. Raises `trio.WouldBlock`, `trio.EndOfChannel`."""
        return self._key(self._watcher.receive_nowait())

    def _key(self, entry: KeyValueEntry | None) -> str:
        if entry is None:
            self._watcher.stop()
            raise trio.EndOfChannel
        return entry.key

    async def aclose(self) -> None:
        await self._watcher.aclose()
