"""The examples about consumers run alone; the page quotes them (`test_jetstream_examples.py`)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .test_jetstream_examples import EXAMPLES, ROOT, STRICT

#: What each must print: regular expressions, in this order, one line each.
PRINTED: dict[str, list[str]] = {
    "consume": [
        r"Received: one",
        r"Received: two",
        r"iterated over order 4",
        r"shared: 50 both worked: True",
    ],
    "push_group": [r"pushed: 40 both worked: True"],
    "consumers": [
        r"writes invoices 10\.0",
        r"waiting: 4",
        r"\['billing'\]",
        r"order 2 delivered 2 times",
        r"paused: True",
        r"starts over at 1",
        r"1",
        r"\[1, 2, 3, 4\]",
    ],
}


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_it_runs_alone(name: str) -> None:
    done = subprocess.run(
        [sys.executable, *STRICT, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert re.fullmatch("\n".join(PRINTED[name]) + "\n", done.stdout), done.stdout
