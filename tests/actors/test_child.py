"""One incarnation: start, stop, kill, and what its errors mean."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing

from shove_actors._errors import UsageError
from shove_actors.actors import (
    ChildSpec,
    Context,
    Crashed,
    Exited,
    GraceExpired,
    Killed,
    Overrun,
    Shutdown,
    StartFailed,
    StartRejected,
    StopRequested,
    open_actor_system,
    supervisor,
)

from .kit import MANY, Trace, crasher, leaves, worker

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup


async def _start_failure(*children: ChildSpec, **options: object) -> StartFailed:
    with pytest.raises(StartFailed) as caught:
        async with open_actor_system(children=children, **options):
            raise AssertionError("the block must not be entered")
    return caught.value


async def test_check07_03_first_start_fails(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def broken(ctx: Context[object]) -> None:
        trace.add("start", "B")
        raise ValueError("no")

    failure = await _start_failure(
        worker(trace, "A"), ChildSpec(id="B", start=broken), worker(trace, "C"), intensity=MANY
    )
    assert isinstance(failure.__cause__, ValueError)
    assert trace.names("start") == ["A", "B"]
    assert trace.names("end") == ["A"]


async def test_check07_04_returns_before_started(autojump_clock: trio.testing.MockClock) -> None:
    async def hasty(ctx: Context[object]) -> None:
        await trio.sleep(1)

    trace = Trace()
    failure = await _start_failure(worker(trace, "A"), ChildSpec(id="B", start=hasty))
    assert "started()" in str(failure)
    assert trace.names("end") == ["A"]


async def test_check07_05_start_timeout(autojump_clock: trio.testing.MockClock) -> None:
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


async def test_check07_06_cancelled_while_starting(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def slow(ctx: Context[object]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            trace.add("end", "C")

    with trio.move_on_at(1) as scope:
        async with open_actor_system(children=[worker(trace, "A"), ChildSpec(id="C", start=slow)]):
            raise AssertionError("not reached")
    assert scope.cancelled_caught
    assert trio.current_time() == 1
    assert trace.names("end") == ["C", "A"]


@pytest.mark.parametrize("nested", [False, True])
async def test_check07_07_cancel_while_child_calls_started(
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


async def test_check07_20_overrun(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def stubborn(ctx: Context[object]) -> None:
        ctx.started()
        with trio.CancelScope(shield=True):
            await trio.sleep_until(10)
        trace.add("end", "A")

    spec = ChildSpec(id="A", start=stubborn, shutdown=Shutdown.within(2), overrun_s=3)
    with trio.move_on_at(1):
        async with open_actor_system(children=[spec], listener=trace.listen):
            await trio.sleep_forever()
    assert [e.at for e in trace.of(GraceExpired)] == [3]
    assert [(e.at, e.since_s) for e in trace.of(Overrun)] == [(6, 3), (9, 6)]
    assert trace.at("end") == {"A": 10}
    assert trio.current_time() == 10


async def test_check07_21_brutal_kill(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        try:
            await trio.sleep_forever()
        finally:
            trace.add(f"stop asked {ctx.stop_requested.is_set()}", "A")

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start, shutdown=Shutdown.KILL)], listener=trace.listen
    ) as system:
        await trio.sleep(1)
    assert trace.entries == [(1, "stop asked False", "A")]
    assert trace.of(StopRequested) == []
    assert [e.exit for e in trace.of(Exited)] == [Killed()]
    assert system.report.killed == ("A",)


async def test_check07_23_error_next_to_a_cancellation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A kill leaves the child as a group of ValueError and Cancelled: only the error counts."""
    trace = Trace()

    async def clumsy() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in finally")

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "A")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clumsy)
            nursery.start_soon(trio.sleep_forever)
            ctx.started()

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start, shutdown=Shutdown.KILL)], listener=trace.listen
    ) as system:
        await trio.sleep(1)
    assert trace.names("start") == ["A"]
    [late] = system.report.errors
    assert [type(e) for e in leaves(late.error)] == [ValueError]
    [exited] = trace.of(Exited)
    assert isinstance(exited.exit, Crashed)


async def test_check07_24_a_group_is_one_crash(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "A")
        ctx.started()
        if ctx.incarnation == 1:
            raise ExceptionGroup("two", [ValueError(), OSError()])
        await ctx.stop_requested.wait()

    async with open_actor_system(children=[ChildSpec(id="A", start=start)]) as system:
        await trio.sleep(1)
        assert trace.names("start") == ["A", "A"]
        assert len(system._supervisor._plan.window.times) == 1


def _raise(error: BaseException) -> None:
    raise error


