"""`shove-actors poisoned`: the keys of FAIL_ALL topics of which nothing is handled."""

from __future__ import annotations

from typing import Any

import click
import trio

from shove_actors import PoisonedKey

from ._base import Exit, json_option, print_json, print_lines, table
from ._dlq import target_options
from ._targets import opened


@click.group("poisoned", epilog="Exit codes: those of its commands.")
def command() -> None:
    """Keys of FAIL_ALL topics that wait to be released.

    TARGET is the name of a topic's queue, or module:topic.
    """


@command.command(
    "list", epilog="Exit codes: 0 listed; 1 an error; 2 wrong usage, or no FAIL_ALL topic."
)
@target_options
@json_option
def list_(as_json: bool, **where: Any) -> None:
    """Each poisoned key: since when, of which message, and why."""
    found = trio.run(_list, where)
    if as_json:
        print_json([_facts(each) for each in found])
        return
    header = ("key", "shard", "since", "reason", "message", "detail")
    rows = [
        (
            each.key,
            str(each.shard),
            f"{each.since:%Y-%m-%d %H:%M:%S}" if each.since is not None else "?",
            each.reason,
            str(each.sequence),
            each.detail or each.cause or "",
        )
        for each in found
    ]
    print_lines(
        *(table(header, rows, right="lrllr") if rows else []),
        f"{len(rows)} poisoned key{'' if len(rows) == 1 else 's'}",
    )


@command.command(
    "release",
    epilog="Exit codes: 0 all of them are released, or their replay is stored; 1 an error; 2 wrong "
    "usage; 4 a key was not poisoned.",
)
@target_options
@click.argument("keys", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every key that is poisoned now.")
@click.option("--replay", is_flag=True, help="Have its dead letters handled first, in their order.")
@json_option
def release(keys: tuple[str, ...], every: bool, replay: bool, as_json: bool, **where: Any) -> int:
    """Let poisoned keys go on.

    With --replay the topic's consumers handle the dead letters of a key before anything newer; they
    have to be running, and this command does not wait for them.
    """
    if bool(keys) == every:
        raise click.UsageError("name the keys to release, or say --all")
    done = trio.run(_release, where, keys, every, replay)
    how = "replay asked for" if replay else "released"
    missing = sorted(key for key, found in done.items() if not found)
    if as_json:
        print_json({"replay": replay, "keys": done})
    else:
        print_lines(
            *(f"{key}: {how if found else 'not poisoned'}" for key, found in done.items()),
            *([] if done else ["no key is poisoned"]),
        )
    return Exit.NOT_DONE if missing else Exit.OK


async def _list(where: dict[str, Any]) -> list[PoisonedKey]:
    async with opened(where["config"], where["target"], where["app_dir"], where["dlq"]) as (
        broker,
        topic,
    ):
        return sorted(await broker.poisoned(topic), key=lambda each: each.sequence)


async def _release(
    where: dict[str, Any], keys: tuple[str, ...], every: bool, replay: bool
) -> dict[str, bool]:
    async with opened(where["config"], where["target"], where["app_dir"], where["dlq"]) as (
        broker,
        topic,
    ):
        if every:
            keys = tuple(each.key for each in await broker.poisoned(topic))
        return {key: await broker.release(topic, key, replay=replay) for key in keys}


def _facts(each: PoisonedKey) -> dict[str, Any]:
    return {
        "key": each.key,
        "shard": each.shard,
        "reason": each.reason,
        "cause": each.cause,
        "detail": each.detail,
        "sequence": each.sequence,
        "message_id": each.message_id,
        "since": None if each.since is None else each.since.isoformat(),
    }
