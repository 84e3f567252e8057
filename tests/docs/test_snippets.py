"""The programs in the documentation are run, and print what it says they print.

A block that follows a line `<!-- complete -->` is a whole program; `<!-- complete, python 3.11 -->`
one that needs that version. A `text` block right below it is what it must print. On the pages of
`WHOLE` every block must be one; `test_parts.py` runs what is not complete on the others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
MARK = r"<!-- complete(?:, python (?P<major>\d+)\.(?P<minor>\d+))? -->\n"
PROGRAM = re.compile(
    MARK + r"```python\n(?P<code>.*?)^```\n(?:```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
# trio-asyncio subclasses a child watcher that CPython 3.14 removed; it warns from 3.12 on.
STRICT = ["-W", "error", "-W", "ignore::DeprecationWarning:trio_asyncio._loop"]


@dataclass(frozen=True)
class Snippet:
    where: str
    code: str
    output: str | None
    needs: tuple[int, int]


def snippets() -> list[Snippet]:
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for match in PROGRAM.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            needs = int(match["major"] or 3), int(match["minor"] or 10)
            where = f"{page.relative_to(DOCS).as_posix()}:{line}"
            found.append(Snippet(where, match["code"], match["output"], needs))
    return found


@pytest.mark.parametrize("snippet", snippets(), ids=lambda snippet: snippet.where)
def test_it_prints_what_the_page_says(snippet: Snippet) -> None:
    if sys.version_info < snippet.needs:
        pytest.skip("needs Python " + ".".join(map(str, snippet.needs)))
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", snippet.code],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if snippet.output is not None:
        assert done.stdout == snippet.output


WHOLE = [
    *sorted(DOCS.glob("actors*.md")),
    *sorted((DOCS / "how-to").glob("*.md")),
    *(DOCS / name for name in ("concepts.md", "first-message.md", "from-shove.md", "index.md")),
]


@pytest.mark.parametrize("page", WHOLE, ids=lambda page: page.name)
def test_every_block_of_the_page_is_a_complete_program(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    programs = list(PROGRAM.finditer(text))
    assert text.count("```python\n") == len(programs) > 0
    assert all(match["output"] for match in programs)


def test_the_programs_need_nothing_but_actors_and_trio() -> None:
    """The pages promise it to people who have never heard of NATS."""
    imported = {
        line
        for snippet in snippets()
        if snippet.where.startswith("actors")
        for line in snippet.code.splitlines()
        if re.match(r"(from|import) ", line)
    }
    ours = {line for line in imported if "shove_actors" in line}
    assert ours == {"from shove_actors import actors"}
    rest = {line.split()[1].partition(".")[0] for line in imported - ours}
    assert rest - set(sys.stdlib_module_names) == {"trio"}
