"""Budgets: how often a message may be tried, which delay comes next.

Three counts describe how far a message has come:

* `retry_count`, the header: retries that were stored as new copies (hops through a hold queue);
* `num_delivered`, the server's: deliveries of this stored copy, the first included;
* `returned`: deliveries of it that are known to have been handed back unused (a drain).

Where retries are hops, redeliveries of one copy mean that a process died or lost its lease, and
have a budget of their own. Where retries are delayed NAKs (sequenced topics, which must keep their
lane closed, and topics without hold queues), the server's count *is* the retry count, and a
crash costs a retry. `max_retries=N` means N retries after the first attempt, everywhere (SW-09).
"""

from __future__ import annotations

from dataclasses import dataclass

from shove_actors._errors import UsageError

from ._delays import delay_problem
from ._topology import HoldQueue, Topology


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A consumer's budgets.

    `max_retries`: retries after the first attempt (default 10; 0 means one attempt).
    `max_deliveries`: deliveries of one stored copy before it counts as crashing its process;
    None (the default) means `max_retries + 1`. Deliveries handed back unused do not count.
    `default_delay_s`: seconds before a retry where no hold queue says otherwise (default 1).

    Raises `UsageError` for a value out of range (yours to fix).
    """

    max_retries: int = 10
    max_deliveries: int | None = None
    default_delay_s: float = 1.0

    def __post_init__(self) -> None:
        _check_count(self.max_retries, "max_retries", 0)
        if self.max_deliveries is not None:
            _check_count(self.max_deliveries, "max_deliveries", 1)
        problem = delay_problem(self.default_delay_s)
        if problem is not None:
            raise UsageError(f"default_delay_s {problem}")

    @property
    def max_redeliveries(self) -> int:
        """Deliveries of one stored copy beyond its first that are still handled."""
        return self.max_retries if self.max_deliveries is None else self.max_deliveries - 1


def _check_count(value: object, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}")


def redeliveries(num_delivered: int, returned: int) -> int:
    """Deliveries of a stored copy beyond its first that may have reached a handler."""
    # Never below 0: what a process remembers as returned may predate a count that was reset.
    return max(0, num_delivered - 1 - returned)


def retries_by_nak(topology: Topology) -> bool:
    """Whether a retry waits in place (delayed NAK) and not as a copy in a hold queue."""
    return topology.sequenced or not topology.holds


def hold_for_retry(topology: Topology, retry_count: int, after_s: float | None = None) -> HoldQueue:
    """The hold queue of the next retry: number `retry_count`, the last one from there on.

    With `after_s`: the first hold queue at least as long, else the last. The copy carries its own
    due time then, and waits among those whose delay is closest above its own.
    """
    if after_s is None:
        return topology.holds[min(retry_count, len(topology.holds) - 1)]
    for hold in topology.holds:
        if hold.delay_s >= after_s:
            return hold
    return topology.holds[-1]


def nak_delay(topology: Topology, retry_count: int, default_s: float) -> float:
    """Seconds that a retry in place waits: as long as the hold queue of that retry, if any."""
    return hold_for_retry(topology, retry_count).delay_s if topology.holds else default_s
