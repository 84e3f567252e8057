"""The examples of embedding as a reader starts them: their output, and nothing left over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: trio-asyncio subclasses a child watcher that CPython 3.14 removed; it warns from 3.12 on.
STRICT = ["-W", "error", "-W", "ignore::DeprecationWarning:trio_asyncio._loop"]

EXPECTED = {
    "embedding_trio_asyncio": "bread costs 5\ncheese costs 6\ntea costs 3\n",
    "embedding_anyio": "handled order 0, order 1, order 2\n",
    "embedding_http": (
        "202 stored as 1\n202 stored as 2\nno more requests are taken\nhandled tea, bread\n"
    ),
}

pytestmark = pytest.mark.server


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, str(ROOT / "examples" / f"{name}.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_output(name: str) -> None:
    done = run(name, *STRICT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == EXPECTED[name]


def test_in_a_nursery_of_the_application() -> None:
    done = run("embedding_trio", *STRICT)
    assert (done.returncode, done.stderr) == (0, "")
    first, *middle, last = done.stdout.splitlines()
    assert first == "the subsystem is ready; the application goes on with its own work"
    assert last == "nothing is left running"
    assert "the application leaves" in middle
    # What was begun is let finish; how many that are, which of them is first, and whether one was
    # done before the application left, is the machine's affair.
    handled = [line for line in middle if line != "the application leaves"]
    assert sorted(handled) == [f"handled order {n}" for n in range(len(handled))]


def test_in_pytest() -> None:
    done = run("embedding_pytest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("embedding_*.py")), ids=lambda path: path.stem
)
def test_one_screen_each(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 95
