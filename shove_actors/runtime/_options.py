"""How one registration consumes: validated when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from shove_actors._errors import UsageError
from shove_actors.backends import margins
from shove_actors.messaging import Limits

from ._checks import check_seconds, check_switch, check_whole
from ._scaling import AutoscalerConfig

MIB = 1 << 20
#: Consumers of one registration in one process. Each is an actor; what they are to wait for at the
#: same time is rather `concurrent_processing`'s business.
MOST_CONSUMERS = 10_000
#: What one consumer may hold, unacknowledged.
MOST_PREFETCH = 1_000_000


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
        _check_consumers(self.consumers)
        check_whole(
            self.prefetch, "prefetch", least=1, most=MOST_PREFETCH, why=", or nothing is handled"
        )
        check_whole(self.max_retries, "max_retries", why=" (0 is one attempt)")
        if self.handler_timeout is not None:
            check_seconds(
                self.handler_timeout, "handler_timeout", positive=True, why=", or None for no limit"
            )
        check_switch(self.concurrent_processing, "concurrent_processing")
        check_whole(self.max_message_size, "max_message_size", least=1, why=", in bytes")
        check_seconds(
            self.ack_wait,
            "ack_wait",
            least=0.1,
            why=", or the lease cannot be renewed in time",
        )
        check_seconds(self.retry_delay, "retry_delay", positive=True)
        if not isinstance(self.autoscaler, AutoscalerConfig):
            raise UsageError(
                f"autoscaler={type(self.autoscaler).__name__}: give an AutoscalerConfig(...)"
            )

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


def _check_consumers(span: object) -> None:
    """`(min, max)`, both of them whole."""
    if not isinstance(span, (tuple, list)) or len(span) != 2:
        raise UsageError(f"consumers={span!r:.60}: give a number, or (min, max)")
    low, high = span
    why = "; (min, max) needs 1 <= min <= max, a group without consumers would never do anything"
    for number in (low, high):
        check_whole(number, "consumers", least=1, most=MOST_CONSUMERS, why=why)
    if high < low:
        raise UsageError(f"consumers={span}: needs 1 <= min <= max")
