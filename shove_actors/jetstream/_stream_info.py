"""What the server tells of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ._fields import NS, from_wire
from ._stream import StreamConfig
from ._stream_parts import ExternalStream, SubjectTransform
from ._times import EPOCH, to_datetime_or_none


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """What is stored. Moments are None where nothing is.

    `deleted` (sequences in the middle that are gone) and `subjects` (messages per subject) are
    filled only when asked for, see `Stream.info`.
    """

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ts: datetime | None = None
    last_seq: int = 0
    last_ts: datetime | None = None
    consumer_count: int = 0
    num_subjects: int = 0
    num_deleted: int = 0
    deleted: tuple[int, ...] = ()
    subjects: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> StreamState:
        return from_wire(cls, raw, moments=frozenset({"first_ts", "last_ts"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """A replica. `active`: seconds since it was heard of. `lag`: operations behind."""

    name: str = ""
    current: bool = False
    offline: bool = False
    active: float = 0.0
    lag: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> PeerInfo:
        return from_wire(cls, raw, frozenset({"active"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """Who leads, and the other replicas. On a server alone `leader` is that server."""

    name: str | None = None
    raft_group: str | None = None
    leader: str | None = None
    leader_since: datetime | None = None
    replicas: tuple[PeerInfo, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ClusterInfo:
        return from_wire(
            cls, raw, moments=frozenset({"leader_since"}), records={"replicas": PeerInfo}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """How far a mirror or source has come. `active`: seconds since the last message or sign of
    life; None while there was none. `error`: the server's own words."""

    name: str = ""
    lag: int = 0
    active: float | None = None
    filter_subject: str | None = None
    subject_transforms: tuple[SubjectTransform, ...] = ()
    external: ExternalStream | None = None
    error: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> SourceInfo:
        active = raw.get("active", -1)
        return from_wire(
            cls,
            {**raw, "active": None if active < 0 else active / NS},
            records={"subject_transforms": SubjectTransform, "external": ExternalStream},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAlternate:
    """A mirror that could be read in place of the stream."""

    name: str = ""
    domain: str | None = None
    cluster: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> StreamAlternate:
        return from_wire(cls, raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream as the server describes it.

    `server_time`: when it did; None from servers before 2.10. The most used numbers of `state`
    are attributes here, too.
    """

    config: StreamConfig
    created: datetime
    state: StreamState
    cluster: ClusterInfo | None = None
    mirror: SourceInfo | None = None
    sources: tuple[SourceInfo, ...] = ()
    alternates: tuple[StreamAlternate, ...] = ()
    domain: str | None = None
    server_time: datetime | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        return self.state.messages

    @property
    def bytes(self) -> int:
        return self.state.bytes

    @property
    def first_seq(self) -> int:
        return self.state.first_seq

    @property
    def last_seq(self) -> int:
        return self.state.last_seq

    @property
    def consumer_count(self) -> int:
        return self.state.consumer_count

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> StreamInfo:
        mirror, cluster = raw.get("mirror"), raw.get("cluster")
        return cls(
            config=StreamConfig.read(raw["config"]),
            created=to_datetime_or_none(raw.get("created")) or EPOCH,
            state=StreamState.read(raw["state"]),
            cluster=ClusterInfo.read(cluster) if cluster else None,
            mirror=SourceInfo.read(mirror) if mirror else None,
            sources=tuple(SourceInfo.read(each) for each in raw.get("sources") or ()),
            alternates=tuple(StreamAlternate.read(each) for each in raw.get("alternates") or ()),
            domain=raw.get("domain"),
            server_time=to_datetime_or_none(raw.get("ts")),
            extra={name: value for name, value in raw.items() if name not in _READ},
        )


_ENVELOPE = ("type", "total", "offset", "limit", "did_create", "ts")
_READ = frozenset(("config", "created", "state", "cluster", "domain", *_ENVELOPE)) | frozenset(
    ("mirror", "sources", "alternates")
)
