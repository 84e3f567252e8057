"""What was done with an object, as code that does it again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

S = TypeVar("S", bound="Told")
P = ParamSpec("P")
T = TypeVar("T")


class Told:
    """Keeps the calls of its methods that are `told`, but not what those call in turn."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, inspect.BoundArguments]] = []
        self._inside = False

    def lines(self, name: str) -> list[str]:
        """The calls, one per line, of an object that has this name; defaults are left out."""
        return [f"{name}.{method}({_shown(bound)})" for method, bound in self._calls]


def told(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._inside:
            return method(self, *args, **kwargs)
        self._calls.append((method.__name__, signature.bind(self, *args, **kwargs)))
        self._inside = True
        try:
            return method(self, *args, **kwargs)
        finally:
            self._inside = False

    return call


def _shown(bound: inspect.BoundArguments) -> str:
    parts: list[str] = []
    for name, value in list(bound.arguments.items())[1:]:
        parameter = bound.signature.parameters[name]
        if value != parameter.default:
            # What comes first needs no name; each of them has at most one such argument.
            positional = parameter.kind is not parameter.KEYWORD_ONLY
            parts.append(repr(value) if positional and not parts else f"{name}={value!r}")
    return ", ".join(parts)
