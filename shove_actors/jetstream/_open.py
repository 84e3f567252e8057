"""`jetstream.connect`: the client on its own, for code that wants no broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from shove_actors._groups import unwrapped

from ._config import NatsConfig
from ._connection import Connection
from ._context import JetStream


@asynccontextmanager
async def connect(
    config: NatsConfig | str, *, domain: str | None = None, api_prefix: str | None = None
) -> AsyncIterator[JetStream]:
    """Connect, hand out the JetStream API, and leave nothing behind.

        async with jetstream.connect("nats://localhost:4222") as js:
            print(await js.account_info())

    Raises `ConfigError`, or `ConnectionError` when the connection cannot be had. When it is given
    up for good later, the block is cancelled and `ConnectionError` leaves it. An exception of the
    block leaves it as it is; if both happen, a group with both. Leaving the block flushes for at
    most two seconds; no task, socket or asyncio loop is left.
    """
    settings = NatsConfig(config) if isinstance(config, str) else config
    connection = Connection(settings)
    js = JetStream(connection, domain=domain, api_prefix=api_prefix)
    with unwrapped(layers=1):
        async with trio.open_nursery() as nursery:
            await nursery.start(connection.run)
            try:
                yield js
            finally:
                connection.close()
                with trio.CancelScope(shield=True):
                    await connection.wait_ended()
