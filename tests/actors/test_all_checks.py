"""Every acceptance check of the actors' semantics has a test that pytest finds, by its number."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKS = set(range(1, 46))
# Check 42 is about a message's count, so it is seen where there are messages.
PLACES = ("tests/actors", "tests/runtime/test_check42.py")


def test_no_check_has_vanished() -> None:
    """Collected by a pytest of its own: a file that is not found, or skipped whole, counts as gone.

    (Reading the sources would find names that no run executes.)
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *PLACES],
        cwd=ROOT,
        env={**os.environ, "HYPOTHESIS_PROFILE": "dev", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    numbers = re.findall(r"^test_check(\d\d)_", "\n".join(names), flags=re.MULTILINE)
    assert {int(number) for number in numbers} == CHECKS
