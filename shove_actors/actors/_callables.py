"""Checks of functions handed in: what can be known without calling them.

Only a known wrong kind is refused. Not known, and so accepted: what is compiled, what carries
`__wrapped__` (a decorator decides what it returns), and a plain function annotated to return an
awaitable. A plain `def` or `lambda` without that annotation counts as synchronous.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType

from ._checks import refusal


def _core(function: object) -> object:
    """What is called in the end: without `partial`s, bound methods and `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, type) and not inspect.isroutine(function):
        function = getattr(type(function), "__call__", function)
    return inspect.unwrap(function) if False else getattr(function, "__func__", function)
