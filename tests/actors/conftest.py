"""`@pytest.mark.nasty`: a test of a race, which under `HYPOTHESIS_PROFILE=deep` runs 200 times.

Each run has a seed of its own for the order in which Trio's scheduler runs what is ready, so the
runs are 200 different interleavings, and the one that fails can be repeated by its number:
`HYPOTHESIS_PROFILE=deep pytest 'tests/actors/test_stop.py::test_check20_overrun[run137]'`.
"""

from __future__ import annotations

import os
import random

import pytest
import trio

RUNS = 200


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"nasty: a race; runs {RUNS} times under HYPOTHESIS_PROFILE=deep"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    deep = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
    if deep and metafunc.definition.get_closest_marker("nasty") is not None:
        metafunc.fixturenames.append("scheduler_seed")
        runs = range(RUNS)
        metafunc.parametrize("scheduler_seed", runs, indirect=True, ids=[f"run{n}" for n in runs])


@pytest.fixture
def scheduler_seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes this run's interleaving its own. The order is Trio's only dice, hence the private name.

    Hypothesis, which tests/conftest.py imports, has Trio draw the order from it.
    """
    seed: int = request.param
    monkeypatch.setattr(trio._core._run, "_r", random.Random(seed))
    return seed
