"""The command line, `shove-actors` or `python -m shove_actors`. See docs/cli.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]

MISSING = (
    "the command line needs click, which is not installed. "
    "Install it with: pip install 'shove-actors[cli]'"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the process's own) and returns its exit code.

    Errors of the library and of the system are one line on standard error; anything else is a bug
    and raises. Wrong usage raises `SystemExit(2)`, `--help` and `--version` raise `SystemExit(0)`.
    Without the extra `cli` it says what to install, and returns 1.
    """
    if find_spec("click") is None:
        print(f"shove-actors: {MISSING}", file=sys.stderr)
        return 1
    try:
        from ._app import main as run

        return run(argv)
    except KeyboardInterrupt:
        # Before there is anybody else to say it: while the above is imported.
        if sys.stderr is not None:
            print("shove-actors: interrupted", file=sys.stderr)
        return 130
