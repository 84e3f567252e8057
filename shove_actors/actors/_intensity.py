"""Restart budget of a supervisor: how many restarts, in how long, before it gives up. Pure.

The budget belongs to the supervisor, not to each child: ten crashing children under a budget of
three give three restarts in all. (A budget per child multiplies: the storm gets larger with the
number of children, which is when it should be stopped sooner.)
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from . import _checks as checks


@dataclass(frozen=True, kw_only=True)
class Intensity:
    """At most `max_restarts` within any `period_s` seconds (boundary included).

    One restart more makes the supervisor give up with `RestartIntensityExceeded`. The default is
    1 in 5 s. `max_restarts=0` means that the first crash is final. `max_restarts=None` never gives
    up; then every restarted child must have a `Backoff`, or a crash at start would be a hot loop.
    """

    max_restarts: int | None = 1
    period_s: float = 5.0

    def __post_init__(self) -> None:
        if self.max_restarts is not None:
            checks.whole_number(
                "Intensity.max_restarts",
                self.max_restarts,
                0,
                "It counts restarts: use 0 for none, None for no limit.",
            )
        checks.positive_seconds(
            "Intensity.period_s", self.period_s, "For no limit use max_restarts=None."
        )


@dataclass(frozen=True, kw_only=True)
class RestartWindow:
    """The restarts a supervisor still remembers, oldest first. Immutable."""

    intensity: Intensity
    times: tuple[float, ...] = ()

    def record(self, now: float) -> RestartWindow:
        """The window after one more restart at `now` (seconds on the supervisor's clock)."""
        if self.intensity.max_restarts is None:
            # Nothing ever compares against an unlimited budget, so nothing is kept either.
            return self
        oldest = now - self.intensity.period_s
        # Oldest first, so what is remembered is a tail; a search of all would make a storm within
        # a large budget quadratic.
        return replace(self, times=(*self.times[bisect_left(self.times, oldest) :], now))

    @property
    def exceeded(self) -> bool:
        """Whether the last `record` went over the budget."""
        limit = self.intensity.max_restarts
        return limit is not None and len(self.times) > limit
