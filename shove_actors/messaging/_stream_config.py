"""NatsStreamConfig: the bounds and the retention of a topic's main stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from shove_actors._errors import TopologyError

# One place for the window that hop ids rely on (messaging.md §1).
DUPLICATE_WINDOW_S = 120.0


class Retention(Enum):
    """When the server deletes a message. Immutable once the stream exists."""

    WORK_QUEUE = "workqueue"
    """As soon as it is acknowledged (the default)."""
    LIMITS = "limits"
    """Only by `max_age`, `max_bytes` or `max_messages`; acknowledged messages stay."""
    INTEREST = "interest"
    """As soon as every durable has acknowledged it."""


class Storage(Enum):
    """Where messages are kept. Immutable once the stream exists."""

    FILE = "file"
    MEMORY = "memory"


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class NatsStreamConfig:
    """How the main stream of a managed topic is bounded and stored.

    `max_age` is in seconds; None means no limit for the three maxima. `max_age`, `max_bytes`,
    `max_messages` and `num_replicas` may change later (declare applies them); `retention` and
    `storage` may not. A full stream refuses new messages (discard NEW): nothing is dropped.

    Raises `TopologyError` for a value that the server would refuse (yours to fix).

        NatsStreamConfig(max_age=600, max_bytes=1_000_000_000, num_replicas=3)
    """

    retention: Retention = Retention.WORK_QUEUE
    max_age: float | None = None
    max_bytes: int | None = None
    max_messages: int | None = None
    num_replicas: int = 1
    storage: Storage = Storage.FILE

    def __post_init__(self) -> None:
        if not isinstance(self.retention, Retention):
            raise TopologyError("retention must be a Retention, for example Retention.LIMITS")
        if not isinstance(self.storage, Storage):
            raise TopologyError("storage must be a Storage: Storage.FILE or Storage.MEMORY")
        age: object = self.max_age
        if age is not None:
            number = isinstance(age, (int, float)) and not isinstance(age, bool)
            # 292 years is where nanoseconds in 64 bits end, 100 ms is the server's minimum.
            if not number or not math.isfinite(age) or not 0.1 <= age <= 9e9:  # type: ignore[arg-type, operator]
                raise TopologyError(
                    "max_age must be a number of seconds, at least 0.1, or None for no limit"
                )
        for field, count in (("max_bytes", self.max_bytes), ("max_messages", self.max_messages)):
            if count is not None and not (_whole(count) and 0 < count < 2**63):
                raise TopologyError(f"{field} must be a whole number above 0, or None for no limit")
        if not (_whole(self.num_replicas) and 1 <= self.num_replicas <= 5):
            raise TopologyError("num_replicas must be 1 to 5: the server keeps at most five copies")

    @property
    def duplicate_window_s(self) -> float:
        """120 s, or `max_age` when that is shorter: the server refuses a window beyond the age."""
        if self.max_age is None:
            return DUPLICATE_WINDOW_S
        return min(DUPLICATE_WINDOW_S, self.max_age)
