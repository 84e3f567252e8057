"""The memory backend, held to the conformance suite in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio.testing

from shove_actors.backends.memory import MemoryServer

from .conformance import CHECKS, FAULT_CHECKS, World, check_id, exercise_backend
from .disturbance import MemoryDisturbance
from .world import Check


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    server = MemoryServer()
    disturbance = MemoryDisturbance(server)

    async def delete_stream(name: str) -> None:
        server.delete_stream(name)

    yield World(
        create_backend=disturbance.create,
        queue="q",
        delete_stream=delete_stream,
        delete_durable=disturbance.delete_durable,
        disturbance=disturbance,
    )


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
async def test_conformance(check: Check, autojump_clock: trio.testing.MockClock) -> None:
    async with world() as fresh:
        await check(fresh)


@pytest.mark.parametrize("check", FAULT_CHECKS, ids=check_id)
async def test_conformance_on_a_bad_day(
    check: Check, autojump_clock: trio.testing.MockClock
) -> None:
    async with world() as fresh:
        await check(fresh)


async def test_the_whole_suite_in_one_go(autojump_clock: trio.testing.MockClock) -> None:
    assert len(await exercise_backend(world)) == len(CHECKS) + len(FAULT_CHECKS)
