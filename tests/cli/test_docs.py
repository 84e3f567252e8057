"""docs/cli.md says what the commands say of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from shove_actors.cli._app import COMMANDS, commands
from shove_actors.cli._checkup import SYNC_DOC
from shove_actors.cli._process import SUBJECT
from shove_actors.cli._watching import KEPT

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
ROW = re.compile(r"^\| `([\w-]+)` \|(.*)\|$", re.MULTILINE)


def command(name: str) -> click.Command:
    found = commands.get_command(click.Context(commands), name)
    assert found is not None
    return found


def leaves(found: click.Command) -> Iterator[click.Command]:
    """The command, or what is below it if it is a group."""
    if isinstance(found, click.Group):
        yield from found.commands.values()
    else:
        yield found


@pytest.mark.parametrize("name", COMMANDS)
def test_each_has_a_section_and_its_line(name: str) -> None:
    assert name in SECTIONS
    assert f"| [`{name}`](#{name}) | {COMMANDS[name][1]}" in PAGE


def documented() -> dict[str, set[int]]:
    table = PAGE.partition("## Exit codes\n")[2].partition("\n## ")[0]
    columns = [0, 1, 2, 3, 4, 130]
    return {
        name: {code for code, cell in zip(columns, cells.split("|"), strict=True) if cell.strip()}
        for name, cells in ROW.findall(table)
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_exit_codes_are_those_of_the_help(name: str) -> None:
    said: set[int] = set()
    for leaf in leaves(command(name)):
        epilog = (leaf.epilog or "").partition("Exit codes: ")[2]
        said |= {int(n) for n in re.findall(r"(?:^|; |, and |\b)(\d+) (?!means)", epilog)}
    # Interrupted is said where an interruption has something of its own to say.
    assert said - {130} == documented()[name] - {130}


@pytest.mark.parametrize("name", ["run", "doctor", "server", "topology", "dlq", "stress", "top"])
def test_options_that_the_page_names_are_there(name: str) -> None:
    known = {"--help"}
    for leaf in leaves(command(name)):
        known |= {option for param in leaf.params for option in param.opts}
    other = {"--top", "--answer", "--once", "--url", "--monitor", "--replay", "--yes"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", SECTIONS[name]))
    assert named <= known | other


def test_numbers_and_names_of_the_page() -> None:
    assert f"`{SUBJECT}`" in PAGE
    assert f"the latest {KEPT:,} attempts" in PAGE
    heading = SYNC_DOC.partition("`")[2].rstrip("`")
    assert f"## {heading}\n" in (DOCS / "operations.md").read_text(encoding="utf-8")
    assert (DOCS / "img" / "top.svg").read_text(encoding="utf-8").startswith("<svg")
