"""Each example is listed for readers, marked to be run, short, and has a test of its output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
#: No example of its own: what the examples of actors have in common.
SHARED = {"sabotage"}
NAMES = sorted({path.stem for path in EXAMPLES.glob("*.py")} - SHARED)
CLIENT = sorted(path.stem for path in (EXAMPLES / "jetstream").glob("*.py"))
#: Those of actors, which are programs rather than examples of one thing, have a bound of their own
#: (`test_actor_examples.py`).
PROGRAMS = {"tcp_service", "crawler"}

PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_lists_them_and_nothing_else() -> None:
    assert sorted(re.findall(r"^\| `(\w+)\.py` \|", PAGE, re.MULTILINE)) == NAMES
    quoted = PAGE[PAGE.index("examples/jetstream") : PAGE.index("## Actors")]
    assert sorted(re.findall(r"`(\w+)\.py`", quoted)) == CLIENT
    assert "examples.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_readme_lists_them() -> None:
    assert sorted(set(re.findall(r"\]\(examples/(\w+)\.py\)", README))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_marked_and_short(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# runnable"
    assert next(line for line in lines if not line.startswith("#")).startswith('"""')
    assert name in PROGRAMS or len(lines) <= 135


@pytest.mark.parametrize("name", NAMES)
def test_a_test_runs_it(name: str) -> None:
    """The session `examples` of nox runs them, too, but looks at no output."""
    tested = "".join(
        path.read_text(encoding="utf-8")
        for path in Path(__file__).parent.glob("test_*.py")
        if path != Path(__file__)
    )
    assert re.search(rf'"{name}(?:\.py)?"', tested), name
