"""The worked example of docs/properties.md: the mistake is found, and shrunk to three lines."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import shove_actors.testing

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "properties.md"
PROGRAM = ROOT / "examples" / "ledger_property.py"


@pytest.mark.slow
def test_the_ledger_that_posts_twice_is_caught() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "entry 0 was posted 2 times"
    program = [line for line in lines if line.startswith("state.")]
    assert program[0] == "state.begin()"
    assert program[-1] == "state.teardown()"
    assert len(program[:-1]) <= 3
    assert any("LoseAck()" in line for line in program)
    assert lines[-1] == "the mended ledger passes"
    # What the page shows is what was printed; its second line is Hypothesis' and may change.
    assert "\n".join(lines[2:-1]) in PAGE.read_text(encoding="utf-8")
    # What is told below the steps is code, and fails in the same way without Hypothesis.
    told = lines[lines.index("# without Hypothesis:") + 1 : -1]
    names = {**vars(shove_actors.testing), **runpy.run_path(str(PROGRAM))}
    with pytest.raises(AssertionError, match="entry 0 was posted 2 times"):
        exec("\n".join(told), names)


def test_the_page_shows_what_is_in_the_example() -> None:
    """Method by method; and the program on the page, run against the class on the page, fails."""
    page, names = PAGE.read_text(encoding="utf-8"), runpy.run_path(str(PROGRAM))
    [shown] = re.findall(r"^class LedgerMachine.*?(?=\n\n\n)", page, re.MULTILINE | re.DOTALL)
    for method in re.split(r"\n\n", shown)[1:]:
        assert method in PROGRAM.read_text(encoding="utf-8")
    [told] = re.findall(r"# without Hypothesis:\n(.*?)```", page, re.DOTALL)
    names.update(vars(shove_actors.testing))
    exec(shown, names)
    with pytest.raises(AssertionError, match="entry 0 was posted 2 times"):
        exec(told, names)
