"""`module:name` on the command line: importing it, and saying what is wrong if it is not there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from shove_actors import Topic, UsageError

from ._base import CommandFailed, kind_of
from ._places import place_of


class ModuleBroken(CommandFailed):
    """Importing the module raised `error`. The message is a line that names its place."""

    def __init__(self, target: str, error: Exception) -> None:
        place = place_of(error)
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        kind = type(error).__name__
        super().__init__(
            f"{target}: importing it raised {kind}{': ' if what else ''}{what}"
            f"{f' ({place})' if place is not None else ''}"
        )
        self.error = error


def load(
    target: str, folder: Path | None = None, *, offers: Callable[[object], bool], what: str
) -> Any:
    """The object that `module:name` names; modules are also looked for in `folder` (default: here).

    Raises `UsageError` if there is no such module or name, `ModuleBroken` for what the module
    itself raises. `offers`: which of its names are mentioned then; `what`: how these are called.
    """
    module, name = _split(target)
    found: Any = _module(module, target, folder)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(
                f"{target}: {module} has no {part!r}. {_offered(found, offers, what)}"
            ) from None
    return found


def load_topics(target: str, folder: Path | None = None) -> list[Topic[Any]]:
    """The topics that are meant: one topic, several in a list or a tuple, or all of a module.

    Raises `UsageError` for what is none.
    """
    if ":" in target:
        found = load(target, folder, offers=_is_topics, what="topics")
    else:
        _check(target, target)
        found = list(vars(_module(target, target, folder)).values())
        found = list({id(each): each for each in found if isinstance(each, Topic)}.values())
        if not found:
            raise UsageError(
                f"{target}: the module has no topics. Name an importable module that has some, or "
                "module:name for one topic or a list of them"
            )
    topics = [found] if isinstance(found, Topic) else found
    if not isinstance(topics, Iterable) or isinstance(topics, (str, bytes)):
        raise UsageError(f"{target} is {kind_of(found)}, not a topic or a list of topics")
    topics = list(topics)
    for each in topics:
        if not isinstance(each, Topic):
            raise UsageError(f"{target} holds {kind_of(each)}, and not only topics")
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
    module, _, name = target.partition(":")
    _check(target, module, name)
    return module, name


def _check(target: str, *names: str) -> None:
    """An address, say, is none: it is not taken to pieces, which would be looked for and shown."""
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{target!r}: write module:name, as in orders.service:app")


def _module(module: str, target: str, folder: Path | None) -> ModuleType:
    place = str((folder or Path.cwd()).absolute())
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        # One that the module itself misses is the module's own affair.
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise ModuleBroken(target, exc) from exc
        raise UsageError(
            f"{target}: there is no module {exc.name!r} in {place} or on the import path. Start it "
            "in the folder that holds it, or name that folder with --app-dir"
        ) from None
    except Exception as exc:
        raise ModuleBroken(target, exc) from exc


def _is_topics(found: object) -> bool:
    several = isinstance(found, (list, tuple)) and bool(found)
    return all(isinstance(each, Topic) for each in (found if several else [found]))  # type: ignore[attr-defined]


def _offered(found: object, offers: Callable[[object], bool], what: str) -> str:
    """`found`: a module, or something in it."""
    try:
        own = vars(found)
    except TypeError:
        own = {}
    names = [name for name, value in own.items() if not name.startswith("_") and offers(value)]
    if not names:
        return f"There are no {what} in it"
    return f"It has: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"
