"""Everything here runs on an old nats-server: `SHOVE_OLD_NATS_SERVER` names its executable.

`nox -s old_server` finds one. Without one the tests are skipped, and say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from shove_actors.embedded import ServerProcess

VARIABLE = "SHOVE_OLD_NATS_SERVER"


@pytest.fixture(scope="session")
def old_binary() -> str:
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} names no old nats-server; `nox -s old_server` fetches one")
    return path


@pytest.fixture(scope="session")
def server(old_binary: str) -> Iterator[ServerProcess]:
    """In place of the shared one."""
    with ServerProcess(binary=old_binary) as process:
        yield process


@pytest.fixture
def own_server(old_binary: str) -> Iterator[ServerProcess]:
    with ServerProcess(binary=old_binary) as process:
        yield process
