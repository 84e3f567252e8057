"""Points in time on the wire: RFC 3339 text from nanoseconds since 1970, and back.

Given by the caller, never read here: this floor has no clock.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TEXT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", re.ASCII)


def rfc3339(timestamp_ns: int) -> str:
    """`1970-01-01T00:00:00.000000001Z`: UTC, always nine digits, so that text sorts like time."""
    seconds, rest = divmod(timestamp_ns, 1_000_000_000)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment.replace(tzinfo=None).isoformat()}.{rest:09d}Z"


def from_rfc3339(text: str) -> datetime | None:
    """An aware UTC datetime (microseconds), or None for anything that `rfc3339` did not write."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    try:
        moment = datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return moment + timedelta(microseconds=int((match[2] or "0").ljust(9, "0")[:6]))


def from_ns(timestamp_ns: int) -> datetime:
    """An aware UTC datetime, cut to microseconds; exact, unlike a float of seconds."""
    return _EPOCH + timedelta(microseconds=timestamp_ns // 1000)
