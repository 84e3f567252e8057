"""The memory backend, held to the conformance suite in virtual time."""

from __future__ import annotations

import pytest
import trio.testing

from shove_actors.backends.memory import MemoryConfig, MemoryServer

from .conformance import CHECKS, World, check_id
from .world import Check


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
async def test_conformance(check: Check, autojump_clock: trio.testing.MockClock) -> None:
    server = MemoryServer()

    async def delete_stream(name: str) -> None:
        server.delete_stream(name)

    async def delete_durable(stream: str, durable: str) -> None:
        server.delete_durable(stream, durable)

    await check(
        World(
            create_backend=MemoryConfig(server=server).create_backend,
            queue="q",
            delete_stream=delete_stream,
            delete_durable=delete_durable,
        )
    )
