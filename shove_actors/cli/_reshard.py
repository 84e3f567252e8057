"""`shove-actors reshard`: another number of shards for a topic in use.

Exit codes: 0 it has that number now; 1 an error, such as a server that cannot be reached; 2 wrong
usage, or a stream that cannot be changed so; 4 it was not drained in time and keeps its old number;
130 interrupted, and it keeps its old number. Killed, it leaves the stream closed to publishers: run
it again, with the same number to go on, or with the old one to go back.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

import trio

from shove_actors import (
    NatsConfig,
    ReshardTimeout,
    SequenceFailure,
    TopologyBuilder,
    open_broker,
)

from ._run import until_signal

COMMAND: Final = "reshard"
NOT_DRAINED: Final = 4
DEFAULT_TIMEOUT_S: Final = 60.0


def add_parser(
    add: Callable[..., argparse.ArgumentParser],
    positive: Callable[[str], int],
    seconds: Callable[[str], float],
) -> None:
    parser = add(
        COMMAND,
        help="change the number of shards of a topic in use",
        description="Closes the stream to publishers, lets the running consumers drain it, and "
        "opens it with the new number. Keys keep their order.",
        epilog="Exit codes: 0 done; 1 an error; 2 wrong usage, or a stream that cannot be changed "
        "so; 4 not drained in time, and 130 interrupted: then the old number stays.",
    )
    parser.add_argument("--url", required=True, help="of the NATS server")
    parser.add_argument("--queue", required=True, metavar="Q", help="the topic's queue")
    parser.add_argument("--shards", required=True, type=positive, metavar="N", help="new number")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help=f"seconds for the consumers to drain it (default {DEFAULT_TIMEOUT_S:g})",
    )


def run(options: argparse.Namespace) -> int:
    """Returns the exit code; raises what the library raises otherwise, and `Interrupted`."""
    try:
        print(trio.run(_reshard, options))
    except ReshardTimeout as exc:
        print(f"shove-actors: {exc}", file=sys.stderr)
        return NOT_DRAINED
    return 0


async def _reshard(options: argparse.Namespace) -> str:
    topology = (
        TopologyBuilder(options.queue)
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(options.shards)
        .allow_message_loss()  # only its main stream is looked at
        .build()
    )
    failure: ReshardTimeout | None = None
    said = ""
    async with until_signal():
        async with open_broker(NatsConfig(options.url, name="reshard")) as broker:
            try:
                done = await broker.backend.reshard(topology, options.timeout)
            except ReshardTimeout as exc:
                failure = exc  # outside, so that it comes out bare
            else:
                said = f"{options.queue}: {done.was} shards -> {done.now}"
                if done.durables:
                    said += f", {done.durables} durables without a shard deleted"
    if failure is not None:
        raise failure
    return said
