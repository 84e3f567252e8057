"""`shove-actors run module:app`."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

import click
import trio

from shove_actors import MemoryConfig, NatsConfig, ShoveError

from ._apps import offers, understand
from ._base import NOT_NEGATIVE, Exit, connection_options
from ._live import need_rich, need_terminal, observed
from ._load import ModuleBroken, load
from ._places import own_traceback
from ._process import SUBJECT
from ._running import Running, run_app

_INTERVAL_S = 0.5
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command(
    "run",
    epilog="Exit codes: 0 ended by itself or by a signal, and all was in order; 1 a connection, a "
    "consumer or an actor failed for good, or the application raised (then with its traceback); 2 "
    "wrong usage, or a consumer ended because of an unexpected exception; 3 handlers still ran at "
    "the drain timeout, or a second signal cut them short; any other number is the application's.",
)
@click.argument("target", metavar="MODULE:APP")
@connection_options()
@click.option("--memory", is_flag=True, help="Without a server: everything is gone at the end.")
@click.option(
    "--drain-timeout",
    type=NOT_NEGATIVE,
    default=30.0,
    help="Seconds that running handlers have after the first signal (default 30).",
)
@click.option(
    "--app-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder that holds the module (default: this one).",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Of what is written to standard error (default info).",
)
@click.option("--top", is_flag=True, help="Show it at work, live, in this terminal.")
@click.option(
    "--answer",
    is_flag=True,
    help=f"Tell `top` of other terminals, which ask over NATS (subject {SUBJECT}).",
)
def command(
    config: NatsConfig,
    target: str,
    memory: bool,
    drain_timeout: float,
    app_dir: Path | None,
    log_level: str,
    top: bool,
    answer: bool,
) -> int:
    """Run an application, with signals, drain and exit code in order.

    APP is a function that gets what its parameters name: `broker`, `nursery`, `stop` (an event that
    the first signal sets). It may return consumer groups, which are served until a signal and then
    drained, or `ChildSpec`s, which are run as an actor system; or it does its work itself and
    returns an exit code. APP may be a `ChildSpec`, too. See docs/cli.md.
    """
    if top:
        need_rich()
        need_terminal("leave out --top, or use --answer and `top` in another one")
    try:
        found = load(target, app_dir, offers=offers, what="functions or ChildSpecs")
    except ModuleBroken as exc:
        if isinstance(exc.error, ShoveError):
            raise  # it is told in a line
        print(own_traceback(exc.error), end="", file=sys.stderr)
        return Exit.FAILED
    app = understand(target, found)
    if (top or answer) and not app.wants_broker:
        raise click.UsageError(f"--top and --answer show a broker, and {target} takes none")
    logging.basicConfig(format=_FORMAT, level=log_level.upper(), stream=sys.stderr)
    running = Running(app=app, drain_timeout=drain_timeout)
    around = partial(observed, top=top, answer=answer, interval=_INTERVAL_S)
    code = trio.run(
        partial(
            run_app,
            running,
            MemoryConfig() if memory else config,
            around=around if top or answer else None,
        )
    )
    for reason in running.reasons:
        print(f"shove-actors: {reason}", file=sys.stderr)
    return code
