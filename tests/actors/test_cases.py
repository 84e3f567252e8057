"""Cases from the field that concern actors alone. Names start with the case's id."""

from __future__ import annotations

import sys

import pytest
import trio
import trio.testing

from shove_actors.actors import (
    ActorGone,
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    DynamicSupervisor,
    Exited,
    Intensity,
    Restart,
    RestartIntensityExceeded,
    Shutdown,
    Started,
    StartFailed,
    StartRejected,
    open_actor_system,
    supervisor,
)

from .kit import MANY, UNLIMITED, Trace, crasher, echo, leaves, run_until_failed, worker

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


@pytest.mark.parametrize(("settle_s", "settled"), [(1, True), (100, False)])
async def test_pc100_cleanup_is_shielded_and_bounded(
    autojump_clock: trio.testing.MockClock, settle_s: float, settled: bool
) -> None:
    """Killed between handling and settling: settling gets its own short time, and no more."""
    acks: list[float] = []

    async def lane(ctx: Context[object]) -> None:
        ctx.started()
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(2, shield=True):
                await trio.sleep(settle_s)
                acks.append(trio.current_time())

    async with open_actor_system(
        children=[ChildSpec(id="lane", start=lane, shutdown=Shutdown.KILL)]
    ) as system:
        await trio.sleep(1)
    assert acks == ([2] if settled else [])
    assert trio.current_time() == (2 if settled else 3)
    assert system.report.clean


