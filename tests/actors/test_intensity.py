"""The restart window, and who gives up when."""

from __future__ import annotations

import sys

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.actors import (
    Escalated,
    Intensity,
    RestartIntensityExceeded,
    open_actor_system,
    supervisor,
)
from shove_actors.actors._intensity import RestartWindow

from .kit import Trace, crasher, run_until_failed

if sys.version_info < (3, 11):
    pass


@pytest.mark.nasty
async def test_check12_restart_storm(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    failure = await run_until_failed(
        *(crasher(trace, f"c{i}") for i in range(10)),
        intensity=Intensity(max_restarts=3, period_s=5),
        listener=trace.listen,
    )
    assert len(trace.names("start")) == 13
    assert isinstance(failure, RestartIntensityExceeded)
    # The last crash is the fourth that the supervisor looked at, and the first it did not answer.
    [escalated] = trace.of(Escalated)
    assert escalated.error is failure
    assert isinstance(failure.__cause__, ValueError)
    name, incarnation = str(failure.__cause__).split()
    assert escalated.child == name
    assert trace.names("start").count(name) == int(incarnation)
    assert trio.current_time() == 0


async def test_check13_the_boundary_of_the_period_counts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    intensity = Intensity(max_restarts=1, period_s=5)
    trace = Trace()
    failure = await run_until_failed(crasher(trace, "A", after_s=5.0), intensity=intensity)
    assert isinstance(failure, RestartIntensityExceeded)
    assert trio.current_time() == 10
    assert trace.times("start") == [0, 5]

    trace = Trace()
    async with open_actor_system(
        children=[crasher(trace, "A", after_s=5.001)], intensity=intensity
    ):
        await trio.sleep(1000)
    assert len(trace.names("start")) == 200


@pytest.mark.nasty
async def test_check14_nested_budgets_multiply(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    one = Intensity(max_restarts=1, period_s=60)
    third = supervisor(id="three", children=[crasher(trace, "leaf")], intensity=one)
    second = supervisor(id="two", children=[third], intensity=one)
    failure: BaseException | None = await run_until_failed(second, intensity=one)
    assert len(trace.names("start")) == 8
    for _ in range(3):
        assert isinstance(failure, RestartIntensityExceeded)
        failure = failure.__cause__
    assert isinstance(failure, ValueError)


@given(
    limit=st.integers(0, 4),
    period=st.integers(1, 20),
    gaps=st.lists(st.integers(0, 10), max_size=40),
)
def test_window_agrees_with_its_definition(limit: int, period: int, gaps: list[int]) -> None:
    window = RestartWindow(intensity=Intensity(max_restarts=limit, period_s=period))
    times: list[int] = []
    now = 0
    for gap in gaps:
        now += gap
        times.append(now)
        window = window.record(now)
        recent = [t for t in times if now - t <= period]
        assert window.exceeded is (len(recent) > limit)


def test_unlimited_remembers_nothing() -> None:
    window = RestartWindow(intensity=Intensity(max_restarts=None))
    for now in range(1000):
        window = window.record(now)
        assert not window.exceeded
    assert window.times == ()
