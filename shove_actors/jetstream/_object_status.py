"""What an object bucket says of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ._object_config import ObjectStoreConfig
from ._stream import StorageType
from ._stream_info import StreamInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreStatus:
    """A bucket, as it is now. `size`: bytes of all content and descriptions."""

    config: ObjectStoreConfig
    stream_info: StreamInfo

    @classmethod
    def read(cls, info: StreamInfo) -> ObjectStoreStatus:
        return cls(config=ObjectStoreConfig.of_stream(info.config), stream_info=info)

    @property
    def bucket(self) -> str:
        return self.config.bucket

    @property
    def description(self) -> str:
        return self.config.description or ""

    @property
    def ttl(self) -> float:
        """Seconds; 0 is for ever."""
        return self.config.ttl

    @property
    def storage(self) -> StorageType:
        return self.config.storage

    @property
    def num_replicas(self) -> int:
        return self.config.num_replicas

    @property
    def sealed(self) -> bool:
        return self.stream_info.config.sealed

    @property
    def size(self) -> int:
        return self.stream_info.bytes

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
