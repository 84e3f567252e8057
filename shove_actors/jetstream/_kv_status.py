"""What a key-value bucket says of itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ._bucket_status import BucketStatus
from ._kv_config import KeyValueConfig
from ._stream_info import StreamInfo


@dataclass(frozen=True, kw_only=True)
class KeyValueStatus(BucketStatus[KeyValueConfig]):
    """A bucket, as it is now. `values` counts revisions, markers included; `bytes` all of them."""

    @classmethod
    def read(cls, info: StreamInfo) -> KeyValueStatus:
        return cls(config=KeyValueConfig.of_stream(info.config), stream_info=info)

    @property
    def values(self) -> int:
        return self.stream_info.messages

    @property
    def bytes(self) -> int:
        return self.stream_info.bytes

    @property
    def history(self) -> int:
        return self.config.history

    @property
    def limit_marker_ttl(self) -> float | None:
        return self.config.limit_marker_ttl
