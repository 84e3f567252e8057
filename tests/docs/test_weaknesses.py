"""The page about the source system's weaknesses: complete, and its tests exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "weaknesses.md"
ROW = re.compile(
    r"\| SW-(?P<number>\d\d) \| (?P<what>[^|]+) \| (?P<here>[^|]+) \| (?P<by>[^|]+) \|"
)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[re.Match[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [match for line in lines if (match := ROW.fullmatch(line))]


@cache
def functions(path: str) -> frozenset[str]:
    text = (TESTS / path).read_text(encoding="utf-8")
    return frozenset(re.findall(r"^(?:async )?def (\w+)\(", text, re.MULTILINE))


def test_all_sixty_six_are_there_once_and_in_order() -> None:
    assert [int(row["number"]) for row in rows()] == list(range(1, 67))


def test_no_row_of_the_page_is_overlooked() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"^\| SW-", text, re.MULTILINE)) == len(rows())


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"SW-{row['number']}")
def test_its_tests_exist(row: re.Match[str]) -> None:
    named = NAMED.findall(row["by"])
    assert named, "a weakness needs a test"
    assert NAMED.sub("", row["by"]).strip(" ,") == ""
    for path, name in named:
        assert name.startswith(("test_", "check_"))
        assert name in functions(path), f"{path} has no {name}"


def test_the_number_of_those_answered_in_part_is_that_of_the_text() -> None:
    partly = [f"SW-{row['number']}" for row in rows() if row["here"].startswith("*Partly.*")]
    said = re.search(r"marked \*Partly\*: (.+)\.", PAGE.read_text(encoding="utf-8"))
    assert said is not None
    assert re.findall(r"SW-\d\d", said[1]) == partly
