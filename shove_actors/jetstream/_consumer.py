"""A consumer's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ._fields import absorb, from_wire, to_wire
from ._typed import check_fields, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

DeliverPolicy = Literal[
    "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"
]
AckPolicy = Literal["explicit", "none", "all"]
ReplayPolicy = Literal["instant", "original"]
PriorityPolicy = Literal["none", "overflow", "pinned_client", "prioritized"]

_DURATIONS = frozenset(
    {
        "ack_wait",
        "inactive_threshold",
        "idle_heartbeat",
        "backoff",
        "max_expires",
        "priority_timeout",
    }
)
_MOMENTS = frozenset({"opt_start_time", "pause_until"})
_ALWAYS = frozenset({"deliver_policy", "ack_policy", "replay_policy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """A consumer, in the server's own words. Durations are seconds.

    Left out, a field has the server's default: `ack_wait` 30 s, unlimited `max_deliver`,
    `max_ack_pending` 1000, `max_waiting` 512. `extra` holds every setting that this version does
    not name, so that writing back what was read erases nothing.

    * `durable_name`: it stays when nobody reads it. Without one it goes after
      `inactive_threshold` (5 s). `name` alone gives such a consumer a name.
    * `filter_subject` or `filter_subjects`: only those messages; never both.
    * `deliver_policy`: where it starts; `opt_start_seq` and `opt_start_time` go with
      "by_start_sequence" and "by_start_time".
    * `ack_wait`, `max_deliver`, `backoff`: when, how often and how far apart a message comes again.
      `backoff` replaces `ack_wait` for what runs into its time-out, not for what is refused (nak).
    * `max_batch`, `max_expires`, `max_bytes`: limits of a single request.
    * `deliver_subject`, `deliver_group`, `idle_heartbeat`, `flow_control`, `rate_limit_bps`: push
      consumers only.
    * `priority_policy` with `priority_groups` (and `priority_timeout` for "pinned_client").
    """

    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    deliver_policy: DeliverPolicy = "all"
    opt_start_seq: int | None = None
    opt_start_time: datetime | None = None
    ack_policy: AckPolicy = "explicit"
    replay_policy: ReplayPolicy = "instant"
    ack_wait: float | None = None
    max_deliver: int | None = None
    backoff: tuple[float, ...] = ()
    max_ack_pending: int | None = None
    max_waiting: int | None = None
    filter_subject: str | None = None
    filter_subjects: tuple[str, ...] = ()
    headers_only: bool = False
    sample_freq: str | None = None
    max_batch: int | None = None
    max_expires: float | None = None
    max_bytes: int | None = None
    inactive_threshold: float | None = None
    num_replicas: int | None = None
    mem_storage: bool = False
    metadata: Mapping[str, str] | None = None
    pause_until: datetime | None = None
    priority_policy: PriorityPolicy | None = None
    priority_groups: tuple[str, ...] = ()
    priority_timeout: float | None = None
    deliver_subject: str | None = None
    deliver_group: str | None = None
    idle_heartbeat: float | None = None
    flow_control: bool = False
    rate_limit_bps: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A list is what people write; equality with what the server sends needs one type.
        for name in ("filter_subjects", "priority_groups", "backoff"):
            object.__setattr__(self, name, listed(getattr(self, name)))
        check_fields(self)
        if self.extra:
            absorb(self, _DURATIONS, moments=_MOMENTS)

    def wire(self) -> dict[str, Any]:
        return to_wire(self, _DURATIONS, _ALWAYS)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ConsumerConfig:
        return from_wire(cls, raw, _DURATIONS, moments=_MOMENTS)


class ConsumerSettings(TypedDict, total=False):
    """The fields of `ConsumerConfig`, as keyword arguments."""

    name: str | None
    durable_name: str | None
    description: str | None
    deliver_policy: DeliverPolicy
    opt_start_seq: int | None
    opt_start_time: datetime | None
    ack_policy: AckPolicy
    replay_policy: ReplayPolicy
    ack_wait: float | None
    max_deliver: int | None
    backoff: Sequence[float]
    max_ack_pending: int | None
    max_waiting: int | None
    filter_subject: str | None
    filter_subjects: Sequence[str]
    headers_only: bool
    sample_freq: str | None
    max_batch: int | None
    max_expires: float | None
    max_bytes: int | None
    inactive_threshold: float | None
    num_replicas: int | None
    mem_storage: bool
    metadata: Mapping[str, str] | None
    pause_until: datetime | None
    priority_policy: PriorityPolicy | None
    priority_groups: Sequence[str]
    priority_timeout: float | None
    deliver_subject: str | None
    deliver_group: str | None
    idle_heartbeat: float | None
    flow_control: bool
    rate_limit_bps: int | None
    extra: Mapping[str, Any]
