"""Fixtures for pytest. Enable them in a conftest.py:

    pytest_plugins = ["shove_actors.testing.pytest_plugin"]

* `memory_server`: a fresh `MemoryServer`.
* `memory_config`: makes a `MemoryConfig` on it, one per process: `memory_config("worker-1")`.
* `virtual_clock`: a clock for `trio.run` that jumps whenever every task is blocked.
* `run_in_virtual_time`: runs an async function to its end under that clock, in a bounded real time.
* `nats_server`: a real `nats-server` for the whole session, or the one that `SHOVE_TEST_NATS_URL`
  names; skips where there is no binary (extra `server`). Do not stop it.
* `own_nats_server`: one of this test alone, to be killed and restarted.
* `history`: an empty `History`.

A test that asks for a clock and a real server is refused: virtual time would skip the time-outs of
real I/O. What simulations did is summed up at the end of the session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import trio
import trio.testing

from shove_actors._errors import EmbeddedServerError, UsageError
from shove_actors.backends.memory import MemoryConfig, MemoryServer
from shove_actors.embedded import ServerProcess

from ._history import History
from ._totals import TOTALS, Totals

try:
    import pytest
except ImportError as exc:
    raise UsageError("shove_actors.testing.pytest_plugin needs pytest: pip install pytest") from exc

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

#: Under which a worker of pytest-xdist tells its totals.
_TOLD = "shove_actors_totals"

T = TypeVar("T")

#: A virtual run that takes longer than this in real time never ends.
REAL_LIMIT_S = 60.0
_CLOCKS = frozenset({"virtual_clock", "run_in_virtual_time"})
_SERVERS = frozenset({"nats_server", "own_nats_server"})


class Foreign:
    """A server that somebody else runs: only its address is known."""

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.fixture
def memory_server() -> MemoryServer:
    """A server in memory with nothing on it."""
    return MemoryServer()


@pytest.fixture
def memory_config(memory_server: MemoryServer) -> Callable[..., MemoryConfig]:
    """Makes the configuration of one more process on `memory_server`."""

    def make(name: str | None = None) -> MemoryConfig:
        return MemoryConfig(server=memory_server, name=name)

    return make


@pytest.fixture
def virtual_clock() -> trio.testing.MockClock:
    """Jumps to the next deadline whenever every task is blocked."""
    return trio.testing.MockClock(autojump_threshold=0)


class _RealLimit(trio.abc.Instrument):
    """In virtual time no time-out of Trio's ends what goes on for ever."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._end = time.monotonic() + REAL_LIMIT_S

    def after_io_wait(self, timeout: float) -> None:
        if time.monotonic() > self._end:
            self._scope.cancel()


@pytest.fixture
def run_in_virtual_time(
    virtual_clock: trio.testing.MockClock,
) -> Callable[[Callable[[], Awaitable[T]]], T]:
    """Runs an async function of no arguments; returns or raises what it does."""

    def run(function: Callable[[], Awaitable[T]]) -> T:
        async def bounded() -> T:
            with trio.CancelScope() as scope:
                trio.lowlevel.add_instrument(_RealLimit(scope))
                return await function()
            raise AssertionError(f"still running after {REAL_LIMIT_S:g} s of real time")

        return trio.run(bounded, clock=virtual_clock, strict_exception_groups=True)

    return run


@pytest.fixture
def history() -> History:
    """A history to record into."""
    return History()


def _started() -> ServerProcess:
    try:
        server = ServerProcess()
        server.__enter__()
    except EmbeddedServerError as exc:
        pytest.skip(f"no nats-server: {exc}")
    return server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[ServerProcess | Foreign]:
    """A real server with JetStream, shared by the session. Use names of your own on it."""
    url = os.environ.get("SHOVE_TEST_NATS_URL")
    if url:
        yield Foreign(url)
        return
    server = _started()
    try:
        yield server
    finally:
        server.__exit__(None, None, None)


@pytest.fixture
def own_nats_server() -> Iterator[ServerProcess]:
    """A real server of this test alone."""
    server = _started()
    try:
        yield server
    finally:
        server.__exit__(None, None, None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    names = set(getattr(item, "fixturenames", ()))
    clocks, servers = sorted(names & _CLOCKS), sorted(names & _SERVERS)
    if clocks and servers:
        pytest.fail(
            f"{clocks[0]} cannot be combined with {servers[0]}: virtual time skips time-outs while "
            "real I/O is under way. Use the memory backend, or the real clock",
            pytrace=False,
        )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """With pytest-xdist: what the simulations of one of its workers did."""
    told = getattr(node, "workeroutput", {}).get(_TOLD)
    if told is not None:
        TOTALS.add(Totals(**told))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_TOLD] = asdict(TOTALS)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    if TOTALS.simulations:
        terminalreporter.write_line(f"simulated: {TOTALS}")
