"""Where in an application something went wrong, without the frames that are not its own."""

from __future__ import annotations

import sysconfig
import traceback
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final

#: What runs an application and is called by it; the rest is the application.
_OTHERS: Final = ("shove_actors", "trio", "outcome", "click", "nats", "sniffio")
_CLI: Final = str(Path(__file__).parent)
_STANDARD: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


def _folders() -> list[str]:
    specs = [find_spec(name) for name in _OTHERS]
    return [str(Path(spec.origin).parent) for spec in specs if spec is not None and spec.origin]


def place_of(error: BaseException) -> str | None:
    """`file.py:12` of the innermost frame of the application; None if it has none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno or 1}"
    others = _folders()
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not (name.startswith("<") or _is_standard(name) or _is_in(name, others)):
            found = f"{_short(name)}:{line}"
    return found


def own_traceback(error: BaseException) -> str:
    """As Python prints it, but from the first frame on that neither imports nor is ours."""
    left: TracebackType | None = error.__traceback__
    while left is not None:
        name = left.tb_frame.f_code.co_filename
        if not (name.startswith("<frozen") or _is_standard(name) or _is_in(name, [_CLI])):
            break
        left = left.tb_next
    return "".join(traceback.format_exception(type(error), error, left))


def _is_standard(name: str) -> bool:
    return _is_in(name, _STANDARD) and "site-packages" not in Path(name).parts


def _is_in(name: str, folders: list[str] | tuple[str, ...]) -> bool:
    return any(Path(name).is_relative_to(folder) for folder in folders)


def _short(name: str) -> str:
    try:
        return str(Path(name).relative_to(Path.cwd()))
    except ValueError:
        return name
