"""Durations as the server reads them from headers."""

from __future__ import annotations

import math


def go_duration(seconds: float) -> str:
    """`90.0` -> "90s", `1.5` -> "1500ms"."""
    if float(seconds).is_integer():
        return f"{int(seconds)}s"
    return f"{round(seconds * 1000)}ms"


def whole_seconds(seconds: float) -> str:
    """Rounded up: nobody's message lives shorter than asked. The server counts whole seconds."""
    return f"{math.ceil(seconds)}s"
