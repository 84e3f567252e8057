"""The diagrams that are in the documentation are the ones that the code draws today."""

from __future__ import annotations

import re

import pytest

from .diagrams import IMG, PICTURES
from .machines import GIVES_UP, OWNER_STATES, PHASES, child_rungs, owner_rungs
from .svg import Rung

PAGES = IMG.parent


@pytest.mark.parametrize("name", PICTURES)
def test_the_file_is_what_the_code_draws(name: str) -> None:
    drawn = PICTURES[name]()
    there = (IMG / f"{name}.svg").read_text(encoding="utf-8")
    assert there == drawn, "python -m tests.docs.diagrams writes it"


@pytest.mark.parametrize("name", PICTURES)
def test_a_page_shows_it_and_says_what_is_on_it(name: str) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    shown = re.findall(rf"!\[([^\]]+)\]\(img/{re.escape(name)}\.svg\)", text)
    assert shown
    assert all(len(words) > 10 for words in shown)


@pytest.mark.parametrize(
    ("states", "rungs", "final"),
    [(PHASES, child_rungs(), {"ended", GIVES_UP}), (OWNER_STATES, owner_rungs(), set[str]())],
    ids=["child", "owner"],
)
def test_every_state_is_reached_and_left(
    states: list[str], rungs: list[Rung], final: set[str]
) -> None:
    assert {rung.end for rung in rungs} >= set(states[1:])
    assert {rung.start for rung in rungs} == set(states) - final
