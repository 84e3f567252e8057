"""What the legacy subscribe calls take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from shove_actors.jetstream._consumer import AckPolicy, DeliverPolicy, ReplayPolicy


class PullOptions(TypedDict, total=False):
    """nats.go's `SubOpt`s as keyword arguments.

    * `bind_stream` (`BindStream`), `bind=(stream, consumer)` (`Bind`)
    * `manual_ack` (`ManualAck`): the callback acknowledges by itself
    * `ordered` (`OrderedConsumer`): in order, each once, unacknowledged
    * all others: the fields of `ConsumerConfig`
    """

    bind_stream: str | None
    bind: tuple[str, str] | None
    manual_ack: bool
    ordered: bool
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
    deliver_subject: str | None
    idle_heartbeat: float | None
    flow_control: bool
    rate_limit_bps: int | None


class QueueOptions(PullOptions, total=False):
    """`durable` (`Durable`): by which name the consumer is found or made."""

    durable: str | None


class SubscribeOptions(QueueOptions, total=False):
    """`queue` (`QueueSubscribe`): the group; also the durable's name unless one is given."""

    queue: str | None


#: What is ours and not the consumer's.
OURS = frozenset({"durable", "bind_stream", "bind", "manual_ack", "ordered", "queue"})
