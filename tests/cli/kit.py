"""Running the command line as a user does: here with `main`, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shove_actors.cli import main

#: For whatever has to happen; nothing waits so long when all is well.
LONG_S = 60.0


class Cli:
    """`run` calls `main` in this process, `started` starts another one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output; the exit code must be `code`, and nothing is on standard error."""
        out, err = self.both(*arguments, code=code)
        assert err == ""
        return out

    def both(self, *arguments: str, code: int) -> tuple[str, str]:
        try:
            found = main(arguments)
        except SystemExit as exc:
            found = exc.code  # type: ignore[assignment]
        shown = self._capsys.readouterr()
        assert found == code, shown
        return shown.out, shown.err

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))

    def error(self, *arguments: str, code: int) -> str:
        """The one line on standard error."""
        out, err = self.both(*arguments, code=code)
        assert err.startswith("shove-actors: ")
        assert err.count("\n") == 1, err
        assert out == ""
        return err.removeprefix("shove-actors: ").rstrip("\n")


@contextmanager
def started(
    *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process of the command line; killed at the end of the block if it is still there."""
    with subprocess.Popen(
        [sys.executable, "-m", "shove_actors", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
