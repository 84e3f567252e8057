"""`shove-actors stress`: throughput and latency, by handler, consumers and prefetch.

Handlers and tiers are the source system's (`examples/common/stress_test.rs` of shove), so that
tables of both can be laid side by side; the tier `quick` is ours, and is the default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, get_args

import click
import trio

from shove_actors import MemoryConfig, NatsConfig, embedded_server, jetstream

from ._base import NOT_NEGATIVE, POSITIVE, connection_options, json_option, print_json, print_lines
from ._percentiles import duration
from ._run import until_signal
from ._stress_cell import Cell, Handler, Measured, measure

HANDLERS: Final[tuple[Handler, ...]] = get_args(Handler)


@dataclass(frozen=True, kw_only=True)
class Tier:
    """`messages`: by handler."""

    consumers: tuple[int, ...]
    messages: dict[Handler, int]


def _tier(consumers: tuple[int, ...], *messages: int) -> Tier:
    return Tier(consumers=consumers, messages=dict(zip(HANDLERS, messages, strict=True)))


TIERS: Final = {
    "quick": _tier((1, 4, 16), 5_000, 2_000, 400, 40),
    "moderate": _tier((1, 4, 8, 16, 32), 50_000, 20_000, 5_000, 1_000),
    "high": _tier((8, 16, 32, 64), 500_000, 100_000, 5_000, 100),
    "extreme": _tier((32, 64, 128, 256), 1_000_000, 500_000, 5_000, 500),
}


@click.command(
    "stress",
    epilog="Exit codes: 0 measured; 1 an error; 2 wrong usage; 130 interrupted.",
)
@connection_options(otherwise="one of its own")
@click.option("--memory", is_flag=True, help="In memory, without a server.")
@click.option("--tier", type=click.Choice(list(TIERS)), default="quick", help="Default quick.")
@click.option(
    "--handler",
    type=click.Choice(HANDLERS),
    multiple=True,
    help="Only this one; may be repeated. zero: none; fast 1-5 ms; slow 50-300 ms; heavy 1-5 s.",
)
@click.option("--consumers", type=POSITIVE, multiple=True, help="Instead of the tier's; repeat it.")
@click.option("--prefetch", type=POSITIVE, multiple=True, help="Default 20; may be repeated.")
@click.option("--messages", type=POSITIVE, help="Instead of the tier's.")
@click.option("--seconds", type=NOT_NEGATIVE, default=10.0, help="Most for one cell (default 10).")
@click.option("--rate", type=POSITIVE, help="Publish N a second, not as fast as possible.")
@click.option("--serial", is_flag=True, help="One handler per consumer at a time.")
@click.option("--seed", type=int, default=1, help="Of how long handlers take (default 1).")
@json_option
def command(
    config: NatsConfig,
    memory: bool,
    tier: str,
    handler: tuple[Handler, ...],
    consumers: tuple[int, ...],
    prefetch: tuple[int, ...],
    messages: int | None,
    seconds: float,
    rate: int | None,
    serial: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Throughput and latency, by handler, consumers and prefetch.

    On a nats-server of its own in a temporary folder, or on that of --url (or $NATS_URL). Each cell
    ends when its messages are handled or its seconds are over. `dispatch` is from the publish until
    the handler begins, `end to end` until it has ended.
    """
    chosen = TIERS[tier]
    cells = [
        Cell(
            handler=each,
            consumers=number,
            prefetch=credit,
            messages=messages if messages is not None else chosen.messages[each],
            seconds=seconds,
            rate=None if rate is None else float(rate),
            concurrent=not serial,
            seed=seed,
        )
        for each, number, credit in product(
            handler or HANDLERS, consumers or chosen.consumers, prefetch or (20,)
        )
    ]
    given = click.get_current_context().get_parameter_source("url")
    own = given is click.core.ParameterSource.DEFAULT
    trio.run(_run, cells, config, memory, own, as_json)


async def _run(
    cells: list[Cell], config: NatsConfig, memory: bool, own: bool, as_json: bool
) -> None:
    found: list[Measured] = []
    async with until_signal(), _backend(config, memory, own) as (where, what, pid):
        if not as_json:
            print_lines(f"{what}; Python {sys.version.split()[0]}, {os.cpu_count()} cores", *_HEAD)
        for number, cell in enumerate(cells):
            queue = f"shove-stress-{os.getpid()}-{number}"
            # A model of its own for each: what one leaves behind is not the next one's.
            measured = await measure(
                cell, MemoryConfig() if where is None else where, queue, server_pid=pid
            )
            found.append(measured)
            if not as_json:
                print_lines(_row(measured))
    if as_json:
        print_json({"backend": what, "cells": [each.as_dict() for each in found]})
    elif not all(each.complete for each in found):
        print_lines("* not all were handled within --seconds; the numbers are of those that were")


@asynccontextmanager
async def _backend(
    config: NatsConfig, memory: bool, own: bool
) -> AsyncIterator[tuple[NatsConfig | None, str, int | None]]:
    """Where it runs (None: in memory), what to call it, and the server's pid if it is ours."""
    if memory:
        yield None, "in memory", None
    elif own:
        async with embedded_server() as server:
            where = NatsConfig(server.url, name="shove-actors stress")
            yield where, f"nats-server {await _version(where)} of its own", server.pid
    else:
        async with jetstream.connect(config) as js:
            what = f"nats-server {js.connection.server_version} at {js.connection.server}"
        yield config, what, None


async def _version(config: NatsConfig) -> str:
    async with jetstream.connect(config) as js:
        return js.connection.server_version


_COLUMNS: Final = (
    ("handler", 7),
    ("consumers", 9),
    ("prefetch", 8),
    ("handled", 9),
    ("seconds", 8),
    ("per s", 9),
    ("dispatch p50", 12),
    ("p95", 8),
    ("p99", 8),
    ("end to end p50", 14),
    ("p95", 8),
    ("p99", 8),
    ("cpu %", 6),
    ("MiB", 5),
    ("server %", 8),
    ("MiB", 5),
)
_HEAD: Final = [
    "",
    " ".join(name.rjust(width) for name, width in _COLUMNS),
]


def _row(found: Measured) -> str:
    cell = found.cell

    def times(of: dict[str, float]) -> list[str]:
        return [duration(of[share]) if share in of else "-" for share in ("p50", "p95", "p99")]

    def mebi(size: int | None) -> str:
        return "-" if size is None else f"{size / 2**20:,.0f}"

    values: list[Any] = [
        cell.handler,
        cell.consumers,
        cell.prefetch,
        f"{found.handled:,}{'' if found.complete else '*'}",
        f"{found.seconds:.2f}",
        f"{found.per_second:,.0f}",
        *times(found.dispatch),
        *times(found.end_to_end),
        f"{found.cpu_percent:.0f}",
        mebi(found.memory_bytes),
        "-" if found.server_cpu_percent is None else f"{found.server_cpu_percent:.0f}",
        mebi(found.server_memory_bytes),
    ]
    cells = zip(values, _COLUMNS, strict=True)
    return " ".join(str(value).rjust(width) for value, (_, width) in cells)
