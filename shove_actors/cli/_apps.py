"""What `run` can run, and how it is called.

    an object           a `ChildSpec`, or a list of them: the children of an actor system
    a function          plain or async, of any of the parameters below; its result says what to do

    parameter           is
    broker              a broker, connected as the command line says
    nursery             a nursery: what is started in it is cancelled by the first signal
    stop                a `trio.Event`, set by the first signal; the function has `--drain-timeout`
                        seconds to return then

    result              means
    consumer group(s)   serve them until a signal, then drain
    ChildSpec(s)        run an actor system of them until a signal, then stop it in order
    outcome             that of a group the function ran itself: its exit code
    int, None           an exit code (None: 0)

A single parameter of another name is the broker. A function without `broker` gets no connection.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from shove_actors import ConsumerGroup, SupervisorOutcome, UsageError
from shove_actors.actors import ChildSpec

from ._base import kind_of

PARAMETERS: Final = ("broker", "nursery", "stop")


@dataclass(frozen=True, kw_only=True)
class App:
    """`wants`: which of `PARAMETERS`, by the function's own names; `specs`: of no function."""

    target: str
    function: Callable[..., Any] | None
    wants: dict[str, str]
    specs: tuple[ChildSpec, ...] = ()

    @property
    def wants_broker(self) -> bool:
        return "broker" in self.wants.values()

    @property
    def wants_stop(self) -> bool:
        return "stop" in self.wants.values()


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a result asks for. `code`: the exit code if there is nothing (more) to run."""

    groups: tuple[ConsumerGroup, ...] = ()
    specs: tuple[ChildSpec, ...] = ()
    code: int = 0


def understand(target: str, found: object) -> App:
    """Raises `UsageError` for what cannot be run, and says what can."""
    specs = _all_of(found, ChildSpec)
    if specs:
        return App(target=target, function=None, wants={}, specs=specs)
    if inspect.isclass(found) or not callable(found):
        kind = "a class" if inspect.isclass(found) else kind_of(found)
        raise UsageError(
            f"{target} is {kind}: `run` takes a function of broker, nursery or stop, or a "
            "ChildSpec. See docs/cli.md"
        )
    return App(target=target, function=found, wants=_wants(target, found))


def _wants(target: str, function: Callable[..., Any]) -> dict[str, str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(f"{target}: its parameters cannot be read") from None
    named = {p.name: p for p in parameters if p.name in PARAMETERS}
    others = [
        p
        for p in parameters
        if p.name not in PARAMETERS
        and p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(others) == 1 and not named and others[0].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return {others[0].name: "broker"}
    if others:
        raise UsageError(
            f"{target} has the parameter {others[0].name!r}; `run` can give it "
            f"{', '.join(PARAMETERS)}. Give the others a default"
        )
    return {name: name for name in named}


def offers(found: object) -> bool:
    """Whether it may be what `run` was to be given, and was misspelt; not what is imported."""
    if _all_of(found, ChildSpec):
        return True
    return inspect.isfunction(found) and not found.__module__.startswith("shove_actors.")


def work_of(target: str, result: object) -> Work:
    """Raises `UsageError` for a result that means nothing."""
    if result is None:
        return Work()
    if isinstance(result, SupervisorOutcome):
        return Work(code=result.exit_code)
    if isinstance(result, int) and not isinstance(result, bool):
        return Work(code=result)
    groups = _all_of(result, ConsumerGroup)
    if groups:
        return Work(groups=groups)
    specs = _all_of(result, ChildSpec)
    if specs:
        return Work(specs=specs)
    raise UsageError(
        f"{target} returned {kind_of(result)}: return a consumer group or a ChildSpec (or "
        "a list of one kind), an outcome, an exit code, or nothing"
    )


def _all_of(found: object, kind: type[Any]) -> tuple[Any, ...]:
    """`found` as a tuple of this kind; empty if it is something else."""
    if isinstance(found, kind):
        return (found,)
    if isinstance(found, (list, tuple)) and found and all(isinstance(e, kind) for e in found):
        return tuple(found)
    return ()
