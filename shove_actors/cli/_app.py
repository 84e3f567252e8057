"""The commands, and what becomes of their errors: one line, and an exit code.

Exit codes of all commands: 0 all is well; 1 an error; 2 wrong usage; 3 handlers still ran when the
drain timed out; 4 it was not done, and the command says why; 130 interrupted; 141 nobody reads the
output any more (`| head`), as of a program that SIGPIPE ends. docs/cli.md has them by command.

A command is a module with a click command named `command`, imported when it is asked for: what
completes a word in a shell should not load all of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module, metadata
from typing import Final

import click
from click.shell_completion import CompletionItem, shell_complete

from shove_actors._errors import ShoveError, TopicNotDeclared, UsageError

from ._base import CommandFailed, Exit
from ._masked import masked
from ._output import Interrupted, OutputClosed, drop_output
from ._places import place_of

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

PROGRAM: Final = "shove-actors"
COMPLETE_VARIABLE: Final = "_SHOVE_ACTORS_COMPLETE"

#: Name, module, and the line of it in the help.
COMMANDS: Final = {
    "run": ("_run_app", "run an application: module:app"),
    "top": ("_top", "what the server and running processes are doing, live"),
    "doctor": ("_doctor", "look at a server, and say what to mend"),
    "server": ("_server", "a nats-server with JetStream, for development"),
    "topology": ("_topology", "compare topics with a server, and create their streams"),
    "dlq": ("_dlq", "look at dead letters, replay them, throw them away"),
    "poisoned": ("_poisoned", "keys of FAIL_ALL topics that wait to be released"),
    "stress": ("_stress", "throughput and latency by handler, consumers and prefetch"),
    "demo": ("_demo", "27,004 real flights through a sequenced topic, and a verdict"),
    "tree": ("_tree", "the supervision tree of the demo while it runs"),
    "reshard": ("_reshard", "change the number of shards of a topic in use"),
    "simulate-autoscaler": ("_simulate", "what the autoscaler would do with a load"),
    "completion": ("_completion", "completion for bash, zsh or fish"),
}
#: Not for people.
HIDDEN: Final = {"_demo-worker": "_demo_worker"}


class Commands(click.Group):
    """The group of all commands; none is imported before it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS[cmd_name][0] if cmd_name in COMMANDS else HIDDEN.get(cmd_name)
        if module is None:
            return None
        found = import_module(f".{module}", __package__).command
        assert isinstance(found, click.Command)
        if isinstance(found, click.Group):
            # Whose help would come as an error, which is one line.
            found.no_args_is_help = False
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        # Without `click.Group`'s own, which would import every command.
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


def version() -> str:
    try:
        return metadata.version("shove-actors")
    except metadata.PackageNotFoundError:
        return "(not installed)"


@click.group(
    PROGRAM,
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 90},
    epilog="Exit codes: 0 all is well; 1 an error or a bad verdict; 2 wrong usage; 3 handlers "
    "still ran when the drain timed out; 4 not done, for a reason that is given; 130 interrupted; "
    "141 nobody reads the output.",
    no_args_is_help=False,
)
@click.version_option(version(), prog_name=PROGRAM, message="%(prog)s %(version)s")
def commands() -> None:
    """Reliable messaging on NATS JetStream as supervised Trio actors."""


def main(argv: Sequence[str] | None = None) -> int:
    """See `shove_actors.cli.main`."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    finally:
        if sys.stdout is not None:  # `>&-`
            try:
                sys.stdout.flush()
            except BrokenPipeError:
                drop_output(sys.stdout)


def _run(arguments: list[str]) -> int:
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        return shell_complete(commands, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
    try:
        with commands.make_context(PROGRAM, arguments) as context:
            done = commands.invoke(context)
        return done if isinstance(done, int) else Exit.OK
    except click.exceptions.Exit as exc:
        raise SystemExit(exc.exit_code) from None
    except click.ClickException as exc:
        raise SystemExit(_say(_usage(exc), Exit.USAGE, arguments)) from None
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        return Exit.OUTPUT_CLOSED
    except (ShoveError, OSError, BaseExceptionGroup) as error:
        return _explain(error, arguments)


def _usage(error: click.ClickException) -> str:
    text = error.format_message().rstrip().replace("\n", " ")
    context = error.ctx if isinstance(error, click.UsageError) else None
    group = context.command if context is not None else None
    if context is not None and isinstance(group, click.Group) and text.startswith("Missing"):
        text = f"Missing command, one of: {', '.join(group.list_commands(context))}"
    path = context.command_path if context is not None else PROGRAM
    return f"{text}{'' if text.endswith('.') else '.'} See: {path} --help"


def _explain(error: BaseException, arguments: Sequence[str] = ()) -> int:
    """One line for what was raised on purpose; everything else goes on as it is."""
    leaves = list(_leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt | Interrupted) for leaf in leaves):
        return _say("interrupted", Exit.INTERRUPTED)
    if any(isinstance(leaf, OutputClosed) for leaf in leaves):
        return Exit.OUTPUT_CLOSED
    foreign = [leaf for leaf in leaves if not isinstance(leaf, ShoveError | OSError)]
    if foreign or not leaves:
        raise error
    first, text = leaves[0], str(leaves[0])
    code = Exit.USAGE if isinstance(first, UsageError) else Exit.FAILED
    if isinstance(first, CommandFailed):
        code = Exit(first.code)
    elif (place := place_of(first)) is not None:
        # It was not the command line that was wrong.
        text, code = f"{text} ({place})", Exit.FAILED
    elif isinstance(first, TopicNotDeclared) and list(arguments[:1]) == ["run"]:
        code = Exit.FAILED  # other commands were told the name
    return _say(text.replace("\n", " "), code, arguments)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _say(text: str, code: Exit, arguments: Sequence[str] = ()) -> int:
    """`arguments`: what was typed, which a message may repeat."""
    if sys.stderr is not None:
        print(f"{PROGRAM}: {masked(text, arguments)}", file=sys.stderr)
    return code
