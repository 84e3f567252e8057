"""What a defect is, and how it gets into the code."""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Protocol


class Plant(Protocol):
    """One change of the code. `undo` what it returns."""

    def apply(self) -> Callable[[], None]: ...


@dataclass(frozen=True)
class Edit:
    """In the source of `owner.name`, each `(old, new)` of `pieces`; `old` occurs once.

    `owner` is a class, or a module: then every module of the package that has imported the function
    is given the new one.
    """

    owner: type | ModuleType
    name: str
    pieces: tuple[tuple[str, str], ...]

    def apply(self) -> Callable[[], None]:
        found = inspect.getattr_static(self.owner, self.name)
        function = _function(found)
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in self.pieces:
            count = source.count(old)
            if count != 1:
                raise LookupError(
                    f"{self.owner.__name__}.{self.name} has {count} of {old!r}: this defect is "
                    "about code that has changed; write it anew"
                )
            source = source.replace(old, new)
        changed = _compiled(source, function, self.owner)
        if isinstance(self.owner, ModuleType):
            return _everywhere(found, changed)
        return _put(self.owner, self.name, changed, found)


@dataclass(frozen=True)
class Swap:
    """`owner.name` is another value: of constants."""

    owner: type | ModuleType
    name: str
    value: Any

    def apply(self) -> Callable[[], None]:
        return _put(
            self.owner, self.name, self.value, inspect.getattr_static(self.owner, self.name)
        )


def edit(owner: type | ModuleType, name: str, *pieces: tuple[str, str]) -> Edit:
    return Edit(owner, name, pieces)


@dataclass(frozen=True, kw_only=True)
class Defect:
    """`wrong`: one sentence. `machines`: who should notice, likeliest first. `by`: what is expected
    to be broken, as words: letters of invariants; `property` for one of pure functions; `end` for
    an assertion, about what a process holds or a supervisor does; `test` for `tests`, which stand
    for the machine `test`: node ids of pytest, for what no machine can see.
    """

    name: str
    wrong: str
    by: str
    machines: tuple[str, ...]
    plants: tuple[Plant, ...]
    tests: tuple[str, ...] = ()


@contextmanager
def planted(defect: Defect) -> Iterator[None]:
    """The code with this defect, for the length of the block."""
    with ExitStack() as stack:
        for plant in defect.plants:
            stack.callback(plant.apply())
        yield


def _function(found: object) -> FunctionType:
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    found = inspect.unwrap(found)  # type: ignore[arg-type]
    assert isinstance(found, FunctionType), found
    return found


def _compiled(source: str, function: FunctionType, owner: type | ModuleType) -> Any:
    # Inside a function, so that `super()` finds its class.
    text = (
        f"def _make(__class__):\n{textwrap.indent(source, '    ')}\n    return {function.__name__}"
    )
    code = compile(
        text,
        f"<planted in {function.__qualname__}>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    return made["_make"](owner)


def _put(owner: Any, name: str, value: object, before: object) -> Callable[[], None]:
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


def _everywhere(before: object, value: object) -> Callable[[], None]:
    places = [
        (module, name)
        for title, module in list(sys.modules.items())
        if title.split(".")[0] == "shove_actors"
        for name, held in list(vars(module).items())
        if held is before
    ]

    def put(what: object) -> None:
        for module, name in places:
            setattr(module, name, what)

    put(value)
    return lambda: put(before)
