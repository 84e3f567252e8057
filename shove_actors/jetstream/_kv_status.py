"""What a bucket says of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ._kv_config import KeyValueConfig
from ._stream_info import StreamInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueStatus:
    """A bucket, as it is now. `values` counts revisions, markers included; `bytes` all of them."""

    config: KeyValueConfig
    stream_info: StreamInfo

    @classmethod
    def read(cls, info: StreamInfo) -> KeyValueStatus:
        return cls(config=KeyValueConfig.of_stream(info.config), stream_info=info)

    @property
    def bucket(self) -> str:
        return self.config.bucket

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
    def ttl(self) -> float:
        """Seconds; 0 is for ever."""
        return self.config.ttl

    @property
    def limit_marker_ttl(self) -> float | None:
        return self.config.limit_marker_ttl

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
