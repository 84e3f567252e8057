"""`shove-actors demo`: real flights, kills if asked for, and a verdict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click
import trio

from ._base import NOT_NEGATIVE, POSITIVE
from ._run import DemoOptions, run_demo
from ._screen import JsonScreen, make_screen

#: Seconds a handler works under chaos: without it a kill would rarely meet a handler at work.
CHAOS_WORK_S: Final = 0.001


@click.command(
    "demo",
    epilog="Exit codes: 0 everything was as it must be; 1 a bad verdict or an error; 2 wrong usage;"
    " 3 the drain timed out; 130 interrupted.",
)
@click.option(
    "--chaos",
    is_flag=True,
    help="Kill the server three times and a consumer process twice on the way.",
)
@click.option("--seed", type=int, default=1, help="Chooses the kills (default 1).")
@click.option("--count", type=POSITIVE, help="Only the first N flights.")
@click.option("--shards", type=POSITIVE, default=8, help="Default 8.")
@click.option(
    "--work-ms",
    type=NOT_NEGATIVE,
    metavar="MS",
    help="How long a handler works (default 0; 1 with --chaos).",
)
@click.option(
    "--store", type=click.Path(path_type=Path), help="Keep the store and journals in this folder."
)
@click.option("--plain", is_flag=True, help="Lines instead of a live view.")
@click.option("--json", "as_json", is_flag=True, help="The verdict only, as one JSON object.")
def command(
    chaos: bool,
    seed: int,
    count: int | None,
    shards: int,
    work_ms: float | None,
    store: Path | None,
    plain: bool,
    as_json: bool,
) -> int:
    """27,004 real flights through a sequenced topic, and a verdict.

    Publishes the flights that left New York in January 2013, in order per aircraft, to a
    nats-server of its own, consumes them, and judges what the handlers saw.
    """
    work_s = work_ms / 1000 if work_ms is not None else (CHAOS_WORK_S if chaos else 0.0)
    demo = DemoOptions(
        count=count, shards=shards, chaos=chaos, seed=seed, work_s=work_s, store=store
    )
    screen = JsonScreen(sys.stdout) if as_json else make_screen(plain=plain)
    return trio.run(run_demo, demo, screen)
