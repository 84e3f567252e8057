"""Supervised children as notes on paper, and what both worlds of the supervisor machine share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from shove_actors.actors import (
    AutoShutdown,
    Backoff,
    Exit,
    Intensity,
    Restart,
    State,
    Strategy,
)

PERIOD_S = 10.0
OVERRUN_S = 4.0
#: What the source of jitter gives, over and over. All times are sums of powers of two: exact.
DRAWS = (0.0, 0.5, 0.75)

Fact = tuple[str, str, float, float, int]
Seen = tuple[str, str, str, float]
"""What a run reports, in order: (up, down, rejected, add or remove; id; kind of exit; time)."""


class Manner(Enum):
    """How a child takes a request to stop."""

    PROMPT = "ends when asked"
    SLOW = "ends when told, or cancelled"
    STUBBORN = "ends when told"


class Boom(Exception):
    """What children crash with; says which incarnation it was."""


@dataclass(frozen=True)
class Traits:
    """A child, as far as it matters here."""

    restart: Restart = Restart.PERMANENT
    backoff: Backoff | None = None
    significant: bool = False
    manner: Manner = Manner.PROMPT
    grace_s: float = 2.0
    timeout_s: float | None = None


@dataclass(frozen=True)
class Setup:
    """A supervisor and its first children. `strategy=None` is a dynamic one."""

    strategy: Strategy | None
    budget: int
    auto: AutoShutdown = AutoShutdown.NEVER
    pool_grace_s: float | None = None
    children: tuple[Traits, ...] = ()

    @property
    def intensity(self) -> Intensity:
        return Intensity(max_restarts=self.budget, period_s=PERIOD_S)

    def named(self) -> dict[str, Traits]:
        """The children of a static one, by id; significant only where the specs allow it."""
        if self.strategy is None:
            return {}
        return {
            f"c{n}": replace(
                each,
                significant=each.significant
                and self.auto is not AutoShutdown.NEVER
                and each.restart is not Restart.PERMANENT,
            )
            for n, each in enumerate(self.children)
        }


def chain(error: BaseException | None) -> list[str]:
    """An error and its causes, for comparing: the types, and what a `Boom` says."""
    names = []
    while error is not None:
        names.append(str(error) if isinstance(error, Boom) else type(error).__name__)
        error = error.__cause__
    return names


class Child:
    """One slot, and its present incarnation."""

    def __init__(self, id_: str, traits: Traits) -> None:
        self.id = id_
        self.traits = traits
        self.number = 0
        self.state = State.DOWN
        self.last_exit: Exit | None = None
        self.forgotten = False
        self.removed = False
        self.done_with = False
        """Ended by itself in a way that is not answered with a restart."""
        self.not_before = 0.0
        self.failures = 0
        self.draw = 0.0
        self.up_since = 0.0
        self.began = 0
        """Which start of all it was, and how many restarts had been counted by then."""
        self.epoch = 0
        self._clear()

    def _clear(self) -> None:
        self.alive = False
        self.up = False
        self.said_started = False
        self.start_cancelled = False
        self.asked_at: float | None = None
        self.killed_at: float | None = None
        self.unwatch()

    def start(self, now: float) -> None:
        self._clear()
        self.alive = True
        self.number += 1
        self.state = State.STARTING
        if self.traits.timeout_s is not None:
            self.start_due = now + self.traits.timeout_s

    def unwatch(self) -> None:
        self.in_grace = False
        self.start_due = self.grace_due = self.overrun_due = math.inf

    @property
    def starting(self) -> bool:
        return self.alive and not self.up

    @property
    def under_way(self) -> bool:
        """Starting or stopping."""
        stopping = self.asked_at is not None or self.killed_at is not None
        return self.alive and (stopping or not self.up)

    @property
    def stage(self) -> tuple[int, bool, bool]:
        """What its function knows: number, whether it said started, whether it was asked."""
        return self.number, self.said_started, self.asked_at is not None


class TooSlow(Exception):
    """Stands for `trio.TooSlowError`, which is not of this world."""


TooSlow.__name__ = "TooSlowError"
