"""Handlers and options of a simulation, as `group.register` will take them: whatever it would
refuse, or what cannot be simulated, is refused when the simulation is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from shove_actors._errors import UsageError
from shove_actors.messaging import Outcome, Topic
from shove_actors.runtime._registering import Registering

from ._audited_handler import resolve_handler

_OPTIONS = tuple(
    name
    for name in inspect.signature(Registering.register).parameters
    if name not in ("self", "topic", "handler", "factory")
)


async def _any(message: object) -> Outcome:
    return Outcome.ACK


def simulated(handler: object, topic: Topic[Any]) -> Callable[..., Any]:
    """What to call. Raises `HandlerError`, or `UsageError` for what runs in a thread."""
    resolved = resolve_handler(handler, topic)
    if resolved.in_thread:
        raise UsageError(
            f"handler {resolved.name} is a plain function, which would run in a thread, and a "
            "thread ends at a time of its own, so the run would not repeat: give an async function "
            "(a coroutine function that calls it is enough)"
        )
    return resolved.call


def check_options(topic: Topic[Any], options: Mapping[str, Any]) -> None:
    """Of `group.register`: names and values."""
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(
                f"options: {name!r} is nothing that a simulation hands to group.register; it takes "
                f"{', '.join(_OPTIONS)}"
            )
    Registering("simulated", None).register(topic, _any, **options)
