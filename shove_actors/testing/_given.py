"""What callers of `shove_actors.testing` give: whatever would be accepted and then do nothing, or
fail later and elsewhere, is a `UsageError` that names it, the rule and what to give instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable
from typing import get_args

import trio

from shove_actors._errors import UsageError

from ._moves import Move

MOVES: tuple[Move, ...] = get_args(Move)


def check_kind(value: object, name: str, kind: type | tuple[type, ...], give: str) -> None:
    """An object of that kind; `give` says what that is."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {kind_of(value)}: give {give}")


def check_text(value: object, name: str) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is {kind_of(value) if value != '' else 'empty'}: give its name")


def check_one_of(value: object, name: str, possible: Collection[object]) -> None:
    if not isinstance(value, str) or value not in possible:
        shown = repr(value) if isinstance(value, str) else kind_of(value)
        raise UsageError(f"{name}={shown}: one of {', '.join(map(str, possible))}")


def check_function(value: object, name: str, give: str) -> None:
    if not callable(value):
        if inspect.iscoroutine(value):
            value.close()  # nobody will await it
            give += ", not yet called"
        raise UsageError(f"{name} is {kind_of(value)}: give {give}")


def check_names(value: Iterable[str], name: str) -> None:
    """Several names. One alone would be taken for its letters."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise UsageError(f"{name} is {kind_of(value)}: give a list of names")


def check_moves(value: Iterable[str], name: str) -> None:
    """What a handler does in its attempts."""
    check_kind(value, name, (list, tuple), "a tuple of moves, such as ('retry', 'ack')")
    for move in value:
        check_one_of(move, f"{name}: a move", MOVES)


def in_trio() -> bool:
    """Whether there is a Trio clock to ask."""
    try:
        trio.current_time()
    except RuntimeError:
        return False
    return True


def kind_of(value: object) -> str:
    """What it is, in words; never what it holds."""
    if value is None:
        return "None"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"
