"""What was done with an object, as code that does it again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

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
    parts, given = [], dict(bound.arguments)
    parameters = bound.signature.parameters
    for name, value in list(given.items())[1:]:
        parameter: Any = parameters[name]
        if value == parameter.default:
            continue
        keyword = "" if parameter.kind is not parameter.KEYWORD_ONLY and not parts else f"{name}="
        parts.append(f"{keyword}{value!r}")
    return ", ".join(parts)
