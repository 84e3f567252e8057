"""The conformance suite: what every backend must do.

`CHECKS` are plain async functions of a `World`. A backend is held to them by one small test module
that builds its `World` (see `test_memory_conformance.py`):

    @pytest.mark.parametrize("check", CHECKS, ids=check_id)
    async def test_conformance(check: Check, ...) -> None:
        await check(World(create_backend=..., queue=..., delete_stream=..., delete_durable=...))
"""

from __future__ import annotations

from types import ModuleType

from . import checks_lanes, checks_publishing, checks_topology
from .world import Check
from .world import World as World


def _checks_in(module: ModuleType) -> list[Check]:
    return [value for name, value in vars(module).items() if name.startswith("check_")]


CHECKS: list[Check] = [
    check
    for module in (checks_publishing, checks_lanes, checks_topology)
    for check in _checks_in(module)
]


def check_id(check: Check) -> str:
    return getattr(check, "__name__", repr(check)).removeprefix("check_")
