"""Fixtures for pytest. Enable them in a conftest.py:

    pytest_plugins = ["shove_actors.testing.pytest_plugin"]

See `shove_actors/testing/_pytest_fixtures.py` for what there is.
"""

from __future__ import annotations

from shove_actors.testing._pytest_fixtures import history as history
from shove_actors.testing._pytest_fixtures import memory_config as memory_config
from shove_actors.testing._pytest_fixtures import memory_server as memory_server
from shove_actors.testing._pytest_fixtures import nats_server as nats_server
from shove_actors.testing._pytest_fixtures import own_nats_server as own_nats_server
from shove_actors.testing._pytest_fixtures import pytest_runtest_setup as pytest_runtest_setup
from shove_actors.testing._pytest_fixtures import pytest_sessionfinish as pytest_sessionfinish
from shove_actors.testing._pytest_fixtures import pytest_terminal_summary as pytest_terminal_summary
from shove_actors.testing._pytest_fixtures import pytest_testnodedown as pytest_testnodedown
from shove_actors.testing._pytest_fixtures import run_in_virtual_time as run_in_virtual_time
from shove_actors.testing._pytest_fixtures import virtual_clock as virtual_clock

__all__ = [
    "history",
    "memory_config",
    "memory_server",
    "nats_server",
    "own_nats_server",
    "pytest_runtest_setup",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "run_in_virtual_time",
    "virtual_clock",
]
