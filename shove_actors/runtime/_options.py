"""How one registration consumes: validated when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shove_actors._errors import UsageError
from shove_actors.backends import margins
from shove_actors.messaging import Limits

from ._scaling import AutoscalerConfig

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Durations are seconds, sizes bytes.

    `consumers`: a number, or `(min, max)`. `prefetch`: unacknowledged messages per consumer.
    `concurrent_processing`: run up to `prefetch` handlers of one consumer at once. `ack_wait`:
    the lease; it is renewed while a handler runs, so it bounds how long a message of a crashed
    process stays invisible, not how long a handler may run. `handler_timeout=None`: no limit.
    `retry_delay`: pause before a retry where no hold queue says otherwise. `autoscaler`: when the
    number of consumers changes between min and max.
    """

    consumers: tuple[int, int] = (1, 1)
    prefetch: int = 10
    max_retries: int = 10
    handler_timeout: float | None = 30.0
    concurrent_processing: bool = False
    max_message_size: int = 10 * MIB
    ack_wait: float = 30.0
    retry_delay: float = 1.0
    autoscaler: AutoscalerConfig = field(default_factory=AutoscalerConfig)

    def __post_init__(self) -> None:
        low, high = self.consumers
        if low < 1 or high < low:
            raise UsageError(
                f"consumers={self.consumers}: needs 1 <= min <= max; a group without consumers "
                "would never do anything"
            )
        if self.prefetch < 1:
            raise UsageError(f"prefetch={self.prefetch}: at least 1, or nothing can be handled")
        if self.max_message_size < 1:
            raise UsageError(f"max_message_size={self.max_message_size}: at least 1 byte")
        if self.handler_timeout is not None and not 0 < self.handler_timeout < math.inf:
            raise UsageError(
                f"handler_timeout={self.handler_timeout}: a positive number of seconds, or None "
                "for no limit"
            )
        if not 0.1 <= self.ack_wait < math.inf:
            raise UsageError(
                f"ack_wait={self.ack_wait}: at least 0.1 s, or the lease cannot be renewed in time"
            )
        if not isinstance(self.autoscaler, AutoscalerConfig):
            raise UsageError(
                f"autoscaler={type(self.autoscaler).__name__}: give an AutoscalerConfig(...)"
            )
        # Its own checks name max_retries and retry_delay.
        _ = self.limits

    @property
    def takes(self) -> int:
        """Messages that one consumer handles at once: the rest of `prefetch` only waits."""
        return self.prefetch if self.concurrent_processing else 1

    def check_shard_lease(self, queue: str) -> None:
        """Raises `UsageError` for a lease too short to keep two handlers of a shard apart."""
        least = margins.LEAST_SEQUENCED_ACK_WAIT_S
        if self.ack_wait < least:
            raise UsageError(
                f"ack_wait={self.ack_wait} for the sequenced topic {queue!r}: at least {least:g} "
                "s, or a handler that lost its lease has no time to end before the next one begins"
            )

    @property
    def limits(self) -> Limits:
        return Limits(max_retries=self.max_retries, default_delay_s=self.retry_delay)
