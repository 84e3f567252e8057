"""Run a handler's coroutine; pay for its time-out only if it waits.

A handler that never waits cannot be cancelled anyway, and most handlers of a fast stream do not
wait. So the coroutine is started by hand: if it returns at its first step, nothing was spent. At
its first wait, and only then, the worker hears `waits()` (it sets the deadline of its cancel scope
and lets the next worker go on), and from there every step goes through this generator.

The worker's scope is entered before the coroutine is started, so scopes that the handler opens are
properly nested inside it. Trio resumes a task by sending a value; exceptions arise inside the
handler when it looks at that value, so nothing is ever thrown in here but at a task's destruction.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


@types.coroutine
def drive(
    coroutine: Coroutine[Any, Any, Any], waits: Callable[[], None]
) -> Generator[Any, Any, Any]:
    try:
        trap = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    waits()
    try:
        while True:
            try:
                value = yield trap
            except BaseException as exc:
                trap = coroutine.throw(exc)
            else:
                trap = coroutine.send(value)
    except StopIteration as stop:
        return stop.value
