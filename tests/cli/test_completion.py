"""Shell completion: the script is printed, and what it asks for is answered."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from shove_actors.cli._app import COMMANDS, HIDDEN, commands
from shove_actors.cli._completion import SHELLS

from .kit import Cli


def asked(words: str, count: int) -> list[str]:
    """What a bash would be told that completes the word number `count` of `words`."""
    done = subprocess.run(
        [sys.executable, "-m", "shove_actors"],
        env={
            "_SHOVE_ACTORS_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count),
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_asks_the_command(cli: Cli, shell: str) -> None:
    script = cli.run("completion", shell)
    assert f"_SHOVE_ACTORS_COMPLETE={shell}_complete" in script
    assert "shove-actors" in script


def test_bash_can_read_its_script(cli: Cli) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    script = cli.run("completion", "bash")
    done = subprocess.run([bash, "-n"], input=script, text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_is_offered_and_none_that_is_hidden() -> None:
    offered = asked("shove-actors ", 1)
    assert offered == list(COMMANDS)
    assert not set(offered) & set(HIDDEN)
    assert asked("shove-actors do", 1) == ["doctor"]


def test_options_and_choices_are_offered() -> None:
    assert "--monitor" in asked("shove-actors doctor --", 2)
    assert asked("shove-actors completion ", 2) == list(SHELLS)


def test_what_completes_a_word_loads_no_command() -> None:
    program = (
        "import sys; from shove_actors.cli._app import commands; import click\n"
        "with commands.make_context('x', ['tree'], resilient_parsing=True) as ctx:\n"
        "    assert commands.shell_complete(ctx, 'd')\n"
        "assert not {'trio', 'nats', 'rich', 'shove_actors.cli._tree'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [*COMMANDS, *HIDDEN])
def test_every_command_is_there_and_says_its_exit_codes(name: str) -> None:
    import click

    context = click.Context(commands)
    found = commands.get_command(context, name)
    assert found is not None
    assert found.name == name
    assert found.hidden == (name in HIDDEN)
    if not found.hidden:
        assert "Exit codes: " in (found.epilog or "")
        assert found.help
