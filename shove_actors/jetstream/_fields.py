"""Configuration records and their JSON: seconds here, nanoseconds on the wire.

Fields this version does not know are kept in `extra`, so that reading a configuration, changing
one setting and writing it back erases nothing (PC-067).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

NS = 1_000_000_000
T = TypeVar("T")


def to_wire(config: object, durations: frozenset[str], always: frozenset[str]) -> dict[str, Any]:
    """`None` is left out, and so are falsy values unless the server needs them spelled."""
    out: dict[str, Any] = {}
    for item in fields(config):  # type: ignore[arg-type]
        if item.name == "extra":
            continue
        value = getattr(config, item.name)
        if value is None:
            continue
        if item.name in durations:
            value = (
                [round(v * NS) for v in value] if isinstance(value, tuple) else round(value * NS)
            )
        elif isinstance(value, tuple):
            value = list(value)
        if not value and value is not False and item.name not in always:
            continue
        out[item.name] = value
    return {**getattr(config, "extra", {}), **out}


def from_wire(kind: type[T], raw: Mapping[str, Any], durations: frozenset[str]) -> T:
    known = {item.name for item in fields(kind)} - {"extra"}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in known:
            extra[name] = value
        elif name in durations:
            values[name] = tuple(v / NS for v in value) if isinstance(value, list) else value / NS
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    make: Any = kind
    result: T = make(**values, extra=extra)
    return result
