"""`shove-actors reshard`: another number of shards for a topic in use.

Exit codes: 0 it has that number now; 1 an error, such as a server that cannot be reached; 2 wrong
usage, or a stream that cannot be changed so; 4 it was not drained in time and keeps its old number;
130 interrupted, and it keeps its old number. Killed, it leaves the stream closed to publishers: run
it again, with the same number to go on, or with the old one to go back.
"""

from __future__ import annotations

from typing import Final

import click
import trio

from shove_actors import (
    NatsConfig,
    ReshardTimeout,
    SequenceFailure,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends import Resharded

from ._base import (
    NOT_NEGATIVE,
    POSITIVE,
    CommandFailed,
    Exit,
    connection_options,
    json_option,
    print_json,
    print_lines,
)
from ._run import until_signal

DEFAULT_TIMEOUT_S: Final = 60.0


@click.command(
    "reshard",
    epilog="Exit codes: 0 done; 1 an error; 2 wrong usage, or a stream that cannot be changed so; "
    "4 not drained in time, and 130 interrupted: then the old number stays.",
)
@connection_options()
@click.option("--queue", required=True, metavar="Q", help="The topic's queue.")
@click.option("--shards", required=True, type=POSITIVE, help="New number.")
@click.option(
    "--timeout",
    type=NOT_NEGATIVE,
    default=DEFAULT_TIMEOUT_S,
    help=f"Seconds for the consumers to drain it (default {DEFAULT_TIMEOUT_S:g}).",
)
@json_option
def command(config: NatsConfig, queue: str, shards: int, timeout: float, as_json: bool) -> None:
    """Change the number of shards of a topic in use.

    Closes the stream to publishers, lets the running consumers drain it, and opens it with the new
    number. Keys keep their order.
    """
    try:
        done = trio.run(_reshard, config, queue, shards, timeout)
    except ReshardTimeout as exc:
        raise CommandFailed(str(exc), Exit.NOT_DONE) from None
    if as_json:
        print_json(
            {"queue": queue, "was": done.was, "now": done.now, "durables_deleted": done.durables}
        )
        return
    said = f"{queue}: {done.was} shards -> {done.now}"
    if done.durables:
        said += f", {done.durables} durables without a shard deleted"
    print_lines(said)


async def _reshard(config: NatsConfig, queue: str, shards: int, timeout: float) -> Resharded:
    topology = (
        TopologyBuilder(queue)
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(shards)
        .allow_message_loss()  # only its main stream is looked at
        .build()
    )
    failure: ReshardTimeout | None = None
    done: Resharded | None = None
    async with until_signal():
        async with open_broker(config) as broker:
            try:
                done = await broker.backend.reshard(topology, timeout)
            except ReshardTimeout as exc:
                failure = exc  # outside, so that it comes out bare
    if failure is not None:
        raise failure
    assert done is not None
    return done
