"""`shove-actors topology`: topics of a program, and what a server has of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import trio

from shove_actors import NatsConfig, Topic, jetstream, open_broker

from ._base import (
    CommandFailed,
    Exit,
    connection_options,
    json_option,
    print_json,
    print_lines,
    table,
)
from ._load import load_topics
from ._plan import Difference, Step, differences, plan
from ._run import until_signal

F = TypeVar("F", bound=Callable[..., Any])

_SIGNS = {"create": "+", "update": "~", "keep": "=", "refused": "!"}


@click.group("topology", epilog="Exit codes: those of its commands.")
def command() -> None:
    """Compare topics with a server, and create their streams.

    TOPICS is module:name, naming a topic or a list of them, or a module, meaning all its topics.
    """


def topics_options(function: F) -> F:
    for option in (
        connection_options(),
        click.option(
            "--app-dir",
            type=click.Path(file_okay=False, exists=True, path_type=Path),
            help="Folder that holds the module (default: this one).",
        ),
        json_option,
        click.argument("target", metavar="TOPICS"),
    ):
        function = option(function)
    return function


@command.command(
    "plan",
    epilog="Exit codes: 0 `apply` would succeed; 1 an error; 2 wrong usage; 4 it would be refused.",
)
@topics_options
def plan_(config: NatsConfig, target: str, app_dir: Path | None, as_json: bool) -> int:
    """What `apply` would do to each stream. Changes nothing."""
    steps = trio.run(_plan, config, load_topics(target, app_dir))
    _print(steps, as_json, done=False)
    return Exit.NOT_DONE if any(step.kind == "refused" for step in steps) else Exit.OK


@command.command(
    "apply",
    epilog="Exit codes: 0 done, or nothing to do; 1 an error; 2 wrong usage; 4 refused, and "
    "nothing was changed.",
)
@topics_options
def apply(config: NatsConfig, target: str, app_dir: Path | None, as_json: bool) -> None:
    """Create and adjust the streams, as `broker.declare` does at every start of a program.

    For setups where programs may not do that themselves. Nothing is changed if any part of it is
    refused.
    """
    topics = load_topics(target, app_dir)
    steps = trio.run(_plan, config, topics)
    refused = [step for step in steps if step.kind == "refused"]
    if refused:
        raise CommandFailed(f"nothing was changed: {refused[0].why}", Exit.NOT_DONE)
    trio.run(_apply, config, topics)
    _print(steps, as_json, done=True)


@command.command(
    "diff",
    epilog="Exit codes: 0 no difference; 1 an error; 2 wrong usage; 4 there are differences.",
)
@topics_options
def diff(config: NatsConfig, target: str, app_dir: Path | None, as_json: bool) -> int:
    """In what the server differs from the topics, whoever's business that is.

    Also limits that an operator has set, streams and consumers that are left over, and what `apply`
    does not touch.
    """
    found = trio.run(_diff, config, load_topics(target, app_dir))
    if as_json:
        print_json([each.as_dict() for each in found])
    else:
        rows = [
            (each.name, each.setting, _shown(each.topic_has), _shown(each.server_has))
            for each in found
        ]
        print_lines(
            *(table(("stream", "setting", "topic has", "server has"), rows) if rows else []),
            f"{len(rows)} difference{'' if len(rows) == 1 else 's'}",
        )
    return Exit.NOT_DONE if found else Exit.OK


async def _plan(config: NatsConfig, topics: list[Topic[Any]]) -> list[Step]:
    async with until_signal(), jetstream.connect(config) as js:
        return await plan(js, topics)


async def _diff(config: NatsConfig, topics: list[Topic[Any]]) -> list[Difference]:
    async with until_signal(), jetstream.connect(config) as js:
        return await differences(js, topics)


async def _apply(config: NatsConfig, topics: list[Topic[Any]]) -> None:
    async with until_signal(), open_broker(config, telemetry=None) as broker:
        await broker.declare(*topics)


def _print(steps: list[Step], as_json: bool, *, done: bool) -> None:
    if as_json:
        print_json([step.as_dict() for step in steps])
        return
    lines = []
    for step in steps:
        lines.append(f"{_SIGNS[step.kind]} {step.stream}")
        if step.why:
            lines.append(f"    refused: {step.why}")
        if step.kind == "create":
            lines.append("    " + "; ".join(f"{c.setting} {_shown(c.will)}" for c in step.changes))
            continue
        lines += [
            f"    {change.setting}: {_shown(change.was)} -> {_shown(change.will)}"
            for change in step.changes
        ]
    counts = {kind: sum(step.kind == kind for step in steps) for kind in _SIGNS}
    words = ("created", "changed", "kept") if done else ("to create", "to change", "to keep")
    said = [
        f"{counts[kind]} {word}"
        for kind, word in zip(("create", "update", "keep"), words, strict=True)
    ]
    if counts["refused"]:
        said.append(f"{counts['refused']} refused")
    print_lines(*lines, ", ".join(said))


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        text = ", ".join(map(str, value[:4]))
        return text + (f" and {len(value) - 4} more" if len(value) > 4 else "")
    return f"{value:g}" if isinstance(value, float) else str(value)
