"""Fixtures of the runtime's tests: `world` and `clock`, on both backends or on one.

A test on both takes `world` and `clock`; one that needs the memory backend takes `memory_world`
and `autojump_clock`; one that needs a real server takes `server_world`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio.testing

from shove_actors.embedded import ServerProcess

from .world import World

Clock = trio.testing.MockClock | None


@pytest.fixture(params=[pytest.param("memory"), pytest.param("server", marks=pytest.mark.server)])
def _kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock(_kind: str) -> Clock:
    """The mock clock of a test in memory; None for one on a server."""
    return trio.testing.MockClock(autojump_threshold=0) if _kind == "memory" else None


@pytest.fixture
def world(_kind: str, request: pytest.FixtureRequest, fresh_queue: Callable[[], str]) -> World:
    if _kind == "memory":
        return World(fresh_queue)
    server: ServerProcess = request.getfixturevalue("server")
    return World(fresh_queue, url=server.url)


@pytest.fixture
def memory_world(fresh_queue: Callable[[], str]) -> World:
    return World(fresh_queue)


@pytest.fixture
def server_world(server: ServerProcess, fresh_queue: Callable[[], str]) -> World:
    return World(fresh_queue, url=server.url)
