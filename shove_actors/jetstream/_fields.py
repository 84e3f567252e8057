"""Configuration records and their JSON: seconds here, nanoseconds on the wire.

Fields this version does not know are kept in `extra`, so that reading a configuration, changing
one setting and writing it back erases nothing (PC-067). A setting that this version does know may
be given there too, in the server's own form; it ends up in its field (`absorb`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Protocol, TypeVar

from shove_actors._errors import InvalidOption

from ._options import MOST_COUNT, MOST_SECONDS
from ._times import from_datetime, to_datetime_or_none

NS = 1_000_000_000
T = TypeVar("T")

NOTHING: frozenset[str] = frozenset()


class Record(Protocol):
    """A part of a configuration that is a record of its own. If it has `wire`, it is sent, too."""

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Any: ...


#: Which field holds which record, or a tuple of them.
Records = Mapping[str, type[Record]]
_NO_RECORDS: Records = {}


def _nanoseconds(name: str, value: object) -> int:
    """Raises `InvalidOption`: a text times a billion is two gigabytes before it is an error."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidOption(f"{name} is of type {type(value).__name__}; give a number of seconds")
    if not -MOST_SECONDS <= value <= MOST_SECONDS:
        raise InvalidOption(
            f"{name} is {value:g}; give a finite number of seconds, at most {MOST_SECONDS} (292 "
            "years)"
        )
    return round(value * NS)


def _whole(name: str, value: int) -> int:
    """Sequences of the server have no sign, so they reach twice as far as its other numbers."""
    if not -MOST_COUNT <= value <= 2 * MOST_COUNT + 1:
        raise InvalidOption(f"{name} is a number of more than 64 bits; the server counts with less")
    return value


def to_wire(config: object, durations: frozenset[str], always: frozenset[str]) -> dict[str, Any]:
    """`None` is left out, and so are falsy values unless the server needs them spelled."""
    out: dict[str, Any] = {}
    for item in fields(config):  # type: ignore[arg-type]
        if item.name == "extra":
            continue
        value = getattr(config, item.name)
        if value is None or (not value and item.name not in always):
            continue
        if item.name in durations:
            value = (
                [_nanoseconds(item.name, v) for v in value]
                if isinstance(value, tuple)
                else _nanoseconds(item.name, value)
            )
        elif type(value) is int:
            value = _whole(item.name, value)
        elif isinstance(value, tuple):
            value = [v.wire() if hasattr(v, "wire") else v for v in value]
        elif isinstance(value, datetime):
            value = from_datetime(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        elif hasattr(value, "wire"):
            value = value.wire()
        out[item.name] = value
    return {**getattr(config, "extra", {}), **out}


def from_wire(
    kind: type[T],
    raw: Mapping[str, Any],
    durations: frozenset[str] = NOTHING,
    *,
    moments: frozenset[str] = NOTHING,
    records: Records = _NO_RECORDS,
) -> T:
    """The record for what the server sent; what it has no field for goes to `extra`, if any."""
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in names or name == "extra":
            extra[name] = value
        elif value is not None:
            values[name] = _value(name, value, durations, moments, records)
    if "extra" in names:
        values["extra"] = extra
    make: Any = kind
    result: T = make(**values)
    return result


def _value(
    name: str, value: Any, durations: frozenset[str], moments: frozenset[str], records: Records
) -> Any:
    if name in durations:
        return tuple(v / NS for v in value) if isinstance(value, list) else value / NS
    if name in moments:
        return to_datetime_or_none(value)
    if name in records:
        read = records[name].read
        return tuple(read(v) for v in value) if isinstance(value, list) else read(value)
    return tuple(value) if isinstance(value, list) else value


def absorb(
    config: object,
    durations: frozenset[str] = NOTHING,
    *,
    moments: frozenset[str] = NOTHING,
    records: Records = _NO_RECORDS,
) -> None:
    """For `__post_init__`: settings in `extra` that have a field move there.

    A field that was given as well wins. Whoever read the server's words and put them in `extra`
    before the field existed keeps working.
    """
    extra: Mapping[str, Any] = config.extra  # type: ignore[attr-defined]
    rest = dict(extra)
    for item in fields(config):  # type: ignore[arg-type]
        if item.name in rest and item.name != "extra":
            value = rest.pop(item.name)
            if value is not None and getattr(config, item.name) == item.default:
                object.__setattr__(
                    config, item.name, _value(item.name, value, durations, moments, records)
                )
    if len(rest) != len(extra):
        object.__setattr__(config, "extra", rest)
