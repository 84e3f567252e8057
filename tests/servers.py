"""Fixtures with a real `nats-server`, and the guard that keeps mock clocks away from them.

`server` is shared by the whole test run, so tests on it need names of their own (`fresh_queue`) and
must not stop it; `own_server` may be killed, paused and restarted. A test that uses any of them is
marked `server`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shove_actors.embedded import ServerProcess

from . import secured
from .secured import SecuredServer

SERVER_FIXTURES = frozenset(
    {
        "server",
        "own_server",
        "password_server",
        "token_server",
        "nkey_server",
        "creds_server",
        "tls_server",
        "mutual_tls_server",
    }
)
CLOCK_FIXTURES = frozenset({"mock_clock", "autojump_clock"})


@dataclass(frozen=True)
class ForeignServer:
    """A server that somebody else runs (`nox -s docker`); only its address is known."""

    url: str


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess | ForeignServer]:
    """The shared server, with JetStream on files. Do not stop it.

    `SHOVE_TEST_NATS_URL` names one that runs already; tests that need a server of their own to
    kill or to configure start it all the same.
    """
    foreign = os.environ.get("SHOVE_TEST_NATS_URL")
    if foreign:
        yield ForeignServer(foreign)
        return
    with ServerProcess() as process:
        yield process


@pytest.fixture
def own_server() -> Iterator[ServerProcess]:
    """A server of this test alone."""
    with ServerProcess() as process:
        yield process


@pytest.fixture
def fresh_queue(request: pytest.FixtureRequest) -> Callable[[], str]:
    """A function that returns a queue name nobody has used; call it as often as needed."""
    numbers = itertools.count(1)
    stem = "".join(c if c.isalnum() else "-" for c in request.node.name)[:40].strip("-")
    unique = os.urandom(4).hex()
    return lambda: f"q-{stem}-{unique}-{next(numbers)}"


@pytest.fixture
def password_server() -> Iterator[SecuredServer]:
    with secured.password_server() as secured_server:
        yield secured_server


@pytest.fixture
def token_server() -> Iterator[SecuredServer]:
    with secured.token_server() as secured_server:
        yield secured_server


@pytest.fixture
def nkey_server() -> Iterator[SecuredServer]:
    with secured.nkey_server() as secured_server:
        yield secured_server


@pytest.fixture
def creds_server(tmp_path: Path) -> Iterator[SecuredServer]:
    with secured.creds_server(tmp_path) as secured_server:
        yield secured_server


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[SecuredServer]:
    with secured.tls_server(tmp_path) as secured_server:
        yield secured_server


@pytest.fixture
def mutual_tls_server(tmp_path: Path) -> Iterator[SecuredServer]:
    with secured.tls_server(tmp_path, mutual=True) as secured_server:
        yield secured_server


def clock_conflict(fixture_names: Iterable[str]) -> str | None:
    """Why a test with these fixtures, direct or not, must not run (PC-104)."""
    names = set(fixture_names)
    servers, clocks = sorted(names & SERVER_FIXTURES), sorted(names & CLOCK_FIXTURES)
    if not servers or not clocks:
        return None
    return (
        f"{clocks[0]} cannot be combined with {servers[0]}: a mock clock skips timeouts while real "
        "I/O is under way. Use the memory backend, or the real clock"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("server")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    conflict = clock_conflict(getattr(item, "fixturenames", ()))
    if conflict is not None:
        pytest.fail(conflict, pytrace=False)
