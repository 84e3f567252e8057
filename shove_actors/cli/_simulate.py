"""`simulate-autoscaler`: what the autoscaler would do with a load, without a server and at once."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence

from shove_actors._errors import UsageError
from shove_actors.runtime import AutoscalerConfig, ProportionalStrategy, ThresholdStrategy
from shove_actors.runtime._simulation import SHAPES, Simulation, shape, simulate

from ._flights import read_flights

COMMAND = "simulate-autoscaler"
FLIGHTS = "flights"
MINUTES_PER_DAY = 24 * 60
_BARS = " .:-=+*#%@"


def add_parser(add: Callable[..., argparse.ArgumentParser], positive: Callable[[str], int]) -> None:
    parser = add(
        COMMAND,
        help="what the autoscaler would do with a load",
        description="Runs the autoscaler's own decisions against a simulated queue. The load "
        "'flights' is the demo's: scheduled departures by the minute, one minute per second.",
    )
    parser.add_argument("--load", choices=[*SHAPES, FLIGHTS], default="step")
    parser.add_argument("--strategy", choices=["threshold", "proportional"], default="threshold")
    parser.add_argument("--min", type=positive, default=1, metavar="N", help="default 1")
    parser.add_argument("--max", type=positive, default=10, metavar="N", help="default 10")
    parser.add_argument(
        "--takes", type=positive, default=1, metavar="N", help="handlers of one consumer at once"
    )
    parser.add_argument(
        "--service", type=float, default=1.0, metavar="S", help="seconds per message (default 1)"
    )
    parser.add_argument("--poll-interval", type=float, default=5.0, metavar="S")
    parser.add_argument("--hysteresis", type=float, default=10.0, metavar="S")
    parser.add_argument("--cooldown", type=float, default=30.0, metavar="S")
    parser.add_argument("--days", type=positive, default=2, metavar="N", help="of flights")
    parser.add_argument("--json", action="store_true", help="every sample, as one JSON object")


def run(options: argparse.Namespace) -> list[str]:
    """The lines to print. Raises `UsageError` for numbers that make no sense."""
    if options.min > options.max:
        raise UsageError(f"--min {options.min} is above --max {options.max}")
    strategy = ThresholdStrategy() if options.strategy == "threshold" else ProportionalStrategy()
    config = AutoscalerConfig(
        poll_interval=options.poll_interval,
        hysteresis=options.hysteresis,
        cooldown=options.cooldown,
        strategy=strategy,
    )
    arrivals = flights_by_minute(options.days) if options.load == FLIGHTS else shape(options.load)
    result = simulate(
        arrivals,
        config,
        consumers=(options.min, options.max),
        takes=options.takes,
        service_s=options.service,
    )
    return [_as_json(result)] if options.json else _drawn(options, result)


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


def _drawn(options: argparse.Namespace, result: Simulation) -> list[str]:
    samples = result.samples
    rows = [
        ("arrived", [s.arrived for s in samples]),
        ("pending", [s.pending for s in samples]),
        ("in flight", [s.in_flight for s in samples]),
        ("consumers", [s.consumers for s in samples]),
    ]
    lines = [
        f"load {options.load}, {options.strategy} strategy, {options.min} to {options.max} "
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
