"""An object bucket's settings, and the stream that keeps it: the one that nats.go makes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from shove_actors._errors import BadBucket

from ._options import check_count, check_seconds
from ._store_names import OBJECT_STREAM, check_bucket, chunk_prefix, meta_prefix, object_stream
from ._stream import StorageType, StreamConfig
from ._stream_parts import Placement
from ._typed import check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreConfig:
    """An object bucket. `max_bytes`: all objects together, -1 unlimited. `ttl`: seconds until an
    object disappears, 0 is never. Raises `InvalidOption` or `InvalidName`, naming the field."""

    bucket: str
    description: str | None = None
    ttl: float = 0.0
    max_bytes: int = -1
    storage: StorageType = "file"
    num_replicas: int = 1
    placement: Placement | None = None
    compression: bool = False
    metadata: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_bucket(self.bucket)
        check_fields(self)
        check_count("num_replicas", self.num_replicas)
        if check_count("max_bytes", self.max_bytes, least=-1) == 0:
            object.__setattr__(self, "max_bytes", -1)
        if self.ttl != 0:
            check_seconds("ttl", self.ttl)

    def stream(self) -> StreamConfig:
        """The stream that keeps the bucket."""
        return StreamConfig(
            name=object_stream(self.bucket),
            description=self.description,
            subjects=(chunk_prefix(self.bucket) + ">", meta_prefix(self.bucket) + ">"),
            max_age=self.ttl,
            max_bytes=self.max_bytes,
            storage=self.storage,
            num_replicas=self.num_replicas,
            placement=self.placement,
            discard="new",
            allow_rollup_hdrs=True,
            allow_direct=True,
            compression="s2" if self.compression else "none",
            metadata=self.metadata,
        )

    @classmethod
    def of_stream(cls, config: StreamConfig) -> ObjectStoreConfig:
        """What a stream keeps, read back. Raises `BadBucket` for one that is no object bucket."""
        bucket = config.name[len(OBJECT_STREAM) :]
        if (
            not config.name.startswith(OBJECT_STREAM)
            or meta_prefix(bucket) + ">" not in config.subjects
        ):
            raise BadBucket(f"stream {config.name!r} is no object bucket: see its subjects")
        return cls(
            bucket=bucket,
            description=config.description,
            ttl=config.max_age,
            max_bytes=config.max_bytes,
            storage=config.storage,
            num_replicas=config.num_replicas,
            placement=config.placement,
            compression=config.compression == "s2",
            metadata=config.metadata,
        )


class ObjectStoreSettings(TypedDict, total=False):
    """The fields of `ObjectStoreConfig`, as keyword arguments."""

    bucket: str
    description: str | None
    ttl: float
    max_bytes: int
    storage: StorageType
    num_replicas: int
    placement: Placement | None
    compression: bool
    metadata: Mapping[str, str] | None
