"""The examples of the JetStream client run alone, and the page for Go readers quotes them."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "jetstream"
PAGE = ROOT / "docs" / "jetstream-from-go.md"

#: What each must print: regular expressions, in this order, one or more lines each.
PRINTED: dict[str, list[str]] = {
    "connecting": [
        r"connected to nats://127\.0\.0\.1:\d+",
        r"Got disconnected! Reason: ConnectionError",
        r"Got reconnected to nats://127\.0\.0\.1:\d+!",
        r"Connection closed\. Reason: None",
        r"again: -1",
    ],
    "quick_start": [
        r"Published 100 messages",
        r"Received a JetStream message via fetch: hello message 0",
        r"Received 10 messages",
        r"Received a JetStream message via callback: hello message 10",
        r"Received a JetStream message via iterator: hello message 90",
        r"Processed 100 messages",
    ],
    "streams": [
        r"refused: 10058",
        r"\('ORDERS\.\*',\) 1000000",
        r"5 {'ORDERS.new': 4, 'ORDERS.old': 1}",
        r"ORDERS.new 2 order 1",
        r"import",
        r"message 2 is gone",
        r"purged: 2",
        r"\['ORDERS'\]",
    ],
    "publishing": [
        r"1 1 True",
        r"refused: 10071",
        r"stored: 501",
        r"batch of 3",
        r"ORDERS.due wake up",
    ],
    "legacy_management": [r"\('ORDERS',\) 8", r"MONITOR none", r"\[\]"],
    "legacy_publishing": [r"Received a JetStream message: hello", r"1", r"10"],
}
# trio-asyncio subclasses a child watcher that CPython 3.14 removed; it warns from 3.12 on.
STRICT = ["-W", "error", "-W", "ignore::DeprecationWarning:trio_asyncio._loop"]


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


def quotes() -> list[tuple[str, str]]:
    found = re.findall(
        r"<!-- from: (\w+)\.py -->\n```python\n(.*?)^```\n",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return [(name, code) for name, code in found]


@pytest.mark.parametrize("number", range(len(quotes())))
def test_the_page_quotes_what_runs(number: int) -> None:
    name, code = quotes()[number]
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    lines = [line.rstrip() for line in source.splitlines()]
    wanted = [line.rstrip() for line in textwrap.dedent(code).splitlines()]
    for start in range(len(lines) - len(wanted) + 1):
        part = textwrap.dedent("\n".join(lines[start : start + len(wanted)]))
        if [line.rstrip() for line in part.splitlines()] == wanted:
            return
    pytest.fail(f"not in {name}.py:\n{code}")


def test_every_python_block_of_the_page_is_a_quote() -> None:
    assert PAGE.read_text(encoding="utf-8").count("```python\n") == len(quotes()) > 10


def test_every_example_is_run() -> None:
    """By this test or, for what is quoted under Consumers and Stores, by a neighbour's."""
    tested = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.stem}"' in tested, path.name
