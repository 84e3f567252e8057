"""What an option may be: the rules that options share. `UsageError` names option, value and rule.

A bool is no number here, whatever Python says: `prefetch=True` is a slip, not a 1.
"""

from __future__ import annotations

import math
from typing import Final

from shove_actors._errors import UsageError

#: The longest duration that is one: about thirty years. The server counts nanoseconds in 64 bits,
#: so ten times as long would wrap around there.
LONGEST_S: Final = 1e9


def check_whole(
    value: object, name: str, *, least: int = 0, most: int | None = None, why: str = ""
) -> None:
    """A whole number from `least` to `most`; `why` completes the sentence."""
    rule = f"at least {least}" if most is None else f"from {least} to {most:,}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name}={_shown(value)}: give a whole number, {rule}{why}")
    if value < least or (most is not None and value > most):
        raise UsageError(f"{name}={value}: {rule}{why}")


def check_seconds(
    value: object,
    name: str,
    *,
    least: float = 0.0,
    positive: bool = False,
    why: str = "",
) -> None:
    """A finite number of seconds, at least `least`, or more than 0 where it is to be `positive`."""
    rule = "a positive number of seconds" if positive else f"{least:g} or more seconds"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{name}={_shown(value)}: give {rule}{why}")
    if not least <= value <= LONGEST_S or (positive and not value > 0):
        limit = f", {LONGEST_S:.0e} at most" if value > LONGEST_S else ""
        raise UsageError(f"{name}={value}: {rule}{limit}{why}")


def check_number(value: object, name: str, rule: str) -> None:
    """A finite number; its range is the caller's business."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"{name}={_shown(value)}: {rule}")


def check_switch(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name}={_shown(value)}: give True or False")


def _shown(value: object) -> str:
    """Of foreign types the name: their repr may be anything."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{value!r:.60}"
    return type(value).__name__
