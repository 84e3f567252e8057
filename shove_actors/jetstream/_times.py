"""The server's time stamps as aware `datetime`, and back.

The server writes RFC 3339 with up to nine decimals and means UTC; `datetime` has six, so reading
cuts off the nanoseconds (`parse_time_ns` in `_clock.py` keeps them).
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from shove_actors._errors import InvalidOption

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Go's zero time, which the server writes where nothing has happened yet.
_ZERO = "0001-01-01T00:00:00"


def to_datetime(text: str) -> datetime:
    """RFC 3339 of any offset, as UTC. `datetime.fromisoformat` of Python 3.10 reads neither `Z`
    nor nine decimals."""
    whole, rest = text[:19], text[19:]
    micros = 0
    if rest.startswith("."):
        digits = ""
        for character in rest[1:]:
            if not character.isdigit():
                break
            digits += character
        rest = rest[1 + len(digits) :]
        micros = int(digits[:6].ljust(6, "0"))
    moment = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(
        microsecond=micros, tzinfo=timezone.utc
    )
    if rest[:1] in ("+", "-"):
        hours, _, minutes = rest[1:].partition(":")
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        moment = moment - offset if rest[0] == "+" else moment + offset
    return moment


def to_datetime_or_none(text: object) -> datetime | None:
    """As `to_datetime`; None for what is missing, empty or Go's zero time."""
    if not isinstance(text, str) or not text or text.startswith(_ZERO):
        return None
    return to_datetime(text)


def from_datetime(moment: datetime) -> str:
    """RFC 3339 in UTC. Raises `InvalidOption` for a naive one: whose noon would it be?"""
    if moment.tzinfo is None:
        raise InvalidOption(
            f"{moment.isoformat()} has no time zone; give an aware datetime, such as "
            "datetime.now(timezone.utc)"
        )
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat() + "Z"


def datetime_of_ns(ns: int) -> datetime:
    """Nanoseconds since 1970 (as in an acknowledgement's subject)."""
    return EPOCH + timedelta(microseconds=ns // 1000)
