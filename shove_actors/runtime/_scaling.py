"""How many consumers: decisions as pure functions of what was measured.

    strategy     one sample -> how many consumers it calls for          `ThresholdStrategy.wanted`
    stabiliser   a stream of samples -> when to act on that             `stabilise`

The load is what waits *and* what is being handled: a queue is not idle because all of its messages
are in handlers (PC-088, SW-49). The capacity is what the consumers really take at once: one
message each, or `prefetch` with concurrent processing (PC-090, SW-48).

The stabiliser acts when the same direction has been called for without a break for `hysteresis`
seconds, and not before `cooldown` seconds after the last action. A sample that calls for nothing,
for the other direction, or that could not be taken, breaks the hold, in the cooldown as well; what
cannot be done (above the maximum, below the minimum) starts no cooldown (PC-091, SW-50). Proof:
`tests/runtime/test_scaling.py`, `properties/test_autoscaler.py`.
"""

from __future__ import annotations

import inspect
import math
import operator
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from shove_actors._errors import UsageError

from ._checks import check_number, check_seconds, check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One sample of one topic.

    `pending`: stored and never delivered. `in_flight`: delivered and unsettled, in all processes.
    `consumers`: running in this process. `takes`: messages that one consumer handles at once.
    """

    pending: int
    in_flight: int
    consumers: int
    takes: int
    minimum: int
    maximum: int

    @property
    def ready(self) -> int:
        """All that is to be done."""
        return self.pending + self.in_flight

    @property
    def capacity(self) -> int:
        """What the running consumers handle at once."""
        return self.consumers * self.takes

    def clamp(self, wanted: int) -> int:
        """`wanted`, inside the range that the user gave."""
        return max(self.minimum, min(self.maximum, wanted))


@runtime_checkable
class ScalingStrategy(Protocol):
    """How many consumers one sample calls for.

    Pure: no state, no clock. What it answers outside the range is cut to it. An exception, or an
    answer that is no whole number, means that nothing changes (it is logged); stabilising is not
    its business. See `ThresholdStrategy` for an implementation.
    """

    def wanted(self, load: Load) -> int: ...


class NoNumber(UsageError):
    """A strategy answered with something that is no number of consumers."""


def ask(strategy: ScalingStrategy, load: Load) -> int:
    """What the strategy wants, whole; a float without a fraction is as good as an int.

    Raises `NoNumber`, and whatever the strategy raises.
    """
    answer: object = strategy.wanted(load)
    if isinstance(answer, float) and answer.is_integer():
        return int(answer)
    if not isinstance(answer, bool):
        try:
            return operator.index(answer)  # type: ignore[arg-type]
        except TypeError:
            pass
    shown = repr(answer) if isinstance(answer, (bool, float)) else f"a {type(answer).__name__}"
    raise NoNumber(
        f"{type(strategy).__name__}.wanted answered {shown}, not a whole number of consumers "
        "(math.ceil makes one of a fraction)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdStrategy:
    """`step` consumers more above `up` times the capacity, `step` fewer below `down` times.

    On a threshold nothing changes. Nor does it take a step that the same load would make it take
    back: however close the thresholds are, a steady load leads to a steady number.
    """

    up: float = 2.0
    down: float = 0.5
    step: int = 1

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            check_number(
                getattr(self, name), f"ThresholdStrategy {name}", "give a number, 0 <= down < up"
            )
        if not 0 <= self.down < self.up < math.inf:
            raise UsageError(
                f"ThresholdStrategy(up={self.up}, down={self.down}): needs 0 <= down < up, or it "
                "would grow and shrink on the same sample"
            )
        check_whole(self.step, "ThresholdStrategy step", least=1, why=", in consumers")

    def wanted(self, load: Load) -> int:
        now, ready = load.consumers, load.ready
        if ready > load.capacity * self.up:
            most = now + self.step
            if self.down:
                # More than these, and this very load would be below the lower threshold.
                most = math.floor(min(most, ready / (load.takes * self.down)))
            return max(now, most)
        if ready < load.capacity * self.down:
            fewest = math.ceil(ready / (load.takes * self.up))
            return min(now, max(now - self.step, fewest))
        return now


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalStrategy:
    """At once as many consumers as keep each at `target` messages waiting or in hand per place.

    For bursts: where `ThresholdStrategy` needs one action per consumer, this needs one. It stays
    where it is while the load is within `tolerance` (a fraction) of what the consumers are for.
    """

    target: float = 1.0
    tolerance: float = 0.5

    def __post_init__(self) -> None:
        check_number(self.target, "ProportionalStrategy target", "a positive number")
        if not self.target > 0:
            raise UsageError(f"ProportionalStrategy target={self.target}: a positive number")
        check_number(self.tolerance, "ProportionalStrategy tolerance", "0 up to below 1")
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"ProportionalStrategy tolerance={self.tolerance}: 0 up to below 1")

    def wanted(self, load: Load) -> int:
        per_consumer = load.takes * self.target
        meant_for = load.consumers * per_consumer
        low, high = meant_for * (1 - self.tolerance), meant_for * (1 + self.tolerance)
        if low <= load.ready <= high:
            return load.consumers
        return math.ceil(min(load.ready / per_consumer, load.maximum))


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerConfig:
    """When to look and when to act; durations are seconds.

    `poll_interval`: between two looks at the backlog. `hysteresis`: how long without a break the
    load must call for a change. `cooldown`: at least this long between two changes. `strategy`: how
    many consumers one sample calls for.
    """

    poll_interval: float = 5.0
    hysteresis: float = 10.0
    cooldown: float = 30.0
    strategy: ScalingStrategy = field(default_factory=ThresholdStrategy)

    def __post_init__(self) -> None:
        check_seconds(self.poll_interval, "AutoscalerConfig poll_interval", positive=True)
        check_seconds(self.hysteresis, "AutoscalerConfig hysteresis")
        check_seconds(self.cooldown, "AutoscalerConfig cooldown")
        strategy: object = self.strategy
        if isinstance(strategy, type):
            raise UsageError(
                f"AutoscalerConfig strategy={strategy.__name__}: give an object, "
                f"{strategy.__name__}(...), not its class"
            )
        wanted = getattr(strategy, "wanted", None)
        if not callable(wanted) or inspect.iscoroutinefunction(wanted):
            raise UsageError(
                f"AutoscalerConfig strategy={type(strategy).__name__}: needs a plain (not async) "
                "method wanted(load) that returns a number of consumers"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """What the stabiliser remembers: the direction called for and since when, the last action."""

    direction: int = 0
    since: float = 0.0
    acted_at: float = -math.inf


def stabilise(
    state: Stability, load: Load | None, now: float, config: AutoscalerConfig
) -> tuple[Stability, int | None]:
    """The next state, and the number of consumers to go to, or None to leave them as they are.

    `load=None`: the backlog is not known. Unknown is not a backlog and not its absence (PC-086).
    Raises whatever the strategy raises, and `NoNumber`.
    """
    if load is None:
        return replace(state, direction=0), None
    target = load.clamp(ask(config.strategy, load))
    direction = (target > load.consumers) - (target < load.consumers)
    if direction == 0:
        return replace(state, direction=0), None
    if direction != state.direction:
        state = replace(state, direction=direction, since=now)
    if now - state.since < config.hysteresis or now - state.acted_at < config.cooldown:
        return state, None
    return Stability(acted_at=now), target
