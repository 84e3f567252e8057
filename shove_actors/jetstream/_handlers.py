"""Whether what a caller gives can be awaited for each message."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable

from shove_actors._errors import InvalidOption

from ._message import Message

#: Called for one message at a time, in order.
Handler = Callable[[Message], Awaitable[object]]

_FIX = "write `async def handler(message): ...`"


def check_handler(handler: Handler) -> None:
    """Raises `InvalidOption` for what is certainly not asynchronous.

    A lambda, or an object with `__call__`, may return something to be awaited; that shows with the
    first message (`not_awaitable`).
    """
    if not callable(handler):
        raise InvalidOption(f"handler is of type {type(handler).__name__}; {_FIX}")
    function: object = handler
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function) if callable(function) else function
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidOption(f"handler is a generator function, which nobody iterates over; {_FIX}")
    if (
        inspect.isroutine(function)
        and not inspect.isbuiltin(function)
        and not inspect.iscoroutinefunction(function)
        and getattr(function, "__name__", "") != "<lambda>"
    ) or inspect.isclass(function):
        raise InvalidOption(f"handler is not asynchronous, and would hold everybody up; {_FIX}")


def not_awaitable(answer: object) -> InvalidOption:
    """What to raise for a handler whose answer cannot be awaited."""
    return InvalidOption(
        f"handler returned {type(answer).__name__} in place of something to be awaited; {_FIX}"
    )
