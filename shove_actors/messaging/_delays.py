"""One rule for every delay a user can name: hold queues, `after=`, default delays."""

from __future__ import annotations

import math

# A delayed NAK carries its delay in nanoseconds as a signed 64-bit number, which ends at 292
# years. A delay beyond it does not parse on the server, which then redelivers at once: a delay
# that is too long would become a hot loop. A century is far from both edges.
MAX_DELAY_S = 100 * 365 * 86_400.0


def delay_problem(value: object) -> str | None:
    """Why `value` is no delay in seconds, or None when it is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"must be a number of seconds, not {type(value).__name__}"
    if not math.isfinite(value):
        return "must be a finite number of seconds"
    if value <= 0:
        return f"must be more than 0 seconds, not {value!r}"
    if value > MAX_DELAY_S:
        return f"must be at most {MAX_DELAY_S:.0f} seconds (100 years), not {value!r}"
    return None
