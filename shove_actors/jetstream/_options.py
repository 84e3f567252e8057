"""Checks of what callers give. Each returns the value, so that it can be used at once."""

from __future__ import annotations

import inspect
import math
from typing import TypeVar

from shove_actors._errors import InvalidOption

T = TypeVar("T")

#: What the server counts with, and the same in nanoseconds: 292 years.
MOST_COUNT = 2**63 - 1
MOST_SECONDS = MOST_COUNT // 1_000_000_000


def as_bytes(name: str, value: object) -> bytes:
    """Content that a caller gives. Raises `InvalidOption`: `bytes(5)` is five zeros."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return encoded(name, value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise InvalidOption(
        f"{name} is of type {type(value).__name__}; give bytes or str (of an object, its JSON)"
    )


def encoded(name: str, text: str) -> bytes:
    """A text as UTF-8. Raises `InvalidOption`, without showing it."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidOption(
            f"{name} contains half of a surrogate pair, which is no text (was it read with "
            "'surrogateescape'?); give text, or bytes"
        ) from None


def check_count(name: str, value: int, *, least: int = 1, most: int | None = None) -> int:
    """A whole number in a range. Raises `InvalidOption`."""
    most = MOST_COUNT if most is None else most
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(f"{name} is of type {type(value).__name__}; give a whole number")
    if not least <= value <= most:
        upper = f" and at most {most}" if most < MOST_COUNT or value > most else ""
        raise InvalidOption(f"{name} is {value}; it must be at least {least}{upper}")
    return value


def check_seconds(
    name: str, value: float, *, least: float = 0.0, most: float = MOST_SECONDS
) -> float:
    """A finite number of seconds above 0, or from `least` on. Raises `InvalidOption`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidOption(f"{name} is of type {type(value).__name__}; give a number of seconds")
    # Before anything else: a whole number may be too large for `isfinite`.
    if not least <= value <= most or not math.isfinite(value) or value <= 0:
        lower = f"at least {least:g}" if least else "more than 0"
        upper = f" and at most {most:g}" if most < MOST_SECONDS or value > most else ""
        raise InvalidOption(f"{name} is {value!r}; it must be {lower}{upper} seconds, and finite")
    return value


def check_text(name: str, value: str, *, empty: bool = True) -> str:
    """A string; with `empty=False` one that says something. Raises `InvalidOption`."""
    if not isinstance(value, str):
        raise InvalidOption(f"{name} is of type {type(value).__name__}; give a string")
    if not value and not empty:
        raise InvalidOption(f"{name} is empty; give a string that is not")
    return value


def check_flag(name: str, value: bool) -> bool:
    """Yes or no. Raises `InvalidOption`: any other object would be taken for a yes."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} is of type {type(value).__name__}; give True or False")
    return value


def check_kind(name: str, value: T, kind: type | tuple[type, ...], give: str) -> T:
    """An object of that kind; `give` says what that is. Raises `InvalidOption`."""
    if not isinstance(value, kind):
        raise InvalidOption(f"{name} is of type {type(value).__name__}; give {give}")
    return value


def check_function(name: str, value: T) -> T:
    """Whatever can be called. Raises `InvalidOption`."""
    if not callable(value):
        raise InvalidOption(f"{name} is of type {type(value).__name__}; give a function")
    return value


def check_callback(name: str, value: T) -> T:
    """A plain function that is called and not waited for. Raises `InvalidOption` for anything else,
    also for a coroutine function: it would be called, and never awaited."""
    check_function(name, value)
    if inspect.iscoroutinefunction(value):
        raise InvalidOption(
            f"{name} is a coroutine function; give a plain one, such as the `send_nowait` of a "
            "memory channel"
        )
    return value
