"""A consumer process of `demo --chaos`, as its parent starts it. Hidden from the help."""

from __future__ import annotations

import logging
from pathlib import Path

import click
import trio

from ._base import NOT_NEGATIVE, POSITIVE
from ._worker import WorkerOptions, run_worker


@click.command("_demo-worker", hidden=True)
@click.option("--url", required=True)
@click.option("--journals", type=click.Path(path_type=Path), required=True)
@click.option("--name", required=True)
@click.option("--shards", type=POSITIVE, required=True)
@click.option("--work-ms", type=NOT_NEGATIVE, required=True)
@click.option("--ack-wait", type=NOT_NEGATIVE, required=True)
def command(
    url: str, journals: Path, name: str, shards: int, work_ms: float, ack_wait: float
) -> int:
    """Consumes all shards until its standard input ends."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    options = WorkerOptions(
        url=url,
        journals=journals,
        name=name,
        shards=shards,
        work_s=work_ms / 1000,
        ack_wait_s=ack_wait,
    )
    return trio.run(run_worker, options)
