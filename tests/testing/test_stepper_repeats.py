"""The same program gives the same trace, in one process and in another (PC-107, PC-108)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from shove_actors._errors import UsageError
from shove_actors.testing import Step, Stepper

from .stepping import in_trio_run, stubborn

if sys.version_info < (3, 11):
    pass


# ------------------------------------------------------------- PC-107 and PC-108, replays


Program = list[tuple[str, int]]


def run_program(program: Program) -> list[str]:
    """Contending tasks, timers at the same moment, cancellations; everything that happened."""
    trace: list[str] = []
    lock, steps = trio.Lock(), list[Step[None]]()

    async def worker(number: int) -> None:
        for turn in range(number % 4 + 1):
            async with lock:
                trace.append(f"{trio.current_time()} {number}.{turn}")
                await trio.sleep(number % 3)

    async def crowd(size: int) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(size):
                nursery.start_soon(worker, number)

    async def race(size: int) -> None:
        event = trio.Event()

        async def runner(number: int) -> None:
            await event.wait()
            trace.append(f"runner {number}")

        async with trio.open_nursery() as nursery:
            for number in range(size):
                nursery.start_soon(runner, number)
            await trio.testing.wait_all_tasks_blocked()
            event.set()

    with Stepper() as s:
        for what, number in program:
            trace.append(f"{what} {number} at {s.now}")
            if what == "crowd":
                steps.append(s.post(crowd, number))
            elif what == "race":
                s.call(race, number)
            elif what == "wait":
                s.advance(number)
            elif steps:
                steps[number % len(steps)].cancel()
                s.settle()
        trace.append(str([step.done for step in steps]))
    return trace


FIXED: Program = [
    ("crowd", 7), ("race", 9), ("wait", 3), ("crowd", 5), ("cancel", 0), ("race", 12), ("wait", 9),
]  # fmt: skip


def trace_of(program: Program) -> list[str]:
    """The program as an example of Hypothesis, which sets the seed for it."""
    traces: list[list[str]] = []

    @settings(phases=[Phase.explicit], database=None)
    @example(None)
    @given(st.none())
    def once(_: None) -> None:
        traces.append(run_program(program))

    once()
    [trace] = traces
    return trace


def test_pc107_an_example_run_fifty_times_gives_the_same_trace_each_time() -> None:
    first = trace_of(FIXED)
    assert len(first) > 40
    kept = []
    for number in range(50):
        # Other addresses of tasks and scopes: nothing may depend on them.
        kept.append([object() for _ in range(number * 7 % 101)])
        assert trace_of(FIXED) == first


def test_pc107_another_process_with_other_hashes_gives_the_same_trace() -> None:
    code = (
        "from tests.testing.test_stepper_repeats import FIXED, trace_of\n"
        "print('\\n'.join(trace_of(FIXED)))"
    )
    root = Path(__file__).parents[2]
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.splitlines() == trace_of(FIXED)


def test_pc107_the_order_of_tasks_is_a_choice_of_hypothesis() -> None:
    orders = set()

    @settings(max_examples=30, database=None, derandomize=True)
    @given(st.random_module())
    def run(_: object) -> None:
        orders.add(tuple(run_program([("race", 4)])))

    run()
    assert len(orders) > 3


def test_pc107_no_thread_is_used() -> None:
    before = set(threading.enumerate())
    trace_of(FIXED)
    s = Stepper()
    s.open()
    s.post(stubborn)
    s.advance(1)
    with pytest.raises(UsageError, match="by force"):
        s.close()
    assert set(threading.enumerate()) <= before


def test_pc107_a_step_that_uses_a_thread_is_refused() -> None:
    release = threading.Event()

    async def threaded() -> None:
        await trio.to_thread.run_sync(release.wait)

    try:
        with pytest.raises(UsageError, match="worker thread"), Stepper() as s:
            s.post(threaded)
    finally:
        release.set()
    assert not in_trio_run()


def test_pc108_the_same_example_twice_gives_the_same_trace() -> None:
    """Whatever examples came between."""
    programs: list[Program] = []

    @settings(max_examples=30, database=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from(["crowd", "race", "wait", "cancel"]), st.integers(0, 6)),
            max_size=12,
        )
    )
    def collect(program: Program) -> None:
        programs.append(program)

    collect()
    first = [trace_of(program) for program in programs]
    again = [trace_of(program) for program in reversed(programs)]
    assert first == again[::-1]
