"""The conformance suite: what every backend must do, also on a bad day.

`CHECKS` and `FAULT_CHECKS` are plain async functions of a `World`. A backend is held to them by one
small test module that builds its `World` (see `test_memory_conformance.py`):

    @pytest.mark.parametrize("check", CHECKS, ids=check_id)
    async def test_conformance(check: Check, ...) -> None:
        await check(World(create_backend=..., queue=..., delete_stream=..., delete_durable=...))

`exercise_backend` runs all of them, one after the other, outside pytest. Fault checks need a
`Disturbance`. Where the memory backend and a real server differ, the model is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import ModuleType

from . import (
    checks_browsing,
    checks_deleted,
    checks_faults,
    checks_lanes,
    checks_marks,
    checks_publishing,
    checks_topology,
)
from .world import Check
from .world import World as World


def _checks_in(*modules: ModuleType) -> list[Check]:
    return [
        value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("check_")
    ]


CHECKS: list[Check] = _checks_in(
    checks_publishing,
    checks_lanes,
    checks_topology,
    checks_marks,
    checks_browsing,
    checks_deleted,
)
FAULT_CHECKS: list[Check] = _checks_in(checks_faults)


def check_id(check: Check) -> str:
    return getattr(check, "__name__", repr(check)).removeprefix("check_")


async def exercise_backend(
    world: Callable[[], AbstractAsyncContextManager[World]], *, faults: bool = True
) -> list[str]:
    """Every check in a world of its own. Raises the first failure; returns what was checked."""
    done = []
    for check in [*CHECKS, *(FAULT_CHECKS if faults else [])]:
        async with world() as fresh:
            await check(fresh)
        done.append(check_id(check))
    return done
