"""Readers that leave early, and terminals that have only ASCII: never a traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
DEMO = ("demo", "--plain", "--count", "2000")
TREE = ("tree", "--memory")
OUTPUT_CLOSED = 141
#: Nothing here takes more than some seconds, unless the machine is busy with something else.
LONG_S = 120.0


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with pipes to read from; gone when the block is left."""
    with subprocess.Popen(
        [sys.executable, "-m", "shove_actors", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Python's own buffering, whatever the environment of the tests says.
        env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def unread(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Closes our end of its output; its exit code, and what it has to say about that."""
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read().decode()
    return process.wait(timeout=LONG_S), error


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(DEMO, marks=pytest.mark.server),
        TREE,
        ("tree", "--rules"),
        ("simulate-autoscaler",),
    ],
    ids=" ".join,
)
def test_nobody_reads_from_the_start(arguments: tuple[str, ...], unbuffered: str) -> None:
    with started(*arguments, PYTHONUNBUFFERED=unbuffered) as process:
        assert unread(process) == (OUTPUT_CLOSED, "")


@pytest.mark.server
@pytest.mark.parametrize("more", [(), ("--chaos",)], ids=["plain", "chaos"])
def test_the_reader_of_the_demo_leaves_after_a_line(more: tuple[str, ...]) -> None:
    with started(*DEMO, *more) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert unread(process) == (OUTPUT_CLOSED, "")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", [("--help",), ("--version",)], ids=" ".join)
def test_nobody_reads_the_help(arguments: tuple[str, ...], unbuffered: str) -> None:
    with started(*arguments, PYTHONUNBUFFERED=unbuffered) as process:
        code, error = unread(process)
    assert error == ""
    # Some versions of argparse do not care whether what they wrote was read.
    assert code in (0, OUTPUT_CLOSED)


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(DEMO, marks=pytest.mark.server), TREE, ("tree", "--rules")],
    ids=" ".join,
)
def test_ascii_only(arguments: tuple[str, ...]) -> None:
    with started(*arguments, PYTHONIOENCODING="ascii") as process:
        output, error = process.communicate(timeout=LONG_S)
    assert (process.returncode, error) == (0, b"")
    assert "|- bridge" in output.decode("ascii")


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other side has closed
        return b""


@pytest.mark.server
def test_the_live_view_on_a_terminal_that_has_only_ascii() -> None:
    master, slave = pty.openpty()
    environment = {"PYTHONIOENCODING": "ascii", "TERM": "xterm", "COLUMNS": "100", "LINES": "50"}
    with subprocess.Popen(
        [sys.executable, "-m", "shove_actors", "demo", "--count", "500"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    ) as process:
        os.close(slave)
        shown = b""
        while chunk := read(master):
            shown += chunk
        os.close(master)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0, shown
    text = shown.decode("ascii")
    assert "|- bridge" in text
    assert "Everything as it must be." in text


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_ends_the_tree(number: signal.Signals, tmp_path: Path) -> None:
    """In the middle of its work: one line, one exit code, no server left."""
    with started("tree", "--shards", "300", TMPDIR=str(tmp_path)) as process:
        wait_until_sync(
            lambda: list(tmp_path.iterdir()), timeout=LONG_S, message="the server has its folder"
        )
        process.send_signal(number)
        output, error = process.communicate(timeout=LONG_S)
    assert (process.returncode, output, error) == (130, b"", b"shove-actors: interrupted\n")
    assert not list(tmp_path.iterdir())
