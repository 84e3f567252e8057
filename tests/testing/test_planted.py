"""The harness of planted bugs: it notices, it stays quiet, and no defect is about code of old."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def harness(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_three_of_them_are_noticed_and_the_code_as_it_is_is_not() -> None:
    names = ("batch-reorders-a-key", "one-retry-too-many", "restart-budget-off-by-one")
    only = [word for name in names for word in ("--only", name)]
    done = harness(
        "-m", "properties.planted", "--profile", "dev", *only, "--only", "control",
        "--machine", "skip", "--machine", "plan", "--machine", "routing",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {line[0] for line in lines} == {"defect", "control", *names}
    assert {line[2] for line in lines if line[0] == "control"} == {"nobody"}


def test_what_is_not_noticed_fails() -> None:
    """A machine that has nothing to do with the defect."""
    done = harness(
        "-m", "properties.planted", "--profile", "dev",
        "--only", "restart-budget-off-by-one", "--machine", "routing",
    )  # fmt: skip
    assert done.returncode == 1
    assert "not as it should be: restart-budget-off-by-one" in done.stderr


EVERY_ONE = """
import inspect
from properties.planted import DEFECTS, planted
for defect in DEFECTS.values():
    with planted(defect):
        pass
print(len(DEFECTS))
"""


def test_each_defect_can_be_planted_and_is_gone_afterwards() -> None:
    done = harness("-c", EVERY_ONE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 40


def test_a_defect_about_code_that_has_changed_says_so() -> None:
    code = (
        "from properties.planted import Edit\n"
        "from shove_actors.runtime import Broker\n"
        "Edit(Broker, 'snapshot', (('no such text', ''),)).apply()\n"
    )
    done = harness("-c", code)
    assert done.returncode == 1
    assert "this defect is about code that has changed; write it anew" in done.stderr


@pytest.mark.parametrize("name", ["", "no-such-defect"])
def test_an_unknown_name_is_refused(name: str) -> None:
    done = harness("-m", "properties.planted", "--only", name)
    assert done.returncode == 2
    assert "no such defect" in done.stderr
