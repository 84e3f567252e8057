"""Checks of plain values, for specs and arguments: refused where they are given, not where used.

Types are checked although they are annotated. A string in place of an enum member, or a number in
place of a `Shutdown`, would otherwise raise nothing at all: `restart="permanent"` compares unequal
to every member, so the child would quietly never be restarted.
"""

from __future__ import annotations

import math
import sys
from enum import Enum
from types import FunctionType

from shove_actors._errors import UsageError

_LONGEST = 60


def shown(value: object) -> str:
    """A value in a message: short plain ones as they are, others by their type only.

    The `repr` of an arbitrary object may be huge, may raise, or may carry what no log should have.
    """
    if isinstance(value, Enum):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        if isinstance(value, int) and value.bit_length() > 128:
            # Python refuses to print a huge one.
            return "a huge int"
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, FunctionType):
        return f"the function {value.__name__}"
    return f"an object of type {type(value).__name__}"


def refusal(what: str, value: object, rule: str) -> UsageError:
    """The error for a wrong value: the field, the value, the rule with the fix."""
    return UsageError(f"{what} is {shown(value)}: {rule}")


def instance_of(what: str, value: object, kind: type, fix: str) -> None:
    """Refuse what is not a `kind`."""
    if not isinstance(value, kind):
        raise refusal(what, value, f"it must be a {kind.__name__}. {fix}")


def optional(what: str, value: object, kind: type, fix: str) -> None:
    """Refuse what is neither None nor a `kind`."""
    if value is not None and not isinstance(value, kind):
        raise refusal(what, value, f"it must be a {kind.__name__} or None. {fix}")


def member_of(what: str, value: object, kind: type[Enum]) -> None:
    """Refuse what is not a member of the enum; a member's name or value as text is hinted at."""
    if isinstance(value, kind):
        return
    text = value.lower() if isinstance(value, str) else None
    meant = [str(member) for member in kind if member.value == text]
    fix = " or ".join(meant or [str(member) for member in kind])
    raise refusal(what, value, f"it must be a member of {kind.__name__}. Write {fix}.")


def flag(what: str, value: object) -> None:
    """Refuse what is not a bool."""
    if not isinstance(value, bool):
        raise refusal(what, value, "it must be True or False.")


def readable(what: str, value: object) -> None:
    """Refuse what is not a string with something to read in it."""
    if not isinstance(value, str):
        raise refusal(what, value, "it must be a str. Give it a readable one.")
    if not value.strip():
        raise refusal(what, value, "it must not be empty or blank. Give it a readable one.")


def whole_number(what: str, value: object, least: int, fix: str) -> None:
    """Refuse what is not an int of at least `least`; a bool is none here."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refusal(what, value, f"it must be a whole number (int) of at least {least}. {fix}")


def is_number(value: object) -> bool:
    """Whether it is an int or float that is a number (no bool, no nan) and fits in a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value in (math.inf, -math.inf) or abs(value) <= sys.float_info.max


def positive_seconds(what: str, value: float, fix: str, *, finite: bool = True) -> None:
    """Refuse what is not a number of seconds above 0."""
    if not is_number(value) or value <= 0 or (finite and value == math.inf):
        rule = "a finite number of seconds above 0" if finite else "a number of seconds above 0"
        raise refusal(what, value, f"it must be {rule}. {fix}")


def grace_seconds(what: str, value: float, fix: str) -> None:
    """Refuse what is not a number of 0 or more seconds; infinity is one."""
    if not is_number(value) or value < 0:
        raise refusal(what, value, f"it must be 0 or more seconds (int or float). {fix}")
