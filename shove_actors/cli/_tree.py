"""`shove-actors tree`: the supervision tree of the demonstration, drawn while messages flow."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TextIO

import click
import trio

from shove_actors import (
    ConsumerGroup,
    EmbeddedServerError,
    MemoryConfig,
    NatsConfig,
    Outcome,
    Publisher,
    SequencedTopic,
    SupervisorOutcome,
    embedded_server,
    open_broker,
)
from shove_actors.embedded import find_binary
from shove_actors.embedded._binary import ENVIRONMENT_VARIABLE
from shove_actors.runtime._tree import rules

from ._base import POSITIVE, json_option
from ._flights import Flight, flights_topic, read_flights
from ._handling import NEVER_DEPARTED
from ._output import ascii_only, write_lines
from ._publishing import BATCH
from ._render import rule_lines, rule_state, tree_lines, tree_state
from ._run import DemoFailed, until_signal

#: The picture is taken after so many, so that it shows a tree at work; there are more to come.
HANDLED: Final = 200
FLIGHTS: Final = 5_000
#: A handler works this long: nobody would see a lane at work otherwise.
_WORK_S: Final = 0.001
#: Publishing goes no further ahead of the handlers, so that it is still going on by then.
_AHEAD: Final = 512
_PATIENCE_S: Final = 60.0
_DRAIN_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class TreeOptions:
    """`memory`: also if there is a server. `rules`: how each is treated, not how it is."""

    shards: int = 8
    memory: bool = False
    rules: bool = False
    as_json: bool = False


async def run_tree(options: TreeOptions, out: TextIO) -> int:
    """Prints where it runs, how far it has got, and the tree.

    Returns the exit code of the consumers' outcome: 0, or 3 if the drain timed out. Raises
    `UsageError` when `shards` is out of range, `DemoFailed` when the flights are not handled,
    `Interrupted`, `OutputClosed`, and what the library raises. The server has ended by then.
    """
    topic = flights_topic(options.shards)
    work = _Work(topic)
    async with until_signal(), _backend(options) as (config, where), open_broker(config) as broker:
        await broker.declare(topic)
        group = broker.consumer_group()
        group.register(topic, work.handle)
        group.register_dlq(topic, work.handle_dead)
        async with trio.open_nursery() as nursery:
            await nursery.start(work.serve, group)
            if options.rules:
                found: dict[str, Any] = {"where": where, "tree": rule_state(rules(broker))}
                lines = rule_lines(rules(broker), ascii_only=ascii_only(out))
            else:
                nursery.start_soon(work.publish, broker.publisher())
                await work.until_handled(HANDLED)
                picture = broker.snapshot()
                found = {
                    "where": where,
                    "published": work.published,
                    "handled": work.handled,
                    "tree": tree_state(picture),
                }
                lines = [
                    f"{where}: {work.published:,} flights published, {work.handled:,} handled",
                    *tree_lines(picture, ascii_only=ascii_only(out)),
                ]
            group.stop()
            await work.ended.wait()
            nursery.cancel_scope.cancel()
    write_lines(out, [json.dumps(found, indent=2)] if options.as_json else lines)
    return work.outcome.exit_code


class _Work:
    """What flows while the picture is taken."""

    def __init__(self, topic: SequencedTopic[Flight]) -> None:
        self.published = 0
        self.handled = 0
        self.outcome = SupervisorOutcome()
        self.ended = trio.Event()
        self._topic = topic
        self._wanted = 0
        self._enough = trio.Event()
        self._moved = trio.Event()

    async def handle(self, flight: Flight) -> Outcome:
        await trio.sleep(_WORK_S)
        self.handled += 1
        self._moved.set()
        if self.handled == self._wanted:
            self._enough.set()
        return Outcome.ACK if flight.departed else NEVER_DEPARTED

    async def handle_dead(self, flight: Flight) -> Outcome:
        return Outcome.ACK

    async def publish(self, publisher: Publisher) -> None:
        flights = read_flights(FLIGHTS)
        for first in range(0, len(flights), BATCH):
            batch = flights[first : first + BATCH]
            while self.published - self.handled > _AHEAD - BATCH:
                self._moved = trio.Event()
                await self._moved.wait()
            await publisher.publish_batch(self._topic, batch)
            self.published += len(batch)

    async def serve(
        self,
        group: ConsumerGroup,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        self.outcome = await group.serve(drain_timeout=_DRAIN_S, task_status=task_status)
        self.ended.set()
        self._enough.set()

    async def until_handled(self, count: int) -> None:
        """Returns at the moment that so many are handled."""
        self._wanted = count
        with trio.move_on_after(_PATIENCE_S):
            await self._enough.wait()
        if self.handled < count:
            reasons = "; ".join(self.outcome.reasons) or f"no more for {_PATIENCE_S:g} s"
            raise DemoFailed(f"only {self.handled} flights were handled: {reasons}")


@asynccontextmanager
async def _backend(options: TreeOptions) -> AsyncIterator[tuple[NatsConfig | MemoryConfig, str]]:
    """Where the tree is to stand, and what to call it: a server of its own if there is one."""
    why = "as asked"
    if not (options.memory or options.rules):
        try:
            find_binary()
        except EmbeddedServerError as error:
            if os.environ.get(ENVIRONMENT_VARIABLE):
                # Named outright and wrong: to pass it over in silence would hide the mistake.
                raise
            why = f"because {error}"
        else:
            async with embedded_server() as server:
                yield NatsConfig(server.url, name="tree"), f"on a nats-server at {server.url}"
            return
    yield MemoryConfig(), f"in memory, {why}"


@click.command(
    "tree",
    epilog="Exit codes: 0 drawn; 1 an error; 2 wrong usage; 3 the drain timed out; "
    "130 interrupted.",
)
@click.option("--shards", type=POSITIVE, default=8, help="Default 8.")
@click.option("--memory", is_flag=True, help="Without a server.")
@click.option("--rules", is_flag=True, help="How each is treated, not how it is.")
@json_option
def command(shards: int, memory: bool, rules: bool, as_json: bool) -> int:
    """The supervision tree of the demo while it runs.

    Starts the demo's consumers on a nats-server of their own (in memory if there is none), lets
    flights flow, and draws the tree at that moment: states, restarts, last exits, waiting messages.
    The tree of an application of yours is shown by `run --top` and by `top`.
    """
    options = TreeOptions(shards=shards, memory=memory, rules=rules, as_json=as_json)
    return trio.run(run_tree, options, sys.stdout)
