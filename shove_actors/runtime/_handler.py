"""What users hand over as a handler, resolved once at registration.

An async function of `(message)`, `(message, metadata)` or `(message, metadata, context)`; a plain
function of the same (it runs in a worker thread, so that blocking code starves neither the
keep-alives nor anybody else, PC-019); or an object with `handle` and optionally `handle_dead`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeAlias

import trio

from shove_actors._errors import HandlerError
from shove_actors.messaging import MessageMetadata

#: What the runtime calls: always three arguments, always a coroutine.
Call: TypeAlias = Callable[[Any, Any, Any], Coroutine[Any, Any, Any]]


class MessageHandler(Protocol):
    """The object form of a handler. `handle_dead(message, metadata, context)` is optional."""

    async def handle(self, message: Any, metadata: MessageMetadata, context: Any) -> Any: ...


class Resolved:
    """A callable handler, and whether it looks at its metadata at all."""

    __slots__ = ("call", "in_thread", "name", "wants_metadata")

    def __init__(self, call: Call, *, wants_metadata: bool, in_thread: bool, name: str) -> None:
        self.call = call
        self.wants_metadata = wants_metadata
        self.in_thread = in_thread
        self.name = name


def resolve(handler: object, *, method: str = "handle") -> Resolved:
    """Raises `HandlerError` naming what is wrong with the signature."""
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    if inspect.isclass(handler):
        raise HandlerError(
            f"handler {name} is a class: give an instance of it, or factory={name} for one "
            "instance per consumer"
        )
    function = getattr(handler, method, None)
    if function is None:
        if method != "handle" and not callable(handler):
            raise HandlerError(f"handler {name} has no {method} method")
        function = handler
    if inspect.iscoroutine(handler):
        handler.close()  # nobody will await it, and this error says all there is to say
        raise HandlerError(
            f"handler {name}(...) was called: give the function itself, {name} without parentheses"
        )
    if not callable(function):
        raise HandlerError(
            f"handler {name} is neither a function nor an object with a `{method}` method"
        )
    count = _positional(function, name)
    asynchronous = is_async(function)
    inner: Callable[..., Any] = function if asynchronous else partial(_in_thread, function)
    if count == 1:

        def call(message: Any, metadata: Any, context: Any) -> Coroutine[Any, Any, Any]:
            result: Coroutine[Any, Any, Any] = inner(message)
            return result
    elif count == 2:

        def call(message: Any, metadata: Any, context: Any) -> Coroutine[Any, Any, Any]:
            result: Coroutine[Any, Any, Any] = inner(message, metadata)
            return result
    else:
        call = inner
    return Resolved(call, wants_metadata=count > 1, in_thread=not asynchronous, name=name)


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    # A thread cannot be cancelled: the worker keeps its slot until the function has returned, so
    # the next attempt or the key's next message never overlaps it (PC-021).
    # In a box, because Trio refuses the coroutine of an async function behind a decorator that does
    # not look like one.
    [result] = await trio.to_thread.run_sync(lambda: [function(*args)])
    return await result if inspect.iscoroutine(result) else result


def is_async(function: Any) -> bool:
    """Whether calling it gives a coroutine, as far as that can be seen from outside."""
    while isinstance(function, partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 - the method itself is inspected
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _positional(function: Any, name: str) -> int:
    """How many of (message, metadata, context) it takes."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return 3
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    free = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in free if p.default is p.empty]
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keyword_only:
        raise HandlerError(
            f"handler {name} requires the keyword-only arguments {keyword_only}; a handler is "
            "called with (message[, metadata[, context]]). Bind them with functools.partial"
        )
    if not free or len(required) > 3:
        raise HandlerError(
            f"handler {name} takes {len(required)} positional arguments; a handler takes "
            "(message), (message, metadata) or (message, metadata, context)"
        )
    return min(3, max(len(required), 1) if len(required) < len(free) else len(free))
