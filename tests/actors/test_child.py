"""One incarnation: how it starts, and what is said about its end."""

from __future__ import annotations

import sys

import pytest
import trio
import trio.testing

from shove_actors._errors import UsageError
from shove_actors.actors import (
    ChildSpec,
    Context,
    Crashed,
    Exited,
    Intensity,
    StartFailed,
    StartRejected,
    open_actor_system,
    supervisor,
)

from .kit import MANY, Trace, crasher, worker

if sys.version_info < (3, 11):
    pass


async def _start_failure(*children: ChildSpec, **options: object) -> StartFailed:
    with pytest.raises(StartFailed) as caught:
        async with open_actor_system(children=children, **options):
            raise AssertionError("the block must not be entered")
    return caught.value


async def test_check03_first_start_fails(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def broken(ctx: Context[object]) -> None:
        trace.add("start", "B")
        raise ValueError("no")

    failure = await _start_failure(
        worker(trace, "A"),
        ChildSpec(id="B", start=broken),
        worker(trace, "C"),
        intensity=Intensity(max_restarts=10, period_s=60),
    )
    assert isinstance(failure.__cause__, ValueError)
    assert trace.names("start") == ["A", "B"]
    assert trace.names("end") == ["A"]


async def test_check04_returns_before_started(autojump_clock: trio.testing.MockClock) -> None:
    async def hasty(ctx: Context[object]) -> None:
        await trio.sleep(1)

    trace = Trace()
    failure = await _start_failure(worker(trace, "A"), ChildSpec(id="B", start=hasty))
    assert "started()" in str(failure)
    assert trace.names("end") == ["A"]


async def test_check05_start_timeout(autojump_clock: trio.testing.MockClock) -> None:
    async def endless(ctx: Context[object]) -> None:
        await trio.sleep_forever()

    failure = await _start_failure(ChildSpec(id="B", start=endless, start_timeout_s=3))
    assert trio.current_time() == 3
    assert isinstance(failure.__cause__, trio.TooSlowError)


async def test_a_late_start_on_a_restart_is_retried(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "A")
        if ctx.incarnation == 2:
            await trio.sleep_forever()
        ctx.started()
        if ctx.incarnation == 1:
            raise ValueError
        await ctx.stop_requested.wait()

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start, start_timeout_s=3)],
        intensity=MANY,
        listener=trace.listen,
    ):
        await trio.sleep(10)
    assert trace.times("start") == [0, 0, 3]
    [rejected] = trace.of(StartRejected)
    assert isinstance(rejected.error.__cause__, trio.TooSlowError)


@pytest.mark.nasty
async def test_check06_cancelled_while_starting(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def slow(ctx: Context[object]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            trace.add(f"stop asked {ctx.stop_requested.is_set()}", "C")
            trace.add("end", "C")

    children = [worker(trace, "A"), worker(trace, "B"), ChildSpec(id="C", start=slow)]
    with trio.move_on_at(1) as scope:
        async with open_actor_system(children=children):
            raise AssertionError("not reached")
    assert scope.cancelled_caught
    assert trio.current_time() == 1
    assert trace.names("end") == ["C", "B", "A"]
    # It was cancelled, not asked: who is not up yet has nothing to finish.
    assert trace.names("stop asked False") == ["C"]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.nasty
async def test_check07_cancel_while_child_calls_started(
    autojump_clock: trio.testing.MockClock, nested: bool
) -> None:
    """C shields its start until t=2; the start is cancelled at t=1; then C calls started().

    Trio does not move the task then. Shielding it all the same would wait for ever for a task
    that nothing can cancel. It is not a child yet, so its next checkpoint ends it.
    """
    trace = Trace()

    async def shielded(ctx: Context[object]) -> None:
        try:
            with trio.CancelScope(shield=True):
                await trio.sleep_until(2)
            ctx.started()
            await trio.sleep_forever()
        finally:
            trace.add("end", "C")

    children = [worker(trace, "A"), ChildSpec(id="C", start=shielded)]
    if nested:
        children = [supervisor(id="group", children=children)]
    with trio.move_on_at(1):
        async with open_actor_system(children=children):
            raise AssertionError("not reached")
    assert trio.current_time() == 2
    assert trace.at("end") == {"C": 2, "A": 2}


async def test_started_late_after_its_timeout_is_a_failed_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The same race by the child's own time limit: started() comes after the limit."""

    async def late(ctx: Context[object]) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        ctx.started()
        await trio.sleep_forever()

    failure = await _start_failure(ChildSpec(id="C", start=late, start_timeout_s=1))
    assert isinstance(failure.__cause__, trio.TooSlowError)
    assert trio.current_time() == 2


async def test_started_twice_is_a_usage_error(autojump_clock: trio.testing.MockClock) -> None:
    seen: list[UsageError] = []

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        with pytest.raises(UsageError) as caught:
            ctx.started()
        seen.append(caught.value)
        await ctx.stop_requested.wait()

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]):
        await trio.testing.wait_all_tasks_blocked()
    assert len(seen) == 1


async def test_receiving_before_started_is_a_usage_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def start(ctx: Context[object]) -> None:
        async for _ in ctx:
            pass

    failure = await _start_failure(ChildSpec(id="A", start=start))
    assert isinstance(failure.__cause__, UsageError)


async def test_started_from_a_subtask(autojump_clock: trio.testing.MockClock) -> None:
    """A child may say it is started from a task of its own nursery; it is shielded all the same."""
    trace = Trace()

    async def sub(ctx: Context[object]) -> None:
        await trio.sleep(1)
        ctx.started()

    async def start(ctx: Context[object]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sub, ctx)
            await ctx.stop_requested.wait()
            await trio.sleep(1)
            trace.add("end", "A")

    with trio.move_on_at(5):
        async with open_actor_system(children=[ChildSpec(id="A", start=start)]):
            assert trio.current_time() == 1
            await trio.sleep_forever()
    assert trace.at("end") == {"A": 6}


async def test_crash_is_reported_with_its_incarnation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    async with open_actor_system(
        children=[crasher(trace, "A", times=2)], intensity=MANY, listener=trace.listen
    ):
        await trio.sleep(1)
    crashes = [e for e in trace.of(Exited) if isinstance(e.exit, Crashed)]
    assert [(e.path, e.incarnation, str(e.exit.error)) for e in crashes] == [
        ("A", 1, "A 1"),
        ("A", 2, "A 2"),
    ]


async def test_a_context_tells_who_it_is(autojump_clock: trio.testing.MockClock) -> None:
    seen: list[tuple[str, str, int, str]] = []

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        seen.append((ctx.name, ctx.path, ctx.incarnation, repr(ctx)))
        assert ctx.self_ref is ctx.system.ref("g/A")
        if ctx.incarnation == 1:
            raise ValueError
        await ctx.stop_requested.wait()

    group = supervisor(id="g", children=[ChildSpec(id="A", start=start)])
    async with open_actor_system(children=[group]):
        await trio.testing.wait_all_tasks_blocked()
    assert seen == [("A", "g/A", n, f"<Context 'g/A' incarnation {n}>") for n in (1, 2)]
