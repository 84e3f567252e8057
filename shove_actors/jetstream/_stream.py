"""A stream's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ._fields import Records, absorb, from_wire, to_wire
from ._stream_parts import (
    ConsumerLimits,
    Placement,
    RePublish,
    StreamSource,
    SubjectTransform,
)
from ._typed import check_fields, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

RetentionPolicy = Literal["limits", "interest", "workqueue"]
StorageType = Literal["file", "memory"]
DiscardPolicy = Literal["old", "new"]
Compression = Literal["none", "s2"]
PersistMode = Literal["default", "async"]

_DURATIONS = frozenset({"max_age", "duplicate_window", "subject_delete_marker_ttl"})
_ALWAYS = frozenset({"name", "max_consumers", "max_msgs", "max_bytes", "num_replicas"})
_RECORDS: Records = {
    "placement": Placement,
    "mirror": StreamSource,
    "sources": StreamSource,
    "subject_transform": SubjectTransform,
    "republish": RePublish,
    "consumer_limits": ConsumerLimits,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """A stream, in the server's own words. Durations are seconds; -1 is unlimited.

    Left out, a field has the server's default. `extra` holds every setting that this version does
    not name, so that writing back what was read erases nothing.

    * `retention` "limits" keeps messages until a limit is reached, "interest" until every
      consumer has acknowledged, "workqueue" until one has.
    * `max_msgs`, `max_bytes`, `max_age`, `max_msgs_per_subject`: at a limit `discard` "old"
      deletes the oldest, "new" refuses (`discard_new_per_subject`: also at the limit of a subject).
    * `duplicate_window`: for how long a `Nats-Msg-Id` is remembered (server: 120 s).
    * `allow_msg_ttl`, `subject_delete_marker_ttl`: messages with a life of their own.
    * `allow_atomic`: atomic batches. `allow_msg_schedules`: scheduled messages.
      `allow_msg_counter`: counters. `allow_batched`: fast ingest.
    * `mirror` or `sources`: copy other streams. `subject_transform`, `republish`: see there.
    """

    name: str
    subjects: tuple[str, ...] = ()
    description: str | None = None
    retention: RetentionPolicy = "limits"
    storage: StorageType = "file"
    discard: DiscardPolicy = "old"
    discard_new_per_subject: bool = False
    max_consumers: int = -1
    max_msgs: int = -1
    max_bytes: int = -1
    max_age: float = 0.0
    max_msg_size: int = -1
    max_msgs_per_subject: int = -1
    num_replicas: int = 1
    no_ack: bool = False
    duplicate_window: float | None = None
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: tuple[StreamSource, ...] = ()
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    compression: Compression = "none"
    first_seq: int = 0
    subject_transform: SubjectTransform | None = None
    republish: RePublish | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    consumer_limits: ConsumerLimits | None = None
    metadata: Mapping[str, str] | None = None
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: float | None = None
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode | None = None
    allow_batched: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A list is what people write; equality with what the server sends needs one type.
        for name in ("subjects", "sources"):
            object.__setattr__(self, name, listed(getattr(self, name)))
        check_fields(self)
        if self.extra:
            absorb(self, _DURATIONS, records=_RECORDS)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, _DURATIONS, _ALWAYS)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> StreamConfig:
        return from_wire(cls, raw, _DURATIONS, records=_RECORDS)


class StreamSettings(TypedDict, total=False):
    """The fields of `StreamConfig`, as keyword arguments."""

    name: str
    subjects: Sequence[str]
    description: str | None
    retention: RetentionPolicy
    storage: StorageType
    discard: DiscardPolicy
    discard_new_per_subject: bool
    max_consumers: int
    max_msgs: int
    max_bytes: int
    max_age: float
    max_msg_size: int
    max_msgs_per_subject: int
    num_replicas: int
    no_ack: bool
    duplicate_window: float | None
    placement: Placement | None
    mirror: StreamSource | None
    sources: Sequence[StreamSource]
    sealed: bool
    deny_delete: bool
    deny_purge: bool
    allow_rollup_hdrs: bool
    compression: Compression
    first_seq: int
    subject_transform: SubjectTransform | None
    republish: RePublish | None
    allow_direct: bool
    mirror_direct: bool
    consumer_limits: ConsumerLimits | None
    metadata: Mapping[str, str] | None
    allow_msg_ttl: bool
    subject_delete_marker_ttl: float | None
    allow_msg_counter: bool
    allow_atomic: bool
    allow_msg_schedules: bool
    persist_mode: PersistMode | None
    allow_batched: bool
    extra: Mapping[str, Any]
