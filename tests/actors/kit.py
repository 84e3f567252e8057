"""Small actors and a trace, shared by the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import trio

from shove_actors.actors import (
    ChildSpec,
    Context,
    Intensity,
    LifecycleEvent,
    Restart,
    Strategy,
    open_actor_system,
)

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

StartFunction = Callable[[Context[Any]], Awaitable[None]]
E = TypeVar("E", bound=LifecycleEvent)

UNLIMITED = Intensity(max_restarts=None)
MANY = Intensity(max_restarts=1000, period_s=60)


class Trace:
    """What happened when: (time, word, name)."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, str, str]] = []
        self.events: list[LifecycleEvent] = []

    def add(self, word: str, name: str) -> None:
        self.entries.append((trio.current_time(), word, name))

    def names(self, word: str) -> list[str]:
        return [name for _, w, name in self.entries if w == word]

    def times(self, word: str, name: str | None = None) -> list[float]:
        return [t for t, w, n in self.entries if w == word and name in (None, n)]

    def at(self, word: str) -> dict[str, float]:
        return {name: t for t, w, name in self.entries if w == word}

    def listen(self, event: LifecycleEvent) -> None:
        self.events.append(event)

    def of(self, kind: type[E], path: str | None = None) -> list[E]:
        return [e for e in self.events if isinstance(e, kind) and path in (None, e.path)]


def worker(trace: Trace, name: str, /, *, stop_s: float = 0.0, **spec: Any) -> ChildSpec:
    """Idles until asked to stop, then takes `stop_s` seconds to end."""

    async def start(ctx: Context[Any]) -> None:
        trace.add("start", name)
        try:
            ctx.started()
            await ctx.stop_requested.wait()
            await trio.sleep(stop_s)
        finally:
            trace.add("end", name)

    return ChildSpec(id=name, start=start, **spec)


def crasher(
    trace: Trace, name: str, /, *, times: int = 10**9, after_s: float = 0.0, **spec: Any
) -> ChildSpec:
    """Crashes `after_s` seconds after each of its first `times` starts, then idles."""

    async def start(ctx: Context[Any]) -> None:
        trace.add("start", name)
        try:
            ctx.started()
            if ctx.incarnation <= times:
                await trio.sleep(after_s)
                raise ValueError(f"{name} {ctx.incarnation}")
            await ctx.stop_requested.wait()
        finally:
            trace.add("end", name)

    return ChildSpec(id=name, start=start, **spec)


async def echo(ctx: Context[Any]) -> None:
    """Answers with what it got; crashes on "boom"."""
    ctx.started()
    async for message in ctx:
        if message == "boom":
            raise ValueError("boom")
        ctx.reply(message)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """All leaves of a (possibly nested) group."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


async def run_until_failed(
    *children: ChildSpec,
    intensity: Intensity | None = None,
    strategy: Strategy = Strategy.ONE_FOR_ONE,
    listener: Any = None,
) -> BaseException:
    """Run a tree that is expected to fail; returns the failure, unwrapped from its group."""
    try:
        async with open_actor_system(
            children=children, intensity=intensity, strategy=strategy, listener=listener
        ):
            await trio.sleep_forever()
    except BaseExceptionGroup as group:
        [failure] = group.exceptions
        return failure
    raise AssertionError("the tree did not fail")


__all__ = [
    "MANY",
    "UNLIMITED",
    "Restart",
    "Trace",
    "crasher",
    "echo",
    "leaves",
    "run_until_failed",
    "worker",
]
