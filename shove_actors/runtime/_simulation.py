"""What an autoscaler would do with a load: the real decisions against a simulated queue.

The queue is the simplest one that shows what matters: messages arrive at a given rate, each takes
a consumer's place for a fixed time, work in hand cannot be interrupted, and only idle consumers can
be stopped. The decisions are those of `_scaling.stabilise`, not a copy. Time is simulated, so an
hour takes milliseconds, and the result is a function of the arguments alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from shove_actors._errors import UsageError

from ._scaling import AutoscalerConfig, Load, Stability, stabilise


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state at the end of one tick. `at`: seconds. `arrived`: messages in this tick."""

    at: float
    arrived: int
    pending: int
    in_flight: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A run. `changes`: `(seconds, before, after)` of each action."""

    samples: Sequence[Sample]
    changes: Sequence[tuple[float, int, int]]

    @property
    def most_pending(self) -> int:
        return max(sample.pending for sample in self.samples)

    @property
    def most_consumers(self) -> int:
        return max(sample.consumers for sample in self.samples)

    @property
    def consumer_seconds(self) -> float:
        """What the consumers cost: their number, summed over time."""
        total, last = 0.0, 0.0
        for sample in self.samples:
            total += sample.consumers * (sample.at - last)
            last = sample.at
        return total


def simulate(
    arrivals: Sequence[int],
    config: AutoscalerConfig,
    *,
    consumers: tuple[int, int],
    takes: int = 1,
    service_s: float = 1.0,
    tick_s: float = 1.0,
    drain: bool = True,
    drain_s: float = math.inf,
) -> Simulation:
    """Run `arrivals` (messages per tick of `tick_s` seconds) against the autoscaler.

    `service_s`: what a handler takes. `takes`: handlers that one consumer runs at once.
    `drain=True`: go on after the last arrival until nothing is left and the fewest consumers run,
    at most ten times as long as one consumer would need. `drain_s`: raises `UsageError` when that
    takes longer than so many seconds after the last arrival.
    """
    low, high = consumers
    if not 1 <= low <= high or takes < 1 or not service_s > 0 or not tick_s > 0:
        raise UsageError(
            f"simulate(consumers={consumers}, takes={takes}, service_s={service_s}, "
            f"tick_s={tick_s}): needs 1 <= min <= max, takes >= 1, positive times"
        )
    total = sum(arrivals)
    limit = len(arrivals)
    if drain:
        work = math.ceil(10 * total * service_s / (low * takes) / tick_s)
        settle = (config.hysteresis + config.cooldown + 2 * config.poll_interval) / tick_s
        limit += work + math.ceil(settle) * (high - low + 1) + 1
    #: When each message in hand will be done, and in which consumer.
    busy: list[tuple[float, int]] = []
    hands = dict.fromkeys(range(low), 0)
    next_number = low
    pending = 0
    state, poll_at = Stability(), config.poll_interval
    samples: list[Sample] = []
    changes: list[tuple[float, int, int]] = []
    for tick in range(limit):
        now, end = tick * tick_s, (tick + 1) * tick_s
        if (tick - len(arrivals)) * tick_s > drain_s:
            raise UsageError(
                f"{pending + len(busy)} messages are left, and {len(hands)} consumers run, "
                f"{drain_s:,.0f} s after the last arrival: take more consumers (--max, --takes) or "
                "a shorter --service, or a shorter --cooldown and --hysteresis"
            )
        arrived = arrivals[tick] if tick < len(arrivals) else 0
        pending += arrived
        while True:
            # As many as fit; a place that becomes free within the tick is used within it.
            for number in hands if pending and len(busy) < takes * len(hands) else ():
                if not pending:
                    break
                take = min(takes - hands[number], pending)
                for _ in range(take):
                    heapq.heappush(busy, (now + service_s, number))
                hands[number] += take
                pending -= take
            if not busy or busy[0][0] > end:
                break
            now, number = heapq.heappop(busy)
            hands[number] -= 1
        while poll_at <= end:
            load = Load(
                pending=pending,
                in_flight=len(busy),
                consumers=len(hands),
                takes=takes,
                minimum=low,
                maximum=high,
            )
            before, count = state, len(hands)
            state, target = stabilise(before, load, poll_at, config)
            if target is not None:
                while len(hands) < target:
                    hands[next_number] = 0
                    next_number += 1
                idle = [number for number, held in hands.items() if not held]
                for number in idle[: max(0, len(hands) - target)]:
                    del hands[number]
                if len(hands) == count:
                    state = before
                else:
                    changes.append((poll_at, count, len(hands)))
            poll_at += config.poll_interval
        samples.append(
            Sample(
                at=end,
                arrived=arrived,
                pending=pending,
                in_flight=len(busy),
                consumers=len(hands),
            )
        )
        if tick >= len(arrivals) - 1 and not pending and not busy and len(hands) == low:
            break
    return Simulation(samples=samples, changes=changes)


def _step(second: int) -> float:
    return 8.0 if 60 <= second < 360 else 0.5


def _burst(second: int) -> float:
    return 300.0 if second in (60, 300) else 0.2


def _sawtooth(second: int) -> float:
    return (second % 120) / 120 * 12


#: Ready-made loads: messages per second at a second, for 600 seconds.
SHAPES: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {"step": _step, "burst": _burst, "sawtooth": _sawtooth}
)


def shape(name: str, seconds: int = 600) -> list[int]:
    """The arrivals of a ready-made load, one number per second; fractions add up."""
    try:
        rate = SHAPES[name]
    except KeyError:
        raise UsageError(f"no load is called {name!r}; there are {', '.join(SHAPES)}") from None
    arrivals, carried = [], 0.0
    for second in range(seconds):
        carried += rate(second)
        whole = int(carried)
        arrivals.append(whole)
        carried -= whole
    return arrivals
