"""The documentation says what the code does: its tables are compared with what they describe."""

from __future__ import annotations

from pathlib import Path

from shove_actors.runtime._metrics import markdown_table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    """`python -c "from shove_actors.runtime._metrics import *; print(markdown_table())"`"""
    assert markdown_table() in (DOCS / "observability.md").read_text(encoding="utf-8")
