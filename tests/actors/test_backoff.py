"""Pauses between restarts."""

from __future__ import annotations

import random
import sys

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from shove_actors._errors import UsageError
from shove_actors.actors import (
    BackingOff,
    Backoff,
    ChildSpec,
    Context,
    State,
    Strategy,
    open_actor_system,
)

from .kit import MANY, UNLIMITED, Trace, crasher, worker

if sys.version_info < (3, 11):
    pass


async def test_check15_doubles_up_to_the_cap(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    backoff = Backoff(initial_s=1, max_s=8)
    async with open_actor_system(
        children=[crasher(trace, "A", times=6, backoff=backoff)], intensity=UNLIMITED
    ):
        await trio.sleep(100)
    assert trace.times("start") == [0, 1, 3, 7, 15, 23, 31]


async def _delays(seed: int) -> list[float]:
    trace = Trace()
    backoff = Backoff(initial_s=1, max_s=8, jitter=0.2)
    async with open_actor_system(
        children=[crasher(trace, "A", times=6, backoff=backoff)],
        intensity=UNLIMITED,
        rng=random.Random(seed),
        listener=trace.listen,
    ):
        await trio.sleep(100)
    return [e.delay_s for e in trace.of(BackingOff)]


async def test_check16_jitter_is_seeded_and_capped(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, again, other = await _delays(1), await _delays(1), await _delays(2)
    assert first == again
    assert first != other
    for delays in (first, other):
        for delay, base in zip(delays, [1, 2, 4, 8, 8, 8], strict=True):
            assert base <= delay <= min(8, 1.2 * base)


async def test_check17_a_quiet_time_resets(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        if ctx.incarnation == 4:
            await trio.sleep(20)
        if ctx.incarnation <= 4:
            raise ValueError
        await ctx.stop_requested.wait()

    backoff = Backoff(initial_s=1, max_s=60, reset_after_s=10)
    async with open_actor_system(
        children=[ChildSpec(id="A", start=start, backoff=backoff)],
        intensity=UNLIMITED,
        listener=trace.listen,
    ):
        await trio.sleep(100)
    assert [e.delay_s for e in trace.of(BackingOff)] == [1, 2, 4, 1]


@pytest.mark.nasty
async def test_check18_stop_during_a_backoff(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    with trio.move_on_at(2):
        async with open_actor_system(
            children=[crasher(trace, "A", backoff=Backoff(initial_s=60, max_s=60))]
        ):
            await trio.sleep_forever()
    assert trio.current_time() == 2
    await trio.sleep(100)
    assert trace.times("start") == [0]


@pytest.mark.nasty
async def test_check19_backoff_does_not_hold_up_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    children = [
        crasher(trace, "A", times=1, backoff=Backoff(initial_s=60, max_s=60)),
        crasher(trace, "B", times=1, after_s=1, backoff=Backoff(initial_s=1, max_s=1)),
    ]
    async with open_actor_system(children=children, intensity=MANY) as system:
        await trio.sleep(30)
        assert system.snapshot().children[0].state is State.BACKOFF
        await trio.sleep(70)
    assert trace.times("start", "B") == [0, 2]
    assert trace.times("start", "A") == [0, 60]


async def test_followers_wait_behind_a_leader_in_backoff(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    children = [
        worker(trace, "A"),
        crasher(trace, "B", times=1, after_s=1, backoff=Backoff(initial_s=10, max_s=10)),
        worker(trace, "C", stop_s=2),
    ]
    async with open_actor_system(children=children, strategy=Strategy.REST_FOR_ONE, intensity=MANY):
        await trio.sleep(20)
    assert trace.times("end", "C")[0] == 3
    assert trace.times("start", "B") == [0, 11]
    assert trace.times("start", "C") == [0, 11]
    assert trace.times("start", "A") == [0]


async def test_one_for_all_waits_for_the_backoff_as_a_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    backoff = Backoff(initial_s=10, max_s=10)
    children = [worker(trace, "A"), crasher(trace, "B", times=1, after_s=1, backoff=backoff)]
    async with open_actor_system(children=children, strategy=Strategy.ONE_FOR_ALL):
        await trio.sleep(20)
    assert trace.times("start") == [0, 0, 11, 11]


@given(
    initial=st.floats(0.001, 100),
    factor=st.floats(1, 1000),
    jitter=st.floats(0, 1),
    failures=st.integers(1, 5000),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_delay_is_within_its_bounds(
    initial: float, factor: float, jitter: float, failures: int, draw: float
) -> None:
    backoff = Backoff(initial_s=initial, max_s=initial * factor, jitter=jitter)
    delay = backoff.delay_s(failures, draw)
    assert initial <= delay <= backoff.max_s
    assert backoff.delay_s(failures + 1, draw) >= delay


@pytest.mark.parametrize(
    "options",
    [
        {"initial_s": 0, "max_s": 1},
        {"initial_s": -1, "max_s": 1},
        {"initial_s": float("nan"), "max_s": 1},
        {"initial_s": float("inf"), "max_s": float("inf")},
        {"initial_s": 2, "max_s": 1},
        {"initial_s": 1, "max_s": float("inf")},
        {"initial_s": 1, "max_s": float("nan")},
        {"initial_s": 1, "max_s": 2, "jitter": 1.5},
        {"initial_s": 1, "max_s": 2, "jitter": -0.1},
        {"initial_s": 1, "max_s": 2, "jitter": float("nan")},
        {"initial_s": 1, "max_s": 2, "reset_after_s": -1},
        {"initial_s": 1, "max_s": 2, "reset_after_s": float("nan")},
    ],
)
def test_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Backoff(**options)


def test_the_limits_themselves_are_allowed() -> None:
    backoff = Backoff(initial_s=0.5, max_s=0.5, jitter=1, reset_after_s=0)
    assert backoff.quiet_s == 0
    assert backoff.delay_s(1, 0.9) == 0.5
    assert Backoff(initial_s=0.001, max_s=0.001, jitter=0).jitter == 0


def test_defaults() -> None:
    backoff = Backoff(initial_s=2, max_s=8)
    assert (backoff.jitter, backoff.reset_after_s) == (0, None)
    assert backoff.quiet_s == 5


def test_delay_by_hand() -> None:
    backoff = Backoff(initial_s=3, max_s=100, jitter=0.5)
    assert [backoff.delay_s(n, 0.0) for n in range(1, 8)] == [3, 6, 12, 24, 48, 96, 100]
    assert backoff.delay_s(1, 0.5) == 3.75
    assert backoff.delay_s(2, 0.5) == 7.5
    # The cap comes after the jitter.
    assert backoff.delay_s(6, 0.5) == 100


def test_a_child_may_fail_for_weeks() -> None:
    """2.0 ** 1024 would raise, and a tiny pause must still reach a huge cap by then."""
    backoff = Backoff(initial_s=5e-324, max_s=1.0)
    assert backoff.delay_s(10**9, 0.0) == 2.0**1000 * 5e-324
    assert backoff.delay_s(1001, 0.0) == 2.0**1000 * 5e-324
    assert backoff.delay_s(1000, 0.0) == 2.0**999 * 5e-324


@pytest.mark.parametrize(("lived_s", "second_pause"), [(4.999, 4.0), (5.0, 2.0)])
async def test_who_lived_exactly_long_enough_starts_over(
    autojump_clock: trio.testing.MockClock, lived_s: float, second_pause: float
) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        if ctx.incarnation <= 2:
            await trio.sleep(lived_s if ctx.incarnation == 2 else 0)
            raise ValueError
        await ctx.stop_requested.wait()

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start, backoff=Backoff(initial_s=2, max_s=8))],
        intensity=UNLIMITED,
        listener=trace.listen,
    ):
        await trio.sleep(50)
    assert [e.delay_s for e in trace.of(BackingOff)] == [2, second_pause]
