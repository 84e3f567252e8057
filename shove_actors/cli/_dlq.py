"""`shove-actors dlq`: what died, why, and what to do about it."""

from __future__ import annotations

import base64
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import trio

from shove_actors import DeadLetter, DeadLettersDone, DeathReason, LetterFilter, NatsConfig

from ._base import (
    AGE,
    POSITIVE,
    CommandFailed,
    Exit,
    connection_options,
    json_option,
    print_json,
    print_lines,
    table,
)
from ._output import write_lines
from ._targets import opened

F = TypeVar("F", bound=Callable[..., Any])

_CODES = "Exit codes: 0 done; 1 an error; 2 wrong usage, or no such queue; {more}130 interrupted."


@click.group("dlq", epilog="Exit codes: those of its commands; see `dlq COMMAND --help`.")
def command() -> None:
    """Look at dead letters, replay them, throw them away.

    TARGET is the name of a topic's queue, or module:topic. Looking consumes nothing.
    """


def target_options(function: F) -> F:
    """Whose dead letters, and where."""
    for option in (
        connection_options(),
        click.option("--dlq", metavar="NAME", help="If it is not called {queue}-dlq."),
        click.option(
            "--app-dir",
            type=click.Path(file_okay=False, exists=True, path_type=Path),
            help="Folder that holds the module (default: this one).",
        ),
        click.argument("target"),
    ):
        function = option(function)
    return function


def filter_options(function: F) -> F:
    """Which of them. The command gets `selection`, a `LetterFilter`."""

    def with_filter(
        *args: Any,
        reason: tuple[str, ...],
        key: tuple[str, ...],
        older_than: float | None,
        newer_than: float | None,
        sequence: tuple[int, ...],
        limit: int | None,
        **rest: Any,
    ) -> Any:
        selection = LetterFilter(
            reasons=frozenset(reason),
            keys=frozenset(key),
            sequences=frozenset(sequence),
            older_than=older_than,
            newer_than=newer_than,
            limit=limit,
        )
        return function(*args, selection=selection, **rest)

    with_filter.__name__, with_filter.__doc__ = function.__name__, function.__doc__
    with_filter.__click_params__ = getattr(  # type: ignore[attr-defined]
        function, "__click_params__", []
    )
    reasons = click.Choice([reason.value for reason in DeathReason])
    for option in (
        click.option("--limit", type=POSITIVE, help="The first N only."),
        click.option("--sequence", type=POSITIVE, multiple=True, help="In the dead-letter queue."),
        click.option("--newer-than", type=AGE, help="Died less than AGE ago."),
        click.option("--older-than", type=AGE, help="Died longer ago than AGE, as 90s, 15m, 2h."),
        click.option("--key", multiple=True, metavar="KEY", help="Of this sequence key."),
        click.option("--reason", type=reasons, multiple=True, help="That died of this."),
    ):
        option(with_filter)
    return with_filter  # type: ignore[return-value]


# ---------------------------------------------------------------------- looking


@command.command("list", epilog=_CODES.format(more=""))
@target_options
@filter_options
@json_option
def list_(selection: LetterFilter, as_json: bool, **where: Any) -> None:
    """One line per dead letter: why it died, when, and what of. No payloads."""
    letters = trio.run(_browse, where, selection)
    if as_json:
        print_json([summary(letter) for letter in letters])
        return
    header = ("sequence", "reason", "died at", "key", "was", "retries", "deaths", "bytes", "detail")
    rows = [
        (
            str(letter.sequence),
            letter.metadata.reason or "?",
            f"{letter.died_at:%Y-%m-%d %H:%M:%S}",
            letter.key if letter.key is not None else "",
            str(letter.metadata.original_sequence or "?"),
            str(letter.metadata.retry_count),
            str(letter.metadata.death_count),
            f"{len(letter.payload):,}",
            letter.metadata.detail or letter.metadata.cause or "",
        )
        for letter in letters
    ]
    print_lines(
        *(table(header, rows, right="rlllrrrr") if rows else []),
        f"{len(rows)} dead letter{'' if len(rows) == 1 else 's'}",
    )


@command.command("show", epilog=_CODES.format(more="4 there is no such letter; "))
@target_options
@click.argument("sequence", type=POSITIVE)
@json_option
def show(sequence: int, as_json: bool, **where: Any) -> None:
    """All of one dead letter: its story, its headers, its payload."""
    found = trio.run(_browse, where, LetterFilter(sequences=frozenset([sequence]), limit=1))
    if not found:
        raise CommandFailed(
            f"there is no dead letter {sequence}; `dlq list` shows their numbers", Exit.NOT_DONE
        )
    letter = found[0]
    if as_json:
        print_json(whole(letter))
        return
    facts = {name: value for name, value in summary(letter).items() if value is not None}
    width = max(map(len, facts))
    lines = [f"{name:<{width}}  {value}" for name, value in facts.items()]
    lines += ["", "headers:", *(f"  {name}: {value}" for name, value in letter.headers.items())]
    text = _text(letter.payload)
    lines += ["", "payload:", text if text is not None else _hex(letter.payload)]
    print_lines(*lines)


