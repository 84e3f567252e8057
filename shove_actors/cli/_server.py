"""`shove-actors server`: a nats-server of its own, until a signal."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import click
import trio

from shove_actors import embedded_server

from ._base import json_option, print_lines

_SYNC = "jetstream { sync_interval: always }\n"


@click.command(
    "server",
    epilog="Exit codes: 0 ended by SIGINT or SIGTERM; 1 it cannot be started, or ended by itself "
    "too often; 2 wrong usage.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=4222,
    metavar="N",
    help="Default 4222; 0 is a free one.",
)
@click.option("--host", default="127.0.0.1", help="Default 127.0.0.1: this machine only.")
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep JetStream's files in this folder; without it they go when the server does.",
)
@click.option(
    "--monitor",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Port of the monitoring endpoint, for `doctor --monitor` (default: none).",
)
@click.option(
    "--sync-always",
    is_flag=True,
    help="Acknowledge nothing before it is on the disk (slow; default: every two minutes).",
)
@json_option
def command(
    port: int,
    host: str,
    store: Path | None,
    monitor: int | None,
    sync_always: bool,
    as_json: bool,
) -> None:
    """A nats-server with JetStream, for development.

    The first line printed is its URL. It is restarted if it ends by itself, and ends with this
    command, however that ends. Not for production: run nats-server under your service manager.
    """
    trio.run(_serve, port, host, store, monitor, sync_always, as_json)


async def _serve(
    port: int,
    host: str,
    store: Path | None,
    monitor: int | None,
    sync_always: bool,
    as_json: bool,
) -> None:
    extra = [] if monitor is None else ["-m", str(monitor)]
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with embedded_server(
            port=port,
            host=host,
            store_dir=store,
            extra_args=extra,
            config=_SYNC if sync_always else None,
        ) as server:
            page = None if monitor is None else f"http://{host}:{monitor}"
            kept = store is not None
            if as_json:
                facts = {
                    "url": server.url,
                    "pid": server.pid,
                    "store": str(server.store_dir),
                    "kept": kept,
                    "monitor": page,
                }
                print_lines(json.dumps(facts))  # one line: whoever reads it waits for its end
            else:
                what = "kept" if kept else "gone when the server is"
                print_lines(
                    server.url,
                    f"JetStream in {server.store_dir}, {what}",
                    *([] if page is None else [f"monitoring at {page}"]),
                    "Ctrl-C ends it.",
                )
            await anext(signals)
