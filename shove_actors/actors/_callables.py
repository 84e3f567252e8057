"""Checks of functions handed in: what can be known without calling them.

Only a known wrong kind is refused. Not known, and so accepted: what is compiled, what carries
`__wrapped__` (its decorator decides what comes back), and a plain function that is annotated to
return an awaitable. Any other plain `def` or `lambda` counts as synchronous.
"""

from __future__ import annotations

import functools
import inspect
from enum import Enum
from types import FunctionType

from ._checks import refusal

_START_FIX = (
    "Write `async def actor(ctx): ...`. A class goes in as of_class(...), a pool as a child of its "
    "own by pool.spec(id=...), a supervisor by supervisor(...)."
)
_RECEIVE_FIX = "Give it `async def receive(self, message): ...`."


class _Calling(Enum):
    """What a call of a function gives."""

    AWAITABLE = "awaitable"
    STREAM = "stream"
    RESULT = "result"
    UNKNOWN = "unknown"


def _calling(function: object) -> _Calling:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return _Calling.AWAITABLE
    if hasattr(function, "__wrapped__"):
        return _Calling.UNKNOWN
    if not isinstance(function, type) and not inspect.isroutine(function):
        function = getattr(type(function), "__call__", function)  # noqa: B004
    code = getattr(function, "__func__", function)
    if inspect.iscoroutinefunction(code):
        return _Calling.AWAITABLE
    if inspect.isasyncgenfunction(code):
        return _Calling.STREAM
    if not isinstance(code, FunctionType):
        return _Calling.UNKNOWN
    returns = str(code.__annotations__.get("return", ""))
    iterable = code.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE
    if iterable or "Awaitable" in returns or "Coroutine" in returns:
        return _Calling.UNKNOWN
    return _Calling.RESULT


def _takes_one(function: object) -> bool:
    """Whether it can be called with one argument, as far as that is known."""
    if isinstance(function, FunctionType):
        code = function.__code__
        if code.co_argcount == 1 and not code.co_kwonlyargcount:
            # The usual case. A signature takes longer than all other checks of a spec together.
            return True
    assert callable(function)
    try:
        # What a decorator wraps may take other arguments than what is called here.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


def _is_plain_class(function: object) -> bool:
    """Whether calling it makes an object that nobody can await."""
    return (
        isinstance(function, type)
        and type(function).__call__ is type.__call__
        and not hasattr(function, "__await__")
    )


def start_function(what: str, start: object) -> None:
    """Refuse what is known not to be an async function of one `Context`."""
    if not callable(start) or _is_plain_class(start):
        raise refusal(what, start, f"it must be an async function of one Context. {_START_FIX}")
    calling = _calling(start)
    if calling is _Calling.STREAM:
        raise refusal(
            what,
            start,
            "it has a `yield`, so it is an async generator and cannot be awaited. "
            "Take the `yield` out.",
        )
    if calling is _Calling.RESULT:
        raise refusal(what, start, f"it is not async, so it cannot be awaited. {_START_FIX}")
    if not _takes_one(start):
        raise refusal(
            what,
            start,
            "it cannot be called with one argument, the Context. Write `async def "
            "actor(ctx): ...`, and bind further ones with functools.partial.",
        )


def listener_function(what: str, listener: object) -> None:
    """Refuse what is known not to be a plain function of one event."""
    fix = "Write `def listener(event): ...`; to wait, hand the event to a task of your own."
    if not callable(listener):
        raise refusal(what, listener, f"it must be a function of one event. {fix}")
    if _calling(listener) in (_Calling.AWAITABLE, _Calling.STREAM):
        raise refusal(
            what, listener, f"it is async, but listeners are called and never awaited. {fix}"
        )
    if not _takes_one(listener):
        raise refusal(what, listener, f"it cannot be called with one argument, the event. {fix}")


def receiver_factory(what: str, make: object) -> None:
    """Refuse what is known not to make an object with an async `receive`."""
    if not callable(make):
        raise refusal(what, make, "it must be a class, or a function that makes its object.")
    if _calling(make) in (_Calling.AWAITABLE, _Calling.STREAM):
        raise refusal(
            what,
            make,
            "it is async, but an object is made by a plain call. Do what waits in "
            "`__aenter__` of the class.",
        )
    if not _takes_one(make):
        raise refusal(
            what,
            make,
            "it cannot be called with one argument, the Context. Write "
            "`def __init__(self, ctx): ...`.",
        )
    while isinstance(make, functools.partial):
        make = make.func
    if isinstance(make, type):
        _receiving_class(what, make)


def _receiving_class(what: str, kind: type) -> None:
    missing = object()
    receive = getattr(kind, "receive", missing)
    if receive is missing:
        # Objects may still get one: by `__getattr__`, or as a field that is only annotated.
        fields = {name for base in kind.__mro__ for name in inspect.get_annotations(base)}
        if not hasattr(kind, "__getattr__") and "receive" not in fields:
            raise refusal(what, kind, f"it has no method `receive`. {_RECEIVE_FIX}")
    elif not callable(receive):
        if not hasattr(receive, "__get__"):
            raise refusal(what, kind, f"its `receive` is not a method. {_RECEIVE_FIX}")
    elif _calling(receive) in (_Calling.RESULT, _Calling.STREAM):
        raise refusal(
            what,
            kind,
            "its `receive` is not async (or has a `yield`), so it cannot be awaited. "
            f"{_RECEIVE_FIX}",
        )
