"""The NATS backend, held to the conformance suite on a real server, in real time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shove_actors.backends.nats import NatsConfig
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import connect

from .conformance import CHECKS, FAULT_CHECKS, World, check_id
from .disturbance import NatsDisturbance
from .proxy import open_proxies
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


@pytest.mark.parametrize("check", FAULT_CHECKS, ids=check_id)
async def test_conformance_on_a_bad_day(check: Check, own_server: ServerProcess) -> None:
    async with open_proxies("127.0.0.1", own_server.port) as proxies:
        disturbance = NatsDisturbance(own_server, proxies)

        async def delete_stream(name: str) -> None:
            async with connect(own_server.url) as js:
                await js.delete_stream(name)

        await check(
            World(
                create_backend=disturbance.create,
                queue="q",
                delete_stream=delete_stream,
                delete_durable=disturbance.delete_durable,
                disturbance=disturbance,
            )
        )