async def test_pc100_the_handlers_own_error_stays_visible(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()

    async def lane(ctx: Context[object]) -> None:
        ctx.started()
        try:
            await trio.sleep(1)
            raise ValueError("the handler's")
        finally:
            with trio.move_on_after(2, shield=True):
                await trio.sleep(100)

    async with open_actor_system(
        children=[ChildSpec(id="lane", start=lane, shutdown=Shutdown.KILL)], listener=trace.listen
    ):
        # The stop arrives while the clean-up is under way.
        await trio.sleep(2)
    [exited] = trace.of(Exited)
    assert isinstance(exited.exit, Crashed)
    assert str(exited.exit.error) == "the handler's"


async def test_pc102_error_in_a_cancelled_supervisor(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A handler raises while everything is cancelled: reported with its type, cancel goes on."""

    async def handler(ctx: Context[object]) -> None:
        ctx.started()
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("during cancellation")

    group = supervisor(id="g", children=[ChildSpec(id="A", start=handler, shutdown=Shutdown.KILL)])
    with trio.move_on_at(1) as scope:
        async with open_actor_system(children=[group]) as system:
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert [(e.path, type(e.error)) for e in system.report.errors] == [("g/A", ValueError)]


async def test_pc102_two_handlers_raise_together(autojump_clock: trio.testing.MockClock) -> None:
    trace, gate = Trace(), trio.Event()

    async def fail(error: Exception) -> None:
        await gate.wait()
        raise error

    async def start(ctx: Context[object]) -> None:
        async with trio.open_nursery() as nursery:
            ctx.started()
            if ctx.incarnation == 1:
                nursery.start_soon(fail, ValueError())
                nursery.start_soon(fail, OSError())
            await ctx.stop_requested.wait()

    async with open_actor_system(
        children=[ChildSpec(id="A", start=start)], listener=trace.listen
    ) as system:
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        [exited] = trace.of(Exited)
        assert isinstance(exited.exit, Crashed)
        assert {type(e) for e in leaves(exited.exit.error)} == {ValueError, OSError}
        assert system.snapshot().children[0].restarts == 1


async def test_pc102_interrupt_is_never_a_retry(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        trace.add("start", "A")
        ctx.started()
        await trio.sleep(1)
        raise KeyboardInterrupt

    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_actor_system(children=[ChildSpec(id="A", start=start)], intensity=MANY):
            await trio.sleep_forever()
    assert [type(e) for e in leaves(caught.value)] == [KeyboardInterrupt]
    assert trace.names("start") == ["A"]


async def test_pc102_exit_hidden_in_a_group_with_the_cancellation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Error, exit and cancellation arrive together: the first two are raised, the last goes on."""

    async def handler(ctx: Context[object]) -> None:
        async def cleanup(error: BaseException) -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cleanup, ValueError("during cancellation"))
            nursery.start_soon(cleanup, SystemExit(7))
            nursery.start_soon(trio.sleep_forever)
            ctx.started()

    async def run() -> None:
        child = ChildSpec(id="A", start=handler, shutdown=Shutdown.KILL)
        async with open_actor_system(children=[supervisor(id="g", children=[child])]) as system:
            system.add_listener(trace.listen)
            await trio.sleep_forever()

    trace = Trace()
    with pytest.raises(BaseExceptionGroup) as caught:
        with trio.move_on_at(1) as scope:
            await run()
    # Trio keeps a cancellation that meets an error inside the group until its own scope.
    assert {type(e) for e in leaves(caught.value)} == {ValueError, SystemExit}
    assert scope.cancel_called
    assert trio.current_time() == 1
    assert trace.of(Started) == []


@pytest.mark.parametrize("restart", [Restart.TEMPORARY, Restart.TRANSIENT])
async def test_pc112_error_in_start_up_is_not_masked(
    autojump_clock: trio.testing.MockClock, restart: Restart
) -> None:
    """Initialisation raises at the first start, and after that at a restart.

    Both times the original error reaches the supervisor, and nothing is cleaned up that was
    never set up.
    """
    trace = Trace()

    async def start(ctx: Context[object]) -> None:
        resource: list[str] | None = None
        if ctx.incarnation == failing:
            raise OSError("the real reason")
        resource = ["set up"]
        try:
            ctx.started()
            await trio.sleep(1)
            raise ValueError("later")
        finally:
            trace.add("terminate", resource[0])

    spec = ChildSpec(id="A", start=start, restart=restart)
    failing = 1
    with pytest.raises(StartFailed, match="'g'") as caught:
        async with open_actor_system(children=[supervisor(id="g", children=[spec])]):
            raise AssertionError("not reached")
    # One `StartFailed` for each supervisor that could not start, then the reason itself.
    chain: list[BaseException] = []
    error: BaseException | None = caught.value
    while error is not None:
        chain.append(error)
        error = error.__cause__
    assert [type(e) for e in chain] == [StartFailed, StartFailed, OSError]
    assert "'g/A'" in str(chain[1])
    assert str(chain[-1]) == "the real reason"
    assert trace.entries == []

    failing = 2
    if restart is Restart.TEMPORARY:
        return
    failure = await run_until_failed(spec, listener=trace.listen)
    assert isinstance(failure, RestartIntensityExceeded)
    assert isinstance(failure.__cause__, StartFailed)
    assert isinstance(failure.__cause__.__cause__, OSError)
    [rejected] = trace.of(StartRejected)
    assert (rejected.path, rejected.incarnation) == ("A", 2)
    assert rejected.error is failure.__cause__
    assert trace.names("terminate") == ["set up"]


async def test_pc117_always_failing_is_paced_and_bounded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    failure = await run_until_failed(
        crasher(trace, "A", backoff=Backoff(initial_s=0.25, max_s=30)),
        intensity=Intensity(max_restarts=5, period_s=60),
    )
    assert isinstance(failure, RestartIntensityExceeded)
    assert trace.times("start") == [0, 0.25, 0.75, 1.75, 3.75, 7.75]


async def test_pc117_a_crash_every_ten_seconds_is_tolerated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    async with open_actor_system(
        children=[crasher(trace, "A", after_s=10)], intensity=Intensity(max_restarts=1, period_s=5)
    ):
        await trio.sleep(605)
    assert len(trace.names("start")) == 61


async def test_pc117_an_outage_of_thirty_seconds(autojump_clock: trio.testing.MockClock) -> None:
    """Unlimited with backoff where the cause is the network: few tries, prompt recovery."""
    trace = Trace()

    async def bridge(ctx: Context[object]) -> None:
        trace.add("try", "bridge")
        if 10 <= trio.current_time() < 40:
            raise OSError("server is down")
        ctx.started()
        trace.add("up", "bridge")
        if ctx.incarnation == 1:
            await trio.sleep_until(10)
            raise OSError("connection lost")
        await ctx.stop_requested.wait()

    backoff = Backoff(initial_s=0.25, max_s=30, jitter=0.2)
    async with open_actor_system(
        children=[ChildSpec(id="bridge", start=bridge, backoff=backoff)], intensity=UNLIMITED
    ):
        await trio.sleep(120)
    assert 5 <= len(trace.names("try")) <= 10
    [_, up_again] = trace.times("up")
    assert 40 <= up_again <= 78


async def test_pc118_one_workers_death(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    group = supervisor(
        id="group",
        children=[
            worker(trace, "w0"),
            crasher(trace, "w1", times=1, after_s=1),
            worker(trace, "w2"),
            worker(trace, "w3"),
        ],
    )
    async with open_actor_system(children=[group]) as system:
        await trio.sleep(5)
        assert trace.names("start") == ["w0", "w1", "w2", "w3", "w1"]
        assert trace.names("end") == ["w1"]
    assert system.report.clean


async def test_pc118_giving_up_is_no_success(autojump_clock: trio.testing.MockClock) -> None:
    trace = Trace()
    group = supervisor(
        id="group",
        children=[worker(trace, "w0"), crasher(trace, "w1", after_s=1)],
        restart=Restart.TRANSIENT,
    )
    failure = await run_until_failed(group, intensity=Intensity(max_restarts=0))
    assert isinstance(failure, RestartIntensityExceeded)
    assert "group" in str(failure)
    assert "'group/w1'" in str(failure.__cause__)


async def test_pc119_all_workers_gone(autojump_clock: trio.testing.MockClock) -> None:
    """Four workers end with an error each: whoever waits for the system is told at once."""
    workers = [crasher(Trace(), f"w{n}", after_s=1) for n in range(4)]
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_actor_system(
            children=[supervisor(id="group", children=workers, intensity=Intensity(max_restarts=0))]
        ) as system:
            await system.wait_stopped()
    # The group's first failure (t=1) uses up the root's one restart, the second (t=2) is final.
    assert trio.current_time() == 2
    assert {type(e) for e in leaves(caught.value)} == {RestartIntensityExceeded}
    assert not system.report.clean


async def test_pc122_stopping_one_group_leaves_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    groups = DynamicSupervisor()
    async with open_actor_system(children=[groups.spec(id="groups")]) as system:
        first = await groups.start_child(
            supervisor(id="g1", children=[ChildSpec(id="A", start=echo)])
        )
        await groups.start_child(supervisor(id="g2", children=[ChildSpec(id="A", start=echo)]))
        old = system.ref("groups/g1/A")
        await groups.stop_child(first)
        with pytest.raises(ActorGone):
            await old.tell("too late")
        assert await system.ref("groups/g2/A").ask("still there?") == "still there?"
