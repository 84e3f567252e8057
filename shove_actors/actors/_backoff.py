"""How long a slot waits before it is started again. Pure: the random draw is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from shove_actors._errors import UsageError

from . import _checks as checks


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Exponential pause: `initial_s`, doubled for each failure in a row, never above `max_s`.

    `jitter` lengthens each pause by a random part of up to that fraction; the cap comes *after*
    the jitter, so `max_s` is a real bound. An incarnation that lived `reset_after_s` (default:
    the middle of `initial_s` and `max_s`) makes the next pause start over at `initial_s`.

    Choose one role per child: unlimited restarts with backoff (the cause is the network), or a
    budget with short pauses (the cause is a bug). 1, 2, 4, 8 s never puts four restarts in 5 s,
    so a budget of 3 in 5 s under that backoff never trips.
    """

    initial_s: float
    max_s: float
    jitter: float = 0.0
    reset_after_s: float | None = None

    def __post_init__(self) -> None:
        checks.positive_seconds(
            "Backoff.initial_s",
            self.initial_s,
            "For immediate restarts give the child no backoff.",
        )
        checks.positive_seconds("Backoff.max_s", self.max_s, "It bounds every pause.")
        if self.max_s < self.initial_s:
            raise UsageError(
                f"Backoff.max_s is {self.max_s}: it must be at least initial_s "
                f"({self.initial_s}). Raise it, or lower initial_s."
            )
        if not checks.is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise checks.refusal(
                "Backoff.jitter", self.jitter, "it must be a fraction from 0 to 1. Use 0 for none."
            )
        if self.reset_after_s is not None:
            checks.grace_seconds(
                "Backoff.reset_after_s",
                self.reset_after_s,
                "For the middle of initial_s and max_s use None.",
            )

    @property
    def quiet_s(self) -> float:
        """Lifetime after which an incarnation counts as healthy."""
        if self.reset_after_s is not None:
            return self.reset_after_s
        return (self.initial_s + self.max_s) / 2

    def delay_s(self, failures: int, draw: float) -> float:
        """Pause after the `failures`-th failure in a row (1 or more); `draw` is in [0, 1)."""
        # The exponent is bounded: 2.0 ** 1024 raises, and a child may fail for weeks.
        base = min(self.max_s, self.initial_s * 2.0 ** min(failures - 1, 1000))
        return min(self.max_s, base * (1 + self.jitter * draw))
