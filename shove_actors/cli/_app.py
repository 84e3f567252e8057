"""Arguments, exit codes, and errors in one line.

Exit codes: 0 all is well; 1 the verdict is bad, or an error; 2 wrong usage; 3 handlers still ran
when the drain timed out; 130 interrupted; 141 nobody reads the output any more (`| head`), as of a
program that SIGPIPE ends.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from importlib import metadata
from pathlib import Path

import trio

from shove_actors import ShoveError, UsageError

from . import _reshard, _simulate
from ._run import DemoOptions, Interrupted, run_demo
from ._screen import OutputClosed, drop_output, make_screen, write_lines
from ._tree import TreeOptions, run_tree
from ._worker import WorkerOptions, run_worker

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

WORKER_COMMAND = "_demo-worker"
#: Seconds a handler works under chaos: without it a kill would rarely meet a handler at work.
CHAOS_WORK_S = 0.001


class Exit(IntEnum):
    """What the command exits with."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DRAIN_TIMEOUT = 3
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the process's own) and returns its exit code.

    Errors of the library and of the system are one line on standard error; anything else is a bug
    and raises.
    Wrong usage raises `SystemExit(2)`, as argparse does.
    """
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output(sys.stdout)


def _run(arguments: list[str]) -> int:
    try:
        if arguments[:1] == [WORKER_COMMAND]:
            return _worker(arguments[1:])
        options = _options(arguments)
        if options.command == _simulate.COMMAND:
            write_lines(sys.stdout, _simulate.run(options))
            return Exit.OK
        if options.command == _reshard.COMMAND:
            return _reshard.run(options)
        if options.command == "tree":
            tree = TreeOptions(shards=options.shards, memory=options.memory, rules=options.rules)
            return trio.run(run_tree, tree, sys.stdout)
        return _demo(options)
    except KeyboardInterrupt:
        return _say("interrupted", Exit.INTERRUPTED)
    except (ShoveError, OSError, BaseExceptionGroup) as error:
        return _explain(error)


def _options(arguments: list[str]) -> argparse.Namespace:
    try:
        return _parser().parse_args(arguments)
    except BrokenPipeError:
        # `--help | head`; newer versions of argparse pass over it themselves.
        raise OutputClosed("nobody reads the output any more") from None


def _demo(options: argparse.Namespace) -> int:
    work_s = options.work_ms / 1000 if options.work_ms is not None else None
    if work_s is None:
        work_s = CHAOS_WORK_S if options.chaos else 0.0
    demo = DemoOptions(
        count=options.count,
        shards=options.shards,
        chaos=options.chaos,
        seed=options.seed,
        work_s=work_s,
        store=options.store,
    )
    return trio.run(run_demo, demo, make_screen(plain=options.plain))


def _worker(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"shove-actors {WORKER_COMMAND}")
    parser.add_argument("--url", required=True)
    parser.add_argument("--journals", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--shards", type=_positive, required=True)
    parser.add_argument("--work-ms", type=_not_negative, required=True)
    parser.add_argument("--ack-wait", type=_not_negative, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return trio.run(
        run_worker,
        WorkerOptions(
            url=options.url,
            journals=options.journals,
            name=options.name,
            shards=options.shards,
            work_s=options.work_ms / 1000,
            ack_wait_s=options.ack_wait,
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shove-actors",
        description="Reliable messaging on NATS JetStream as supervised Trio actors.",
        epilog="Exit codes: 0 all is well; 1 a bad verdict or an error; 2 wrong usage; 3 handlers "
        "still ran when the drain timed out; 130 interrupted; 141 nobody reads the output.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="27,004 real flights through a sequenced topic, and a verdict",
        description="Publishes the flights that left New York in January 2013, in order per "
        "aircraft, to a nats-server of its own, consumes them, and judges what the handlers saw.",
    )
    demo.add_argument(
        "--chaos",
        action="store_true",
        help="kill the server three times and a consumer process twice on the way",
    )
    demo.add_argument("--seed", type=int, default=1, help="chooses the kills (default 1)")
    demo.add_argument("--count", type=_positive, metavar="N", help="only the first N flights")
    demo.add_argument("--shards", type=_positive, default=8, metavar="N", help="default 8")
    demo.add_argument(
        "--work-ms",
        type=_not_negative,
        metavar="MS",
        help="how long a handler works (default 0; 1 with --chaos)",
    )
    demo.add_argument("--store", type=Path, metavar="DIR", help="keep the store and journals here")
    demo.add_argument("--plain", action="store_true", help="lines instead of a live view")
    tree = commands.add_parser(
        "tree",
        help="the supervision tree of the demo while it runs",
        description="Starts the demo's consumers on a nats-server of their own (in memory if there "
        "is none), lets flights flow, and draws the tree at that moment: states, restarts, last "
        "exits, waiting messages.",
    )
    tree.add_argument("--shards", type=_positive, default=8, metavar="N", help="default 8")
    tree.add_argument("--memory", action="store_true", help="without a server")
    tree.add_argument("--rules", action="store_true", help="how each is treated, not how it is")
    _simulate.add_parser(commands.add_parser, _positive)
    _reshard.add_parser(commands.add_parser, _positive, _not_negative)
    return parser


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _version() -> str:
    try:
        return metadata.version("shove-actors")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _explain(error: BaseException) -> int:
    """One line for what was raised on purpose; everything else goes on as it is."""
    leaves = list(_leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt | Interrupted) for leaf in leaves):
        return _say("interrupted", Exit.INTERRUPTED)
    if any(isinstance(leaf, OutputClosed) for leaf in leaves):
        return Exit.OUTPUT_CLOSED
    foreign = [leaf for leaf in leaves if not isinstance(leaf, ShoveError | OSError)]
    if foreign or not leaves:
        raise error
    usage = isinstance(leaves[0], UsageError)
    return _say(str(leaves[0]).replace("\n", " "), Exit.USAGE if usage else Exit.FAILED)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _say(text: str, code: Exit) -> int:
    print(f"shove-actors: {text}", file=sys.stderr)
    return code
