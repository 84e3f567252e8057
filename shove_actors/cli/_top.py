"""`shove-actors top`: what the server and running processes are doing."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any, Final

import click
import trio

from shove_actors import NatsConfig, ShoveError, jetstream

from ._base import connection_options, json_option, print_json, print_lines
from ._live import need_rich, need_terminal, show
from ._output import ascii_only, write_lines
from ._top_state import Looker

#: A terminal that is closed, too: `reset` is not what its next user should have to type.
_ENDING: Final = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


@click.command(
    "top",
    epilog="Exit codes: 0 ended by SIGINT, SIGTERM or SIGHUP, or --once is done; 1 an error; 2 "
    "wrong usage, or no terminal.",
)
@connection_options()
@click.option("--queue", multiple=True, metavar="Q", help="Only this topic; may be repeated.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    metavar="S",
    help="Seconds between two looks (default 1).",
)
@click.option("--once", is_flag=True, help="One snapshot, with the rates of one interval.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="With --once: the picture."
)
@json_option
def command(
    config: NatsConfig,
    queue: tuple[str, ...],
    interval: float,
    once: bool,
    svg: Path | None,
    as_json: bool,
) -> None:
    """What the server and running processes are doing, live.

    Per topic what the server counts: stored and settled per second, pending, in flight, held by
    delay, dead. Per process that was started with `run --answer`: its actor tree with states,
    restarts and mailboxes, latencies of its handlers, scaling decisions, its connection. Without
    --once, --json prints one snapshot per line and interval; `trouble` says what prevented one.
    """
    if not as_json or svg is not None:
        need_rich()
    if svg is not None and not once:
        raise click.UsageError("--svg goes with --once")
    if not (once or as_json):
        need_terminal("use --once, or --json")
    trio.run(_top, config, queue, interval, once, svg, as_json)


async def _top(
    config: NatsConfig,
    queues: tuple[str, ...],
    interval: float,
    once: bool,
    svg: Path | None,
    as_json: bool,
) -> None:
    async with jetstream.connect(config) as js, trio.open_nursery() as nursery:

        async def end(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            with trio.open_signal_receiver(*_ENDING) as signals:
                task_status.started()
                await anext(signals)
            nursery.cancel_scope.cancel()

        await nursery.start(end)
        looker = Looker(js, queues)
        if once:
            await looker.look()
            await trio.sleep(interval)
            _print(await looker.look(), svg, as_json)
        elif as_json:
            while True:
                # Outside of what is looked at: that nobody reads any more ends it.
                print_lines(json.dumps(await _line(looker)))
                await trio.sleep(interval)
        else:
            await show(looker.look, interval)
        nursery.cancel_scope.cancel()


async def _line(looker: Looker) -> dict[str, Any]:
    """A snapshot, or what prevents it: a server that is away for a moment ends nothing."""
    try:
        return {**await looker.look(), "trouble": None}
    except ShoveError as exc:
        # Without the topics of an earlier look: a program would take them for those of now.
        return {"server": None, "topics": [], "processes": [], "trouble": str(exc)}


def _print(snapshot: dict[str, Any], svg: Path | None, as_json: bool) -> None:
    if svg is not None:
        from ._top_view import as_svg

        svg.write_text(as_svg(snapshot, title="shove-actors top"), encoding="utf-8")
    if as_json:
        print_json(snapshot)
    else:
        from ._top_view import as_text

        write_lines(sys.stdout, [as_text(snapshot, ascii_only=ascii_only(sys.stdout))])
