"""Runs every `async def` test in Trio; a test that asks for a clock fixture runs under it.

`autojump_clock`: virtual time that jumps to the next deadline whenever every task is blocked.
`mock_clock`: virtual time that moves only when the test says so.
Tests on a real server take neither: virtual time would skip timeouts while real I/O is under way
(PC-104); the `server` fixtures refuse to be combined with a clock.
"""

from __future__ import annotations

import inspect
import os
import signal
import time
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile(
    "ci", max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "deep", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

pytest_plugins = ["tests.servers"]

# A shell that starts this in the background may have it ignore SIGINT. Tests of Ctrl-C need what
# a terminal gives, and the programs they start inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A real-time test that hangs must fail, not hold CI for its ninety minutes.
REAL_TIME_LIMIT = 60.0


# The tests wait more than they compute: for leases, servers, processes.
WORKERS = 4


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: whole folders are spread over processes, files and single tests are not."""
    named = [str(argument).partition("::") for argument in config.args]
    folders = all(not colons and os.path.isdir(path) for path, colons, _ in named)
    return max(WORKERS, os.cpu_count() or 1) if folders else 0


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def mock_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock()


def _clock_of(kwargs: dict[str, Any]) -> trio.testing.MockClock | None:
    return next((v for v in kwargs.values() if isinstance(v, trio.testing.MockClock)), None)


class RealTimeLimit(trio.abc.Instrument):
    """Ends a test in virtual time that goes on for ever: there the scope's deadline cannot."""

    def __init__(self, scope: trio.CancelScope, seconds: float) -> None:
        self._scope = scope
        self._end = time.monotonic() + seconds

    def after_io_wait(self, timeout: float) -> None:
        if time.monotonic() > self._end:
            self._scope.cancel()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    kwargs = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    clock = _clock_of(kwargs)
    limit = pyfuncitem.get_closest_marker("limit")
    seconds = float(limit.args[0]) if limit else REAL_TIME_LIMIT

    async def bounded() -> None:
        with trio.CancelScope() as scope:
            trio.lowlevel.add_instrument(RealTimeLimit(scope, seconds))
            if clock is None:
                scope.deadline = trio.current_time() + seconds
            await function(**kwargs)
        if scope.cancelled_caught:
            pytest.fail(f"still running after {seconds:g} s")

    trio.run(partial(bounded), clock=clock, strict_exception_groups=True)
    return True