def _interrupt_myself() -> None:
    signal.raise_signal(signal.SIGINT)
    for _ in range(1000):
        pass


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("act", "types"),
    [
        pytest.param(
            lambda: _raise(BaseExceptionGroup("both", [ValueError(), KeyboardInterrupt()])),
            {ValueError, KeyboardInterrupt},
            id="check07_25",
        ),
        pytest.param(lambda: _raise(KeyboardInterrupt()), {KeyboardInterrupt}, id="check07_26_ki"),
        pytest.param(lambda: _raise(SystemExit(3)), {SystemExit}, id="check07_26_exit"),
        pytest.param(_interrupt_myself, {KeyboardInterrupt}, id="check07_26_sigint"),
    ],
)
async def test_check07_25_26_fatal_exceptions(
    autojump_clock: trio.testing.MockClock,
    act: Callable[[], None],
    types: set[type[BaseException]],
    nested: bool,
) -> None:
    """Nothing is restarted, everybody stops in order, and all leaves reach the caller."""
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "B")
        ctx.started()
        await trio.sleep(1)
        try:
            act()
        finally:
            trace.add("end", "B")

    children = [worker(trace, "A", stop_s=1), ChildSpec(id="B", start=start), worker(trace, "C")]
    if nested:
        children = [supervisor(id="group", children=children, intensity=MANY)]
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_actor_system(children=children, intensity=MANY):
            await trio.sleep_forever()
    assert {type(e) for e in leaves(caught.value)} == types
    assert trace.names("start") == ["A", "B", "C"]
    assert trace.names("end") == ["B", "C", "A"]
    assert trio.current_time() == 2


async def test_fatal_exception_while_starting(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with open_actor_system(children=[worker(trace, "A"), ChildSpec(id="B", start=start)]):
            raise AssertionError("not reached")
    assert trace.names("end") == ["A"]


async def test_check07_27_two_interrupts() -> None:
    """Real signals on the real clock: the first stops, the second is the hard stop."""
    trace = Trace()
    began = trio.current_time()

    async def stubborn(ctx: Context[object]) -> None:
        ctx.started()
        await trio.sleep_forever()

    async def interrupt_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        while not trace.of(StopRequested):
            await trio.lowlevel.checkpoint()
        signal.raise_signal(signal.SIGINT)

    children = [ChildSpec(id=n, start=stubborn, shutdown=Shutdown.within(60)) for n in "ABC"]

    async def run() -> None:
        async with open_actor_system(children=children, listener=trace.listen):
            trio.lowlevel.spawn_system_task(interrupt_twice)
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        await run()
    # The bound is far below one grace; no machine is that slow.
    assert trio.current_time() - began < 20
    assert [e.path for e in trace.of(GraceExpired)] == ["C", "B", "A"]
    assert [e.exit for e in trace.of(Exited)] == [Killed()] * 3


async def test_check07_28_hard_stop_reaches_every_level(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    leaf = worker(trace, "leaf", stop_s=100, shutdown=Shutdown.within(60))
    async with open_actor_system(children=[supervisor(id="group", children=[leaf])]) as system:
        await trio.sleep(1)
        system.stop()
        await trio.sleep(1)
        system.hard_stop()
        await system.wait_stopped()
        assert trio.current_time() == 2
    assert trace.at("end") == {"leaf": 2}


async def test_hard_stop_ends_even_an_infinite_grace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    leaf = worker(Trace(), "leaf", stop_s=1e9, shutdown=Shutdown.INFINITY)
    async with open_actor_system(children=[leaf]) as system:
        system.hard_stop()
        await system.wait_stopped()
        assert trio.current_time() == 0
        assert system.report.killed == ("leaf",)


async def test_check07_42_interrupted_work_is_not_an_attempt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A handler cut off by the stop gives its work back in a shielded cleanup, uncounted."""
    given_back: list[tuple[str, int]] = []

    async def consumer(ctx: Context[tuple[str, int]]) -> None:
        ctx.started()
        async for work, attempts in ctx:
            finished = False
            try:
                await trio.sleep(100)
                finished = True
            except ValueError:
                given_back.append((work, attempts + 1))
            finally:
                if not finished:
                    with trio.move_on_after(1, shield=True):
                        await trio.sleep(0.5)
                        given_back.append((work, attempts))

    trace = Trace()
    async with open_actor_system(
        children=[ChildSpec(id="A", start=consumer, shutdown=Shutdown.within(2))],
        listener=trace.listen,
    ) as system:
        await system.ref("A").tell(("order", 2))
        await trio.sleep(1)
    assert given_back == [("order", 2)]
    assert trio.current_time() == 3.5
    assert [e.exit for e in trace.of(Exited)] == [Killed()]
    assert system.report.errors == ()


async def test_a_child_that_catches_cancelled_is_hit_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hits: list[float] = []

    async def start(ctx: Context[object]) -> None:
        ctx.started()
        for _ in range(3):
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                hits.append(trio.current_time())

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start, shutdown=Shutdown.within(1))]
    ):
        pass
    assert hits == [1, 1, 1]


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
