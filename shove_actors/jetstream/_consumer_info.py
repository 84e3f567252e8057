"""What the server tells of a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ._consumer import ConsumerConfig
from ._fields import NS, from_wire
from ._stream_info import ClusterInfo
from ._times import EPOCH, to_datetime_or_none


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePair:
    """A delivery: its number among the consumer's deliveries, and its sequence in the stream."""

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active: datetime | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> SequencePair:
        return from_wire(cls, raw, moments=frozenset({"last_active"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityGroupState:
    """Who is pinned in a priority group, if anybody is."""

    group: str = ""
    pinned_client_id: str | None = None
    pinned_ts: datetime | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> PriorityGroupState:
        return from_wire(cls, raw, moments=frozenset({"pinned_ts"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseState:
    """Whether a consumer pauses, until when (None: not at all), and for how many seconds yet."""

    paused: bool
    until: datetime | None
    remaining: float

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> PauseState:
        return cls(
            paused=bool(raw.get("paused", False)),
            until=to_datetime_or_none(raw.get("pause_until")),
            remaining=(raw.get("pause_remaining") or 0) / NS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """A consumer as the server describes it.

    `delivered` is the last delivery, `ack_floor` the last one before which everything is
    acknowledged. `server_time`: when it was described; None from servers before 2.10. Two infos
    compare equal when they say the same, whenever that was.
    """

    stream: str
    name: str
    config: ConsumerConfig
    created: datetime
    #: `created` with all of its digits: another consumer of the same name has another one.
    identity: str
    num_pending: int
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    delivered: SequencePair = SequencePair()
    ack_floor: SequencePair = SequencePair()
    push_bound: bool = False
    paused: bool = False
    pause_remaining: float = 0.0
    priority_groups: tuple[PriorityGroupState, ...] = ()
    cluster: ClusterInfo | None = None
    server_time: datetime | None = field(default=None, compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def deliveries(self) -> int:
        """How many it has made, redeliveries included."""
        return self.delivered.consumer_seq

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ConsumerInfo:
        cluster = raw.get("cluster")
        return cls(
            stream=raw["stream_name"],
            name=raw["name"],
            config=ConsumerConfig.read(raw["config"]),
            created=to_datetime_or_none(raw.get("created")) or EPOCH,
            identity=raw.get("created", ""),
            num_pending=raw.get("num_pending", 0),
            num_ack_pending=raw.get("num_ack_pending", 0),
            num_redelivered=raw.get("num_redelivered", 0),
            num_waiting=raw.get("num_waiting", 0),
            delivered=SequencePair.read(raw.get("delivered") or {}),
            ack_floor=SequencePair.read(raw.get("ack_floor") or {}),
            push_bound=bool(raw.get("push_bound", False)),
            paused=bool(raw.get("paused", False)),
            pause_remaining=(raw.get("pause_remaining") or 0) / NS,
            priority_groups=tuple(
                PriorityGroupState.read(each) for each in raw.get("priority_groups") or ()
            ),
            cluster=ClusterInfo.read(cluster) if cluster else None,
            server_time=to_datetime_or_none(raw.get("ts")),
            extra={name: value for name, value in raw.items() if name not in _READ},
        )


_READ = frozenset(
    {
        "ack_floor",
        "cluster",
        "config",
        "created",
        "delivered",
        "limit",
        "name",
        "num_ack_pending",
        "num_pending",
        "num_redelivered",
        "num_waiting",
        "offset",
        "pause_remaining",
        "paused",
        "priority_groups",
        "push_bound",
        "stream_name",
        "total",
        "ts",
        "type",
    }
)
