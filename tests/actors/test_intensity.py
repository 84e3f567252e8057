"""The restart window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shove_actors.actors import Intensity
from shove_actors.actors._intensity import RestartWindow


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
