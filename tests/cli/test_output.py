"""Readers that leave early, and terminals that have only ASCII: never a traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
DEMO = ("demo", "--plain", "--count", "2000")
TREE = ("tree", "--memory")
OUTPUT_CLOSED = 141


def start(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "shove_actors", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


def said(process: subprocess.Popen[bytes]) -> str:
    """What it has to say once nobody reads its output."""
    assert process.stderr is not None
    error = process.stderr.read().decode()
    process.stderr.close()
    process.wait(timeout=50)
    return error


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
def test_nobody_reads_from_the_start(arguments: tuple[str, ...]) -> None:
    process = start(*arguments)
    assert process.stdout is not None
    process.stdout.close()
    assert said(process) == ""
    assert process.returncode == OUTPUT_CLOSED


@pytest.mark.server
@pytest.mark.parametrize("more", [(), ("--chaos",)], ids=["plain", "chaos"])
def test_the_reader_of_the_demo_leaves_after_a_line(more: tuple[str, ...]) -> None:
    process = start(*DEMO, *more)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert said(process) == ""
    assert process.returncode == OUTPUT_CLOSED


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)], ids=" ".join)
def test_nobody_reads_the_help(arguments: tuple[str, ...]) -> None:
    process = start(*arguments)
    assert process.stdout is not None
    process.stdout.close()
    assert said(process) == ""


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(DEMO, marks=pytest.mark.server), TREE, ("tree", "--rules")],
    ids=" ".join,
)
def test_ascii_only(arguments: tuple[str, ...]) -> None:
    process = start(*arguments, PYTHONIOENCODING="ascii")
    output, error = process.communicate(timeout=50)
    assert (process.returncode, error) == (0, b"")
    assert "|- bridge" in output.decode("ascii")


@pytest.mark.server
def test_the_live_view_on_a_terminal_that_has_only_ascii() -> None:
    master, slave = pty.openpty()
    environment = {"PYTHONIOENCODING": "ascii", "TERM": "xterm", "COLUMNS": "100", "LINES": "50"}
    process = subprocess.Popen(
        [sys.executable, "-m", "shove_actors", "demo", "--count", "500"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # how Linux reports that the other side has closed
            break
    os.close(master)
    assert said(process) == ""
    assert process.returncode == 0, shown
    text = shown.decode("ascii")
    assert "|- bridge" in text
    assert "Everything as it must be." in text


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_ends_the_tree(number: signal.Signals, tmp_path: Path) -> None:
    """In the middle of its work: one line, one exit code, no server left."""
    process = start("tree", "--shards", "300", TMPDIR=str(tmp_path))
    wait_until_sync(lambda: list(tmp_path.iterdir()), message="the server has its folder")
    process.send_signal(number)
    output, error = process.communicate(timeout=50)
    assert (process.returncode, output, error) == (130, b"", b"shove-actors: interrupted\n")
    assert not list(tmp_path.iterdir())
