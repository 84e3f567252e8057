"""The NATS backend, held to the conformance suite on a real server, in real time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shove_actors.backends.nats import NatsConfig
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import connect

from .conformance import CHECKS, World, check_id
from .world import Check


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
async def test_conformance(
    check: Check, server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    async with connect(server.url) as js:
        await check(
            World(
                create_backend=NatsConfig(server.url).create_backend,
                queue=fresh_queue(),
                delete_stream=js.delete_stream,
                delete_durable=js.delete_consumer,
            )
        )
