"""`module:name` on the command line: importing it, and saying what is wrong if it is not there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from shove_actors import Topic, UsageError


def load(target: str, folder: Path | None = None) -> Any:
    """The object that `module:name` names; modules are also looked for in `folder` (default: here).

    Raises `UsageError` if there is no such module or name. What the module itself raises passes:
    its traceback is what its author needs.
    """
    module, name = _split(target)
    found: Any = _module(module, target, folder)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(
                f"{target}: module {module} has no {part!r}. It has: {_offers(found)}"
            ) from None
    return found


def load_topics(target: str, folder: Path | None = None) -> list[Topic[Any]]:
    """The topics that are meant: one topic, several in a list or a tuple, or all of a module.

    Raises `UsageError` for what is none.
    """
    if ":" in target:
        found = load(target, folder)
    else:
        found = list(vars(_module(target, target, folder)).values())
        found = list({id(each): each for each in found if isinstance(each, Topic)}.values())
        if not found:
            raise UsageError(
                f"{target}: the module has no topics. Name an importable module that has some, or "
                "module:name for one topic or a list of them"
            )
    topics = [found] if isinstance(found, Topic) else found
    if not isinstance(topics, Iterable) or isinstance(topics, (str, bytes)):
        raise UsageError(f"{target} is a {type(found).__name__}, not a topic or a list of topics")
    topics = list(topics)
    for each in topics:
        if not isinstance(each, Topic):
            raise UsageError(f"{target} holds a {type(each).__name__}, and not only topics")
    if not topics:
        raise UsageError(f"{target} is an empty list of topics")
    return topics


def load_topic(target: str, folder: Path | None = None) -> Topic[Any]:
    """The one topic that is meant."""
    topics = load_topics(target, folder)
    if len(topics) > 1:
        names = ", ".join(sorted(topic.queue for topic in topics))
        raise UsageError(f"{target} is several topics ({names}); name one of them")
    return topics[0]


def _split(target: str) -> tuple[str, str]:
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise UsageError(f"{target!r}: write module:name, as in orders.service:app")
    return module, name


def _module(module: str, target: str, folder: Path | None) -> ModuleType:
    place = str((folder or Path.cwd()).absolute())
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        # One that the module itself misses is the module's own affair.
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise
        raise UsageError(
            f"{target}: there is no module {exc.name!r} in {place} or on the import path. Start it "
            "in the folder that holds it, or name that folder with --app-dir"
        ) from None


def _offers(found: object) -> str:
    names = [name for name in vars(found) if not name.startswith("_")]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "nothing"
