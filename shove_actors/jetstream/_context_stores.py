"""Key-value buckets and object stores: making, finding, listing, deleting them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from shove_actors._errors import (
    BadBucket,
    BucketExists,
    InvalidOption,
    MarkerTtlNotSupported,
    StreamNameInUse,
)

from ._context_core import ContextCore
from ._kv import KeyValue
from ._kv_config import KeyValueConfig, is_older_form
from ._kv_status import KeyValueStatus
from ._lister import Lister
from ._object_config import ObjectStoreConfig
from ._object_status import ObjectStoreStatus
from ._object_store import ObjectStore
from ._options import check_kind
from ._store_errors import of_bucket
from ._store_names import KV_STREAM, OBJECT_STREAM, kv_stream, object_stream
from ._stream_info import StreamInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

    from ._context import JetStream
    from ._kv_config import KeyValueSettings
    from ._object_config import ObjectStoreSettings

T = TypeVar("T")
#: What all buckets of a kind have in common, to find their streams by.
_ALL_KV, _ALL_OBJECTS = "$KV.*.>", "$O.*.C.>"


class StoresApi(ContextCore):
    """The part of `JetStream` that opens key-value buckets and object stores."""

    # ------------------------------------------------------------------ key-value

    async def create_kv(
        self, config: KeyValueConfig | None = None, /, **settings: Unpack[KeyValueSettings]
    ) -> KeyValue:
        """Make a key-value bucket. Settings may come as a `KeyValueConfig`, as keywords, or both.

            kv = await js.create_kv(bucket="settings", history=5)

        Idempotent for equal settings, also when another client has made the bucket; with others it
        raises `BucketExists`. `MarkerTtlNotSupported`: `limit_marker_ttl` on an older server.
        """
        wanted = await self._kv_config(config, settings)
        stream = wanted.stream()
        try:
            return self._kv((await self._js.create_stream(stream)).cached_info)
        except StreamNameInUse as exc:
            existing = await self._js.stream_info(stream.name)
            if is_older_form(existing.config, stream):
                return self._kv((await self._js.update_stream(stream)).cached_info)
            raise BucketExists(
                f"bucket {wanted.bucket!r} exists with other settings; use create_or_update_kv to "
                "change it, or kv to open it as it is"
            ) from exc

    async def update_kv(
        self, config: KeyValueConfig | None = None, /, **settings: Unpack[KeyValueSettings]
    ) -> KeyValue:
        """Replace all settings of a bucket; what is left out returns to its default. Start from
        `(await kv.status()).config`. Raises `BucketNotFound`."""
        wanted = await self._kv_config(config, settings)
        with of_bucket(wanted.bucket):
            return self._kv((await self._js.update_stream(wanted.stream())).cached_info)

    async def create_or_update_kv(
        self, config: KeyValueConfig | None = None, /, **settings: Unpack[KeyValueSettings]
    ) -> KeyValue:
        """`update_kv`, or `create_kv` when there is none yet."""
        wanted = await self._kv_config(config, settings)
        stream = await self._js.create_or_update_stream(wanted.stream())
        return self._kv(stream.cached_info)

    async def kv(self, bucket: str) -> KeyValue:
        """An existing bucket. Raises `BucketNotFound`, `BadBucket`."""
        with of_bucket(bucket):
            info = await self._js.stream_info(kv_stream(bucket))
        KeyValueConfig.of_stream(info.config)
        return self._kv(info)

    async def delete_kv(self, bucket: str) -> None:
        """With everything in it. Raises `BucketNotFound`."""
        with of_bucket(bucket):
            await self._js.delete_stream(kv_stream(bucket))

    def kv_names(self) -> Lister[str]:
        """Names of all key-value buckets. Mirrors are not among them: they have no subjects."""
        return self._bucket_names(_ALL_KV, KV_STREAM)

    def kv_statuses(self) -> Lister[KeyValueStatus]:
        """As `kv_names`, with what `KeyValue.status` tells."""
        return self._buckets(_ALL_KV, KeyValueStatus.read)

    async def _kv_config(
        self, config: KeyValueConfig | None, settings: KeyValueSettings
    ) -> KeyValueConfig:
        if config is None:
            if "bucket" not in settings:
                raise InvalidOption("a bucket needs a name; give a KeyValueConfig or bucket=")
            config = KeyValueConfig(**settings)  # type: ignore[arg-type]
        check_kind("config", config, KeyValueConfig, "a KeyValueConfig, or keywords (bucket=)")
        if settings:
            config = replace(config, **settings)  # type: ignore[arg-type]
        if config.limit_marker_ttl is not None and (await self.account_info()).api.level < 1:
            raise MarkerTtlNotSupported("limit_marker_ttl needs nats-server 2.11; leave it out")
        return config

    def _kv(self, info: StreamInfo) -> KeyValue:
        return KeyValue(self._js, info)

    # ------------------------------------------------------------------ objects

    async def create_object_store(
        self, config: ObjectStoreConfig | None = None, /, **settings: Unpack[ObjectStoreSettings]
    ) -> ObjectStore:
        """Make an object bucket. Settings may come as an `ObjectStoreConfig`, as keywords, or both.

            store = await js.create_object_store(bucket="files")

        Idempotent for equal settings; with others it raises `BucketExists`.
        """
        wanted = _object_config(config, settings)
        try:
            return self._objects((await self._js.create_stream(wanted.stream())).cached_info)
        except StreamNameInUse as exc:
            raise BucketExists(
                f"bucket {wanted.bucket!r} exists with other settings; use "
                "create_or_update_object_store to change it, or object_store to open it as it is"
            ) from exc

    async def update_object_store(
        self, config: ObjectStoreConfig | None = None, /, **settings: Unpack[ObjectStoreSettings]
    ) -> ObjectStore:
        """Replace all settings of a bucket; what is left out returns to its default. Raises
        `BucketNotFound`."""
        wanted = _object_config(config, settings)
        with of_bucket(wanted.bucket):
            return self._objects((await self._js.update_stream(wanted.stream())).cached_info)

    async def create_or_update_object_store(
        self, config: ObjectStoreConfig | None = None, /, **settings: Unpack[ObjectStoreSettings]
    ) -> ObjectStore:
        """`update_object_store`, or `create_object_store` when there is none yet."""
        wanted = _object_config(config, settings)
        stream = await self._js.create_or_update_stream(wanted.stream())
        return self._objects(stream.cached_info)

    async def object_store(self, bucket: str) -> ObjectStore:
        """An existing bucket. Raises `BucketNotFound`, `BadBucket`."""
        with of_bucket(bucket):
            info = await self._js.stream_info(object_stream(bucket))
        ObjectStoreConfig.of_stream(info.config)
        return self._objects(info)

    async def delete_object_store(self, bucket: str) -> None:
        """With everything in it. Raises `BucketNotFound`."""
        with of_bucket(bucket):
            await self._js.delete_stream(object_stream(bucket))

    def object_store_names(self) -> Lister[str]:
        """Names of all object buckets."""
        return self._bucket_names(_ALL_OBJECTS, OBJECT_STREAM)

    def object_store_statuses(self) -> Lister[ObjectStoreStatus]:
        """As `object_store_names`, with what `ObjectStore.status` tells."""
        return self._buckets(_ALL_OBJECTS, ObjectStoreStatus.read)

    def _objects(self, info: StreamInfo) -> ObjectStore:
        return ObjectStore(self._js, info)

    # ------------------------------------------------------------------ both

    @property
    def _js(self) -> JetStream:
        return cast("JetStream", self)

    def _bucket_names(self, subject: str, prefix: str) -> Lister[str]:
        async def page(offset: int) -> tuple[list[str], int, int]:
            answer = await self.call("STREAM.NAMES", {"subject": subject, "offset": offset})
            names = answer.get("streams") or []
            found = [name[len(prefix) :] for name in names if name.startswith(prefix)]
            return found, len(names), answer.get("total", 0)

        return Lister(page)

    def _buckets(self, subject: str, read: Callable[[StreamInfo], T]) -> Lister[T]:
        async def page(offset: int) -> tuple[list[T], int, int]:
            answer = await self.call("STREAM.LIST", {"subject": subject, "offset": offset})
            infos = [StreamInfo.read(raw) for raw in answer.get("streams") or ()]
            found: list[T] = []
            for info in infos:
                try:
                    found.append(read(info))
                except BadBucket:
                    pass  # somebody's stream that only has such subjects, or such a name
            return found, len(infos), answer.get("total", 0)

        return Lister(page)


def _object_config(
    config: ObjectStoreConfig | None, settings: ObjectStoreSettings
) -> ObjectStoreConfig:
    if config is None:
        if "bucket" not in settings:
            raise InvalidOption("a bucket needs a name; give an ObjectStoreConfig or bucket=")
        return ObjectStoreConfig(**settings)
    check_kind("config", config, ObjectStoreConfig, "an ObjectStoreConfig, or keywords (bucket=)")
    return replace(config, **settings) if settings else config