@command.command("export", epilog=_CODES.format(more=""))
@target_options
@filter_options
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="To this file.")
@click.option("--json", "as_json", is_flag=True, help="What is said of --out, too, is JSON.")
def export(selection: LetterFilter, out: Path | None, as_json: bool, **where: Any) -> None:
    """One JSON object per line and letter, with headers and payload.

    Payloads that are text are `payload`, all others `payload_base64`.
    """
    letters = trio.run(_browse, where, selection)
    lines = [json.dumps(whole(letter), ensure_ascii=False) for letter in letters]
    if out is None:
        write_lines(sys.stdout, lines)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            write_lines(file, lines)
    except FileExistsError:
        raise CommandFailed(f"--out {out}: it exists; name a new file", Exit.USAGE) from None
    if as_json:
        print_json({"exported": len(lines), "out": str(out)})
    else:
        print_lines(f"{len(lines)} dead letters in {out}")


# ---------------------------------------------------------------------- doing


@command.command("replay", epilog=_CODES.format(more="4 some letters stay, and why is said; "))
@target_options
@filter_options
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@json_option
def replay_(selection: LetterFilter, dry_run: bool, as_json: bool, **where: Any) -> int:
    """Put dead letters back into their topic, with a fresh budget of retries.

    A letter is deleted once its message is stored again. Letters of a sequenced topic are put back
    in the order of their messages, key by key; they come behind what was published meanwhile.
    Letters of a poisoned key stay: `poisoned release --replay` handles those, in order.
    """
    done = trio.run(_replay, where, selection, dry_run)
    return _report(where["target"], done, "replayed", dry_run, as_json)


@command.command("purge", epilog=_CODES.format(more="4 it was not confirmed with --yes; "))
@target_options
@filter_options
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@click.option("--yes", is_flag=True, help="Do it. They are gone for good.")
@json_option
def purge_(selection: LetterFilter, dry_run: bool, yes: bool, as_json: bool, **where: Any) -> int:
    """Delete dead letters for good."""
    done = trio.run(_purge, where, selection, dry_run or not yes)
    if not (dry_run or yes):
        raise CommandFailed(
            f"{done.done} dead letters would be deleted for good; say --yes to do it, or `dlq "
            "export` them first",
            Exit.NOT_DONE,
        )
    return _report(where["target"], done, "deleted", dry_run, as_json)


async def _browse(where: dict[str, Any], selection: LetterFilter) -> list[DeadLetter]:
    async with opened(**_place(where)) as (broker, topic):
        return [letter async for letter in broker.dead_letters(topic, selection)]


async def _replay(where: dict[str, Any], selection: LetterFilter, dry_run: bool) -> DeadLettersDone:
    async with opened(**_place(where)) as (broker, topic):
        return await broker.replay_dead_letters(topic, selection, dry_run=dry_run)


async def _purge(where: dict[str, Any], selection: LetterFilter, dry_run: bool) -> DeadLettersDone:
    async with opened(**_place(where)) as (broker, topic):
        return await broker.purge_dead_letters(topic, selection, dry_run=dry_run)


def _place(where: dict[str, Any]) -> dict[str, Any]:
    config: NatsConfig = where["config"]
    return {
        "config": config,
        "target": where["target"],
        "folder": where["app_dir"],
        "dlq": where["dlq"],
    }


def _report(target: str, done: DeadLettersDone, what: str, dry_run: bool, as_json: bool) -> int:
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                what: done.done,
                "stay": dict(done.skipped),
                "poisoned_keys": sorted(done.poisoned_keys),
                "failure": done.failure,
            }
        )
    else:
        lines = [f"{done.done} {'would be ' if dry_run else ''}{what}"]
        lines += [f"{count} stay: {reason}" for reason, count in done.skipped.items()]
        if done.poisoned_keys:
            keys = sorted(done.poisoned_keys)
            named = "--all" if len(keys) > 3 else " ".join(map(shlex.quote, keys))
            lines.append(f"-> shove-actors poisoned release {target} {named} --replay")
        if done.failure is not None:
            lines.append(f"one could not be published: {done.failure}")
        print_lines(*lines)
    return Exit.OK if done.is_complete or dry_run else Exit.NOT_DONE


def summary(letter: DeadLetter) -> dict[str, Any]:
    """What is known of it besides headers and payload."""
    about = letter.metadata
    return {
        "sequence": letter.sequence,
        "reason": about.reason or None,
        "cause": about.cause,
        "detail": about.detail,
        "died_at": letter.died_at.isoformat(),
        "first_failed_at": _iso(about.first_failed_at),
        "published_at": _iso(about.published_at),
        "key": letter.key,
        "message_id": about.delivery_id,
        "original_queue": about.original_queue,
        "original_subject": about.original_subject,
        "original_sequence": about.original_sequence,
        "retries": about.retry_count,
        "deaths": about.death_count,
        "bytes": len(letter.payload),
    }


def whole(letter: DeadLetter) -> dict[str, Any]:
    """`summary`, headers, payload."""
    text = _text(letter.payload)
    payload = (
        {"payload": text}
        if text is not None
        else {"payload_base64": base64.b64encode(letter.payload).decode()}
    )
    return {**summary(letter), "headers": dict(letter.headers), **payload}


def _iso(moment: Any) -> str | None:
    return None if moment is None else str(moment.isoformat())


def _text(payload: bytes) -> str | None:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c in "\n\r\t" for c in text) else None


def _hex(payload: bytes) -> str:
    shown = payload[:512]
    lines = [
        f"  {at:06x}  {shown[at : at + 16].hex(' ')}" for at in range(0, max(1, len(shown)), 16)
    ]
    if len(payload) > len(shown):
        lines.append(f"  and {len(payload) - len(shown):,} bytes more; `dlq export` has all")
    return "\n".join(lines)
