"""Consumer configuration and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._fields import from_wire, to_wire

_DURATIONS = frozenset({"ack_wait", "inactive_threshold", "idle_heartbeat", "backoff"})
_ALWAYS = frozenset({"deliver_policy", "ack_policy", "replay_policy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """A consumer, in the server's own words. Durations are seconds."""

    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    deliver_policy: str = "all"
    ack_policy: str = "explicit"
    replay_policy: str = "instant"
    ack_wait: float | None = None
    max_deliver: int | None = None
    max_ack_pending: int | None = None
    max_waiting: int | None = None
    filter_subject: str | None = None
    filter_subjects: tuple[str, ...] = ()
    deliver_subject: str | None = None
    backoff: tuple[float, ...] = ()
    inactive_threshold: float | None = None
    num_replicas: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, _DURATIONS, _ALWAYS)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ConsumerConfig:
        return from_wire(cls, raw, _DURATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """What the server says of a consumer."""

    stream: str
    name: str
    config: ConsumerConfig
    num_pending: int
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    #: When it was made, by the server's clock: another durable of the same name has another one.
    created: str = ""
    #: How many deliveries it has made, redeliveries included: the `consumer_sequence` of the last.
    deliveries: int = 0

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ConsumerInfo:
        return cls(
            stream=raw["stream_name"],
            name=raw["name"],
            config=ConsumerConfig.read(raw["config"]),
            num_pending=raw.get("num_pending", 0),
            num_ack_pending=raw.get("num_ack_pending", 0),
            num_redelivered=raw.get("num_redelivered", 0),
            num_waiting=raw.get("num_waiting", 0),
            deliveries=(raw.get("delivered") or {}).get("consumer_seq", 0),
            created=raw.get("created", ""),
        )
