"""How one incarnation of a child ended, and which errors are its supervisor's business.

An *exit* is something a supervisor may answer with a restart. `KeyboardInterrupt`, `SystemExit`
and every other `BaseException` that is neither an ordinary error nor a cancellation are *fatal*:
no supervisor answers them, they take the whole tree down (after an ordered stop).

The split happens after the child's own cancel scope has taken its `Cancelled` out of a group, so
that what is left decides. A group of ordinary errors is one crash, not several.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


@dataclass(frozen=True)
class Returned:
    """The function returned although nobody asked it to stop."""


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """The function raised an ordinary error, or a group of nothing but ordinary errors.

    Or, if `error` is no `Exception` (`SystemExit`, `KeyboardInterrupt`), a fatal one: it is raised
    on, and the whole tree goes down. Only listeners, `watch` and snapshots see that exit.
    """

    error: BaseException


@dataclass(frozen=True)
class Stopped:
    """The function ended because it was asked to, within its grace."""


@dataclass(frozen=True)
class Killed:
    """The function was cancelled: brutal kill, or its grace ran out."""


Exit = Returned | Crashed | Stopped | Killed


def split_error(error: BaseException) -> tuple[Exception | None, BaseException | None]:
    """Divide what a child raised into its ordinary part and everything else.

    The first part is what a supervisor may answer; the second (fatal exceptions, foreign
    cancellations) must be raised on. Either may be None, never both.
    """
    if isinstance(error, Exception):
        return error, None
    if isinstance(error, BaseExceptionGroup):
        ordinary, rest = error.split(Exception)
        if rest is None:
            return ordinary, None
        return ordinary, error if ordinary is None else rest
    return None, error


def describe(exit_: Exit) -> str:
    """Name an exit for a message: the type of an error, never its text (it may hold data)."""
    if isinstance(exit_, Crashed):
        return f"crashed with {type(exit_.error).__name__}"
    if isinstance(exit_, Returned):
        return "returned without being asked to stop"
    return "stopped" if isinstance(exit_, Stopped) else "was killed"
