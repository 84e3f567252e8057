"""The stepper: every task blocked after each call, the same run each time, nothing left behind.

Races, each with its test: a step is posted between two turns of an idle run (`test_post...`);
another task waits for everything to be blocked in the same turn as the pulse
(`test_settle_waits_for_others_who_wait_for_all_blocked`); a deadline that has passed when it is set
(`test_a_deadline_in_the_past_fires_before_the_call_returns`); an ordered stop that is idle under a
shield when the run is closed (`test_close_lets_an_ordered_stop_have_its_time`).
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from shove_actors._errors import UsageError
from shove_actors.testing import Stepper, _guest

from .stepping import double, fail, fail_after, in_trio_run

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


# ---------------------------------------------------------------------------------- steps


def test_call_returns_what_the_step_returns() -> None:
    with Stepper() as s:
        assert s.call(double, 21) == 42
        assert s.call(double, number=4) == 8
        with pytest.raises(ValueError, match="boom"):
            s.call(fail)
        assert s.call(double, 1) == 2, "a failed step does not end the run"


def test_call_refuses_a_step_that_blocks_and_cancels_it() -> None:
    ended = []

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    with Stepper() as s:
        with pytest.raises(UsageError, match=r"wait did not end.*post\(\)"):
            s.call(wait)
        assert ended == [True]


def test_posted_step_goes_on_during_later_calls() -> None:
    event = trio.Event()

    async def waiter() -> str:
        await event.wait()
        return "seen"

    async def setter() -> None:
        event.set()

    with Stepper() as s:
        step = s.post(waiter)
        with pytest.raises(UsageError, match="still running"):
            step.result()
        s.call(setter)
        assert step.result() == "seen"


def test_what_one_step_wakes_is_blocked_again_when_the_call_returns() -> None:
    """A chain of a hundred tasks, each woken by the one before."""
    events = [trio.Event() for _ in range(101)]

    async def link(number: int) -> None:
        await events[number].wait()
        await trio.lowlevel.checkpoint()
        events[number + 1].set()

    async def begin() -> None:
        events[0].set()

    with Stepper() as s:
        links = [s.post(link, n) for n in range(100)]
        s.call(begin)
        assert events[100].is_set()
        assert all(each.done for each in links)


def test_settle_waits_for_others_who_wait_for_all_blocked() -> None:
    seen = []

    async def patient() -> None:
        for number in range(5):
            await trio.testing.wait_all_tasks_blocked()
            seen.append(number)
            for _ in range(3):
                await trio.lowlevel.checkpoint()

    with Stepper() as s:
        step = s.post(patient)
        assert seen == [0, 1, 2, 3, 4]
        assert step.done


def test_a_step_is_cancelled_alone() -> None:
    with Stepper() as s:
        one, other = s.post(trio.sleep, 5), s.post(trio.sleep, 5)
        one.cancel()
        s.settle()
        assert (one.done, one.cancelled, one.failed) == (True, True, False)
        assert isinstance(one.error, trio.Cancelled)
        s.advance(5)
        assert (other.done, other.cancelled) == (True, False)
        assert other.result() is None


def test_a_cancelled_step_may_still_fail() -> None:
    async def bad_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in finally")

    with Stepper() as s:
        step = s.post(bad_end)
        step.cancel()
        s.settle()
        assert step.failed
        assert isinstance(step.error, ValueError)


def test_a_step_with_a_nursery_that_is_cancelled() -> None:
    async def group() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)

    with Stepper() as s:
        step = s.post(group)
        step.cancel()
        s.settle()
        assert step.cancelled
        assert s.post(group).done is False


# ----------------------------------------------------------------------------------- time


def test_advance_stops_at_each_deadline() -> None:
    """One jump over a chain of timers would fire the first of them only (and late)."""
    times = []

    async def ticks() -> None:
        while True:
            await trio.sleep(0.25)
            times.append(trio.current_time())

    with Stepper() as s:
        s.post(ticks)
        assert s.next_deadline() == 0.25
        s.advance(1.1)
        assert times == [0.25, 0.5, 0.75, 1.0]
        assert s.now == 1.1


def test_a_deadline_at_the_target_has_fired() -> None:
    with Stepper() as s:
        step = s.post(trio.sleep, 3)
        s.advance(2.9)
        assert not step.done
        s.advance(0.1)
        assert step.done


@given(
    start=st.floats(0, 1e6),
    waits=st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=5),
)
def test_each_deadline_is_met_exactly(start: float, waits: list[float]) -> None:
    """`now + (deadline - now)` is not always `deadline`."""
    wanted, met = [], []

    async def until(deadline: float) -> None:
        await trio.sleep_until(deadline)
        met.append(trio.current_time())

    with Stepper() as s:
        s.advance(start)
        for wait in waits:
            wanted.append(s.now + wait)
            s.post(until, wanted[-1])
        s.advance(1e6)
        assert s.now == start + 1e6
    assert met == sorted(wanted)


def test_a_deadline_in_the_past_fires_before_the_call_returns() -> None:
    async def late() -> bool:
        with trio.move_on_at(-1) as scope:
            await trio.sleep_forever()
        return scope.cancelled_caught

    with Stepper() as s:
        assert s.call(late) is True
        assert s.next_deadline() is None
        assert s.now == 0


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan])
def test_advance_refuses(seconds: float) -> None:
    with Stepper() as s, pytest.raises(UsageError, match="finite"):
        s.advance(seconds)


# ----------------------------------------------------------------- who hears of an exception


def test_main_runs_beside_the_steps_and_its_error_is_raised_where_it_happens() -> None:
    async def main() -> None:
        await fail_after(3)

    with Stepper(main) as s:
        s.advance(2)
        with pytest.raises(ValueError, match="late"):
            s.advance(2)
        assert s.now == 3, "at that moment"
        assert s.call(double, 1) == 2, "once"


def test_main_that_fails_at_once_does_not_open() -> None:
    with pytest.raises(ValueError, match="boom"), Stepper(fail):
        pytest.fail("entered")
    assert not in_trio_run()


def test_main_may_return() -> None:
    async def main() -> None:
        pass

    with Stepper(main) as s:
        assert s.call(double, 1) == 2


def test_a_failure_that_nobody_asked_for_is_raised_on_close() -> None:
    s = Stepper()
    s.open()
    s.post(fail_after, 1)
    s.advance(1)
    with pytest.raises(ValueError, match="late"):
        s.close()


def test_several_failures_are_raised_together() -> None:
    s = Stepper()
    s.open()
    s.post(fail, "one")
    s.post(fail, "two")
    with pytest.raises(ExceptionGroup) as caught:
        s.close()
    assert [str(each) for each in caught.value.exceptions] == ["one", "two"]


def test_a_failure_that_was_looked_at_is_not_raised_again() -> None:
    with Stepper() as s:
        step = s.post(fail)
        assert isinstance(step.error, ValueError)


def test_the_block_comes_first_and_the_rest_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def block() -> None:
        with Stepper() as s:
            s.post(fail, "other")
            raise LookupError("mine")

    with caplog.at_level(logging.ERROR, "shove_actors.testing"):
        with pytest.raises(LookupError, match="mine"):
            block()
    [record] = caplog.records
    assert "other" in record.getMessage()


def test_an_error_while_closing_is_raised() -> None:
    async def bad_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in finally")

    with pytest.raises(ValueError, match="in finally"), Stepper() as s:
        s.post(bad_end)


@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])
def test_fatal_exceptions_reach_the_caller(fatal: type[BaseException]) -> None:
    async def stop() -> None:
        raise fatal

    with pytest.raises(fatal), Stepper() as s:
        s.call(stop)
    assert not in_trio_run()


def test_a_step_that_never_waits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_guest, "TURNS", 1000)

    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(UsageError, match=r"still does not wait.*spin"), Stepper() as s:
        s.post(spin)
    assert not in_trio_run()


# ----------------------------------------------------------------------------------- misuse


def test_closed_and_unopened_steppers_refuse() -> None:
    s = Stepper()
    with pytest.raises(UsageError, match="not open"):
        s.settle()
    s.close()
    with s:
        assert "open" in repr(s)
        with pytest.raises(UsageError, match="opened before"):
            s.open()
    with pytest.raises(UsageError, match="not open"):
        s.advance(1)
    s.close()


async def test_not_inside_trio() -> None:
    with pytest.raises(UsageError, match="inside a Trio run"):
        Stepper().open()


def test_one_at_a_time() -> None:
    with Stepper() as s:
        with pytest.raises(UsageError, match="another one is open"):
            Stepper().open()
        assert s.call(double, 1) == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.settle(),
        lambda s: s.advance(1),
        lambda s: s.post(double, 1),
        lambda s: s.close(),
    ],
    ids=["settle", "advance", "post", "close"],
)
def test_a_step_cannot_drive_its_own_stepper(use: Callable[[Stepper], object]) -> None:
    with Stepper() as s:

        async def step() -> None:
            use(s)

        with pytest.raises(UsageError, match="own steps"):
            s.call(step)
