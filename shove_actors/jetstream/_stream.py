"""Stream configuration and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._fields import from_wire, to_wire

_DURATIONS = frozenset({"max_age", "duplicate_window"})
_ALWAYS = frozenset({"name", "max_consumers", "max_msgs", "max_bytes", "num_replicas"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """A stream, in the server's own words. Durations are seconds; -1 is unlimited.

    `extra` holds every setting this version does not name (placement, sources, metadata, ...).
    """

    name: str
    subjects: tuple[str, ...] = ()
    description: str | None = None
    retention: str = "limits"
    storage: str = "file"
    discard: str = "old"
    max_consumers: int = -1
    max_msgs: int = -1
    max_bytes: int = -1
    max_age: float = 0.0
    max_msg_size: int = -1
    max_msgs_per_subject: int = -1
    num_replicas: int = 1
    duplicate_window: float | None = None
    allow_direct: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    metadata: Mapping[str, str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, _DURATIONS, _ALWAYS)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> StreamConfig:
        return from_wire(cls, raw, _DURATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """What the server says of a stream. `server_time`: RFC 3339, "" from servers before 2.10."""

    config: StreamConfig
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    consumer_count: int
    created: str
    server_time: str

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> StreamInfo:
        state = raw["state"]
        return cls(
            config=StreamConfig.read(raw["config"]),
            messages=state.get("messages", 0),
            bytes=state.get("bytes", 0),
            first_seq=state.get("first_seq", 0),
            last_seq=state.get("last_seq", 0),
            consumer_count=state.get("consumer_count", 0),
            created=raw.get("created", ""),
            server_time=raw.get("ts", ""),
        )
