"""`simulate-autoscaler`: what the autoscaler would do with a load, without a server and at once."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from shove_actors._errors import UsageError
from shove_actors.runtime import AutoscalerConfig, ProportionalStrategy, ThresholdStrategy
from shove_actors.runtime._simulation import SHAPES, Simulation, shape, simulate

from ._base import print_lines
from ._flights import read_flights

FLIGHTS = "flights"
MINUTES_PER_DAY = 24 * 60
#: So many days of flights there are.
DAYS = 31
#: Seconds that are simulated after the last arrival: a load that is not drained by then never is,
#: for whoever waits for the answer.
DRAIN_S = 100_000
_BARS = " .:-=+*#%@"


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Durations in seconds. `takes`: handlers of one consumer at once; `days`: of flights."""

    load: str
    strategy: str
    minimum: int
    maximum: int
    takes: int
    service: float
    poll_interval: float
    hysteresis: float
    cooldown: float
    days: int


class Seconds(click.FloatRange):
    """A finite number of seconds within bounds: beyond them a simulation would not end."""

    name = "S"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{str(value)!r} is not a number of seconds", param, ctx)
        return number


_CONSUMERS: Final = click.IntRange(1, 1000)


@click.command(
    "simulate-autoscaler", epilog="Exit codes: 0 simulated; 2 numbers that make no sense."
)
@click.option("--load", type=click.Choice([*SHAPES, FLIGHTS]), default="step")
@click.option("--strategy", type=click.Choice(["threshold", "proportional"]), default="threshold")
@click.option("--min", "minimum", type=_CONSUMERS, default=1, help="Default 1.")
@click.option("--max", "maximum", type=_CONSUMERS, default=10, help="Default 10.")
@click.option("--takes", type=_CONSUMERS, default=1, help="Handlers of one consumer at once.")
@click.option(
    "--service", type=Seconds(0.001, 3600), default=1.0, help="Seconds per message (default 1)."
)
@click.option("--poll-interval", type=Seconds(0.1, 3600), default=5.0)
@click.option("--hysteresis", type=Seconds(0, 3600), default=10.0)
@click.option("--cooldown", type=Seconds(0, 3600), default=30.0)
@click.option("--days", type=click.IntRange(1, DAYS), default=2, help="Of flights.")
@click.option("--json", "as_json", is_flag=True, help="Every sample, as one JSON object.")
def command(as_json: bool, **options: Any) -> None:
    """What the autoscaler would do with a load.

    Runs the autoscaler's own decisions against a simulated queue. The load 'flights' is the demo's:
    scheduled departures by the minute, one minute per second.
    """
    given = SimulateOptions(**options)
    result = run(given)
    print_lines(*([_as_json(result)] if as_json else _drawn(given, result)))


def run(options: SimulateOptions) -> Simulation:
    """Raises `UsageError` for numbers that make no sense."""
    if options.minimum > options.maximum:
        raise UsageError(f"--min {options.minimum} is above --max {options.maximum}")
    strategy = ThresholdStrategy() if options.strategy == "threshold" else ProportionalStrategy()
    config = AutoscalerConfig(
        poll_interval=options.poll_interval,
        hysteresis=options.hysteresis,
        cooldown=options.cooldown,
        strategy=strategy,
    )
    arrivals = flights_by_minute(options.days) if options.load == FLIGHTS else shape(options.load)
    return simulate(
        arrivals,
        config,
        consumers=(options.minimum, options.maximum),
        takes=options.takes,
        service_s=options.service,
        drain_s=DRAIN_S,
    )


def flights_by_minute(days: int) -> list[int]:
    """Scheduled departures of the first `days` days of January 2013, one number per minute."""
    counts: Counter[int] = Counter()
    for flight in read_flights():
        day, clock = flight.day - 1, flight.sched_dep_time
        counts[day * MINUTES_PER_DAY + clock // 100 * 60 + clock % 100] += 1
    return [counts[minute] for minute in range(days * MINUTES_PER_DAY)]


def _as_json(result: Simulation) -> str:
    return json.dumps(
        {
            "samples": [
                {
                    "at": s.at,
                    "arrived": s.arrived,
                    "pending": s.pending,
                    "in_flight": s.in_flight,
                    "consumers": s.consumers,
                }
                for s in result.samples
            ],
            "changes": result.changes,
        }
    )


def _drawn(options: SimulateOptions, result: Simulation) -> list[str]:
    samples = result.samples
    rows = [
        ("arrived", [s.arrived for s in samples]),
        ("pending", [s.pending for s in samples]),
        ("in flight", [s.in_flight for s in samples]),
        ("consumers", [s.consumers for s in samples]),
    ]
    lines = [
        f"load {options.load}, {options.strategy} strategy, {options.minimum} to {options.maximum} "
        f"consumers of {options.takes}, {options.service:g} s per message",
        f"{samples[-1].at:.0f} s simulated; each column is the most of its part",
        "",
    ]
    for name, values in rows:
        lines.append(f"{name:>10} |{_row(values)}| up to {max(values)}")
    lines.append("")
    for at, before, after in result.changes[:40]:
        lines.append(f"{at:8.0f} s  {before} -> {after}")
    if len(result.changes) > 40:
        lines.append(f"           and {len(result.changes) - 40} more changes")
    lines.append(
        f"{len(result.changes)} changes; at most {result.most_pending} pending; "
        f"{result.consumer_seconds:.0f} consumer-seconds"
    )
    return lines


def _row(values: Sequence[int], width: int = 60) -> str:
    top = max(values) or 1
    columns = min(width, len(values))
    drawn = []
    for column in range(columns):
        first = column * len(values) // columns
        last = max(first + 1, (column + 1) * len(values) // columns)
        level = max(values[first:last]) / top
        drawn.append(_BARS[round(level * (len(_BARS) - 1))])
    return "".join(drawn)
