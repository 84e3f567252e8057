"""What buckets of both kinds say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ._kv_config import KeyValueConfig
from ._object_config import ObjectStoreConfig
from ._stream_info import StreamInfo

Config = TypeVar("Config", KeyValueConfig, ObjectStoreConfig)


@dataclass(frozen=True, kw_only=True)
class BucketStatus(Generic[Config]):
    """A bucket, as it is now."""

    config: Config
    stream_info: StreamInfo

    @property
    def bucket(self) -> str:
        return self.config.bucket

    @property
    def ttl(self) -> float:
        """Seconds; 0 is for ever."""
        return self.config.ttl

    @property
    def compressed(self) -> bool:
        return self.config.compression

    @property
    def metadata(self) -> Mapping[str, str]:
        """Your own, and what the server adds (`_nats...`)."""
        return self.config.metadata or {}

    @property
    def backing_store(self) -> str:
        return "JetStream"
