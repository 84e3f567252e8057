"""`shove-actors completion SHELL`: the script that makes a shell complete commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from ._base import print_lines

SHELLS: Final = ("bash", "zsh", "fish")


@click.command("completion", epilog="Exit codes: 0 printed; 2 wrong usage.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(shove-actors completion bash)"     in ~/.bashrc
    zsh:   eval "$(shove-actors completion zsh)"      in ~/.zshrc
    fish:  shove-actors completion fish > ~/.config/fish/completions/shove-actors.fish

    The script asks the installed `shove-actors` command; `python -m shove_actors` is not completed.
    """
    from ._app import COMPLETE_VARIABLE, PROGRAM, commands

    found = get_completion_class(shell)
    assert found is not None
    made = found(commands, {}, PROGRAM, COMPLETE_VARIABLE)
    # `source()` would look which bash there is, here rather than where the script is used.
    print_lines((made.source_template % made.source_vars()).rstrip("\n"))
