"""What an object bucket says of itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ._bucket_status import BucketStatus
from ._object_config import ObjectStoreConfig
from ._stream import StorageType
from ._stream_info import StreamInfo


@dataclass(frozen=True, kw_only=True)
class ObjectStoreStatus(BucketStatus[ObjectStoreConfig]):
    """A bucket, as it is now. `size`: bytes of all content and descriptions."""

    @classmethod
    def read(cls, info: StreamInfo) -> ObjectStoreStatus:
        return cls(config=ObjectStoreConfig.of_stream(info.config), stream_info=info)

    @property
    def description(self) -> str:
        return self.config.description or ""

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
