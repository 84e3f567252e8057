"""A bucket's settings, and the stream that keeps it: exactly the one that nats.go makes. Pure.

Exactly, because whoever creates the bucket again (from whatever language) with the same settings is
told that it is there; the smallest difference is "name already in use" instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from shove_actors._errors import BadBucket, HistoryTooLarge, InvalidOption

from ._options import check_count, check_seconds
from ._store_names import KV_STREAM, check_bucket, kv_prefix, kv_stream
from ._stream import StorageType, StreamConfig
from ._stream_parts import Placement, RePublish, StreamSource, SubjectTransform
from ._typed import check_fields, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_HISTORY = 64
#: The server's own default, which is said all the same: it is part of what is compared.
_DUPLICATE_WINDOW = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueConfig:
    """A key-value bucket. Sizes are bytes, -1 unlimited; durations are seconds.

    * `history`: revisions kept per key, 1 to 64.
    * `ttl`: how long a revision lives; 0 is for ever.
    * `limit_marker_ttl`: what expires or is limited leaves a marker, for that long (at least 1 s).
      It also lets `create` and `purge` take a `ttl` of their own. Needs nats-server 2.11.
    * `mirror`: a read-only copy of another bucket; what is written goes to that one.
      `sources`: a bucket that takes in others. Both name buckets (or streams `KV_...`).
    * `republish`: every change is published again, on another subject.

    Raises `InvalidOption`, `InvalidName` or `HistoryTooLarge`, naming the field.
    """

    bucket: str
    description: str | None = None
    max_value_size: int = -1
    history: int = 1
    ttl: float = 0.0
    max_bytes: int = -1
    storage: StorageType = "file"
    num_replicas: int = 1
    placement: Placement | None = None
    republish: RePublish | None = None
    mirror: StreamSource | None = None
    sources: tuple[StreamSource, ...] = ()
    compression: bool = False
    limit_marker_ttl: float | None = None
    metadata: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_bucket(self.bucket)
        object.__setattr__(self, "sources", listed(self.sources))
        check_fields(self)
        check_count("history", self.history)
        if self.history > MAX_HISTORY:
            raise HistoryTooLarge(f"history is {self.history}; it must be at most {MAX_HISTORY}")
        check_count("num_replicas", self.num_replicas)
        for name in ("max_value_size", "max_bytes"):
            if check_count(name, getattr(self, name), least=-1) == 0:
                object.__setattr__(self, name, -1)
        if self.ttl != 0:
            check_seconds("ttl", self.ttl)
        if self.limit_marker_ttl is not None:
            check_seconds("limit_marker_ttl", self.limit_marker_ttl, least=1.0)
        if self.mirror is not None and self.sources:
            raise InvalidOption("mirror and sources exclude each other; give one of them")

    def stream(self) -> StreamConfig:
        """The stream that keeps the bucket."""
        mirror = self.mirror
        if mirror is not None:
            mirror = replace(mirror, name=_stream_name(mirror.name))
        window = min(self.ttl, _DUPLICATE_WINDOW) if self.ttl > 0 else _DUPLICATE_WINDOW
        return StreamConfig(
            name=kv_stream(self.bucket),
            description=self.description,
            subjects=() if mirror is not None else (kv_prefix(self.bucket) + ">",),
            max_msgs_per_subject=self.history,
            max_bytes=self.max_bytes,
            max_age=self.ttl,
            max_msg_size=self.max_value_size,
            storage=self.storage,
            num_replicas=self.num_replicas,
            placement=self.placement,
            republish=self.republish,
            discard="new",
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
            duplicate_window=window,
            mirror=mirror,
            mirror_direct=mirror is not None,
            sources=tuple(self._source(source) for source in self.sources),
            compression="s2" if self.compression else "none",
            allow_msg_ttl=self.limit_marker_ttl is not None,
            subject_delete_marker_ttl=self.limit_marker_ttl,
            metadata=self.metadata,
        )

    def _source(self, source: StreamSource) -> StreamSource:
        """Its keys become keys of this bucket. Another account's bucket of this name keeps them."""
        stream = _stream_name(source.name)
        origin = stream[len(KV_STREAM) :]
        if source.external is not None and origin == self.bucket:
            return replace(source, name=stream)
        mapping = SubjectTransform(src=kv_prefix(origin) + ">", dest=kv_prefix(self.bucket) + ">")
        return replace(source, name=stream, subject_transforms=(mapping,))

    @classmethod
    def of_stream(cls, config: StreamConfig) -> KeyValueConfig:
        """What a stream keeps, read back. Raises `BadBucket` for one that is no bucket."""
        if not config.name.startswith(KV_STREAM) or config.max_msgs_per_subject < 1:
            raise BadBucket(
                f"stream {config.name!r} is no key-value bucket: it does not limit the messages "
                "per subject, or has another name"
            )
        return cls(
            bucket=config.name[len(KV_STREAM) :],
            description=config.description,
            max_value_size=config.max_msg_size,
            history=min(config.max_msgs_per_subject, MAX_HISTORY),
            ttl=config.max_age,
            max_bytes=config.max_bytes,
            storage=config.storage,
            num_replicas=config.num_replicas,
            placement=config.placement,
            republish=config.republish,
            mirror=config.mirror,
            sources=config.sources,
            compression=config.compression == "s2",
            limit_marker_ttl=config.subject_delete_marker_ttl,
            metadata=config.metadata,
        )


class KeyValueSettings(TypedDict, total=False):
    """The fields of `KeyValueConfig`, as keyword arguments."""

    bucket: str
    description: str | None
    max_value_size: int
    history: int
    ttl: float
    max_bytes: int
    storage: StorageType
    num_replicas: int
    placement: Placement | None
    republish: RePublish | None
    mirror: StreamSource | None
    sources: Sequence[StreamSource]
    compression: bool
    limit_marker_ttl: float | None
    metadata: Mapping[str, str] | None


def _stream_name(bucket_or_stream: str) -> str:
    if bucket_or_stream.startswith(KV_STREAM):
        return bucket_or_stream
    return kv_stream(bucket_or_stream)


def is_older_form(existing: StreamConfig, wanted: StreamConfig) -> bool:
    """Whether a bucket differs only in what clients before 2.9 set otherwise (discard, direct)."""
    modern = replace(existing, discard=wanted.discard, allow_direct=wanted.allow_direct)
    return _settings(modern) == _settings(wanted)


def _settings(config: StreamConfig) -> dict[str, Any]:
    wire = {name: value for name, value in config.wire().items() if value}
    own = {k: v for k, v in (config.metadata or {}).items() if not k.startswith("_nats.")}
    wire.pop("metadata", None)
    return {**wire, **({"metadata": own} if own else {})}
