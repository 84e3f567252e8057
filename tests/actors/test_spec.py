"""Specs that cannot work are refused when they are made."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shove_actors import actors
from shove_actors._errors import UsageError
from shove_actors.actors import (
    AutoShutdown,
    Backoff,
    ChildSpec,
    DynamicSupervisor,
    Intensity,
    Restart,
    Shutdown,
    _intensity,
    _plan,
    _plan_types,
    supervisor,
)

from .kit import echo


def _spec(**options: Any) -> ChildSpec:
    return ChildSpec(**{"id": "A", "start": echo, **options})


def test_check39_permanent_and_significant() -> None:
    with pytest.raises(UsageError, match="permanent and significant"):
        _spec(significant=True)


def test_check39_significant_without_auto_shutdown() -> None:
    child = _spec(significant=True, restart=Restart.TRANSIENT)
    with pytest.raises(UsageError, match="auto_shutdown"):
        supervisor(id="s", children=[child])
    supervisor(id="s", children=[child], auto_shutdown=AutoShutdown.ANY, restart=Restart.TRANSIENT)


def test_check39_duplicate_id() -> None:
    with pytest.raises(UsageError, match="used twice"):
        supervisor(id="s", children=[_spec(), _spec()])


def test_auto_shutdown_of_a_permanent_supervisor() -> None:
    with pytest.raises(UsageError, match="permanent"):
        supervisor(id="s", children=[], auto_shutdown=AutoShutdown.ALL)


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""},
        {"id": "a/b"},
        {"start_timeout_s": 0},
        {"start_timeout_s": float("nan")},
        {"overrun_s": 0},
        {"overrun_s": float("inf")},
    ],
)
def test_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        _spec(**options)


def test_a_supervisor_has_no_grace_of_its_own() -> None:
    group = supervisor(id="s", children=[])
    with pytest.raises(UsageError, match="INFINITY"):
        ChildSpec(id="s", start=group.start, shutdown=Shutdown.within(5))


def test_unlimited_restarts_need_a_backoff() -> None:
    unlimited = Intensity(max_restarts=None)
    with pytest.raises(UsageError, match="hot loop"):
        supervisor(id="s", children=[_spec()], intensity=unlimited)
    supervisor(
        id="s",
        children=[
            _spec(backoff=Backoff(initial_s=1, max_s=2)),
            _spec(id="B", restart=Restart.TEMPORARY),
        ],
        intensity=unlimited,
    )


@pytest.mark.parametrize("grace", [-1, float("nan")])
def test_negative_graces(grace: float) -> None:
    with pytest.raises(UsageError):
        Shutdown.within(grace)
    with pytest.raises(UsageError):
        DynamicSupervisor(stop_grace_s=grace)


@pytest.mark.parametrize(
    "options",
    [
        {"max_restarts": -1},
        {"period_s": 0},
        {"period_s": -1},
        {"period_s": float("inf")},
        {"period_s": float("nan")},
    ],
)
def test_intensity_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Intensity(**options)


def test_intensity_defaults_and_limits() -> None:
    assert (Intensity().max_restarts, Intensity().period_s) == (1, 5)
    assert Intensity(max_restarts=0, period_s=0.001).max_restarts == 0


_VALUES = [
    value
    for module in (actors, _intensity, _plan, _plan_types)
    for value in vars(module).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
]


@pytest.mark.parametrize("kind", dict.fromkeys(_VALUES), ids=lambda kind: kind.__name__)
def test_values_are_frozen_and_named(kind: type) -> None:
    """They are handed to other tasks, and grow fields in the middle."""
    assert kind.__dataclass_params__.frozen
    fields = [field for field in dataclasses.fields(kind) if field.init]
    assert kind is Shutdown or all(field.kw_only for field in fields)
