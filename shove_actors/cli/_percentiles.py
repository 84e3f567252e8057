"""Percentiles of what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

SHARES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """`p50`, `p95`, `p99`, `max`; nothing of nothing. Each is a value that was measured."""
    ordered = sorted(values)
    return {name: nearest(ordered, share) for name, share in SHARES.items()} if ordered else {}


def nearest(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed (nearest rank)."""
    rank = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[max(0, min(len(ordered), rank) - 1)]


def duration(seconds: float) -> str:
    """For people: three digits and a unit."""
    for factor, unit in ((1e-3, "us"), (1.0, "ms")):
        if seconds < factor:
            scaled = seconds / factor * 1000
            return (
                f"{scaled:.3g} {unit}" if scaled < 999.5 else f"1 {'ms' if unit == 'us' else 's'}"
            )
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
