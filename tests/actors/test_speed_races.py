"""Races of what the core does for speed; the essays at the top of its modules name them.

`_pool_plan` (one child's share of the plan at a time), `_stop_many` (one task stops them all),
`_gate` (an event made when somebody waits), and what `Context` makes only when it is needed.
"""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors._errors import UsageError
from shove_actors.actors import (
    ActorGone,
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    DynamicSupervisor,
    Ended,
    GraceExpired,
    Intensity,
    Killed,
    LateError,
    Overrun,
    Restart,
    Returned,
    Shutdown,
    Stopped,
    open_actor_system,
    supervisor,
)
from shove_actors.actors._gate import Gate
from shove_actors.actors._plan import PlanState, begin, decide
from shove_actors.actors._plan_types import (
    Add,
    ChildDown,
    ChildRejected,
    ChildUp,
    GiveUp,
    Phase,
    PlanAction,
    PlanEvent,
    PlanSlot,
    Remove,
    StartChild,
    Tick,
)
from shove_actors.actors._pool_plan import PoolPlan

from .kit import MANY, Trace, worker

# ------------------------------------------------------------------------------ the split plan


def in_any_order(actions: tuple[PlanAction, ...]) -> list[str]:
    return sorted(map(repr, actions))


def plausible_event(rng: random.Random, state: PlanState, count: int) -> PlanEvent:
    """An event that could come now: an answer to what was ordered, a request, or time."""
    answers: list[PlanEvent] = []
    for slot in state.slots.values():
        exit_ = rng.choice([Crashed(error=ValueError(slot.id)), Returned(), Stopped(), Killed()])
        draw = rng.random()
        if slot.phase is Phase.STARTING:
            answers.append(ChildUp(id=slot.id))
            if rng.random() < 0.3:
                answers.append(ChildRejected(id=slot.id, error=OSError(slot.id), draw=draw))
        elif slot.phase in (Phase.UP, Phase.DOOMED, Phase.STOPPING):
            answers.append(ChildDown(id=slot.id, exit=exit_, draw=draw))
    free = [f"c{n}" for n in range(6) if f"c{n}" not in state.slots]
    if free and rng.random() < 0.3:
        backoff = rng.choice([None, Backoff(initial_s=1.0, max_s=4.0, jitter=0.5)])
        restart = rng.choice(list(Restart))
        return Add(slot=PlanSlot(id=rng.choice(free), restart=restart, backoff=backoff))
    if rng.random() < 0.15:
        # Now and then one that is not there any more.
        return Remove(id=f"c{rng.randrange(6)}")
    return rng.choice(answers) if answers and rng.random() < 0.8 else Tick()


@pytest.mark.parametrize("budget", [None, 2, 6])
def test_race_split_plan_is_the_whole_plan(budget: int | None) -> None:
    over = starts = 0
    for seed in range(120):
        rng = random.Random(seed)
        intensity = Intensity(max_restarts=budget, period_s=20)
        whole, split = begin((), strategy=None, intensity=intensity), PoolPlan(intensity)
        now = 0.0
        for count in range(80):
            # Small steps, the exact time of the next timer, and well past several of them.
            now += rng.choice([0.0, 0.0, 0.3, 1.0, 6.0])
            if whole.wake_at is not None and rng.random() < 0.4:
                now = max(now, whole.wake_at)
            event = plausible_event(rng, whole, count)
            whole, expected = decide(whole, event, now)
            actions = split.decide(event, now)
            assert in_any_order(actions) == in_any_order(expected), (seed, count, event)
            assert dict(split.slots) == whole.slots, (seed, count, event)
            assert split.shared.window == whole.window
            assert split.shared.over == whole.over
            assert split.shared.ready == whole.ready
            assert split.shared.wake_at == whole.wake_at, (seed, count, event)
            starts += sum(isinstance(action, StartChild) for action in actions)
            if whole.over:
                over += 1
                break
    # The comparison saw what it is about.
    assert starts > 100
    assert over == 0 if budget is None else over > 0


def test_race_old_timer_of_a_child_added_again() -> None:
    plan = PoolPlan(Intensity(max_restarts=None))

    def crash(id_: str) -> ChildDown:
        return ChildDown(id=id_, exit=Crashed(error=ValueError()))

    def add(id_: str, pause: float, now: float) -> None:
        backoff = Backoff(initial_s=pause, max_s=pause)
        plan.decide(Add(slot=PlanSlot(id=id_, backoff=backoff)), now)
        plan.decide(ChildUp(id=id_), now)

    # "b" comes first, so that the old timer of "a" is not at the top when "a" goes.
    add("a", 5.0, 0.0)
    add("b", 3.0, 0.0)
    plan.decide(crash("a"), 0.0)
    plan.decide(crash("b"), 0.0)
    assert plan.shared.wake_at == 3.0
    plan.decide(Remove(id="a"), 1.0)
    add("a", 9.0, 1.0)
    plan.decide(crash("a"), 2.0)
    assert plan.decide(Tick(), 3.0) == (StartChild(id="b"),)
    assert plan.shared.wake_at == 11.0
    assert plan.decide(Tick(), 5.0) == ()
    assert plan.decide(Tick(), 11.0) == (StartChild(id="a"),)
    assert plan.shared.wake_at is None


def test_race_nothing_is_started_after_the_budget_is_used_up() -> None:
    plan = PoolPlan(Intensity(max_restarts=1, period_s=60))
    for id_ in ("a", "b"):
        plan.decide(Add(slot=PlanSlot(id=id_, backoff=Backoff(initial_s=1, max_s=1))), 0.0)
        plan.decide(ChildUp(id=id_), 0.0)
    plan.decide(ChildDown(id="a", exit=Crashed(error=ValueError())), 0.0)
    # "a" is due in the very turn in which "b" goes over the budget.
    actions = plan.decide(ChildDown(id="b", exit=Crashed(error=ValueError())), 1.0)
    assert [type(action) for action in actions] == [GiveUp]
    assert plan.shared.over
    assert plan.shared.wake_at is None


async def test_race_a_pool_of_many_in_backoff_wakes_each_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    starts: dict[str, list[float]] = {}

    def child(n: int) -> ChildSpec:
        async def start(ctx: Context[Any]) -> None:
            starts.setdefault(ctx.name, []).append(trio.current_time())
            ctx.started()
            if ctx.incarnation == 1:
                raise ValueError
            await ctx.stop_requested.wait()

        pause = 1.0 + n % 7
        backoff = Backoff(initial_s=pause, max_s=pause)
        return ChildSpec(id=f"c{n}", start=start, backoff=backoff)

    pool = DynamicSupervisor(intensity=Intensity(max_restarts=None))
    async with open_actor_system(children=[pool.spec(id="pool")]):
        begun = trio.current_time()
        for n in range(50):
            await pool.start_child(child(n))
        await trio.sleep(20)
        for n in range(50):
            assert [t - begun for t in starts[f"c{n}"]] == [0.0, 1.0 + n % 7]


# ------------------------------------------------------------------------------ one stop for all


async def test_race_ends_in_every_turn_are_all_seen() -> None:
    """Ends spread over many turns, on the real clock: one slept over would hang here."""
    trace = Trace()

    def child(n: int) -> ChildSpec:
        async def start(ctx: Context[Any]) -> None:
            ctx.started()
            await ctx.stop_requested.wait()
            for _ in range(n % 10):
                await trio.lowlevel.checkpoint()

        return ChildSpec(id=f"c{n}", start=start, shutdown=Shutdown.INFINITY)

    for _ in range(20):
        trace.events.clear()
        pool = DynamicSupervisor(intensity=MANY)
        with trio.fail_after(30):
            async with open_actor_system(
                children=[pool.spec(id="pool")], listener=trace.listen
            ) as system:
                for n in range(40):
                    await pool.start_child(child(n))
        assert len({event.path for event in trace.of(Ended)}) == 41
        assert all(isinstance(e.exit, Stopped) for e in trace.of(Ended) if "/" in e.path)
        assert system.report.clean
        assert system.report.killed == ()


async def test_race_end_and_expiry_in_one_turn(autojump_clock: trio.testing.MockClock) -> None:
    """A child that ends in the turn in which its grace ends is either asked or killed, not both.

    Who comes first is the scheduler's choice, so there are many of them.
    """
    trace = Trace()
    stopped = killed = 0

    def child(n: int) -> ChildSpec:
        async def start(ctx: Context[Any]) -> None:
            ctx.started()
            await ctx.stop_requested.wait()
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
                for _ in range(n % 4):
                    await trio.lowlevel.checkpoint()

        return ChildSpec(id=f"c{n}", start=start, shutdown=Shutdown.within(2))

    for _ in range(10):
        trace.events.clear()
        pool = DynamicSupervisor(intensity=MANY)
        async with open_actor_system(
            children=[pool.spec(id="pool")], listener=trace.listen
        ) as system:
            for n in range(20):
                await pool.start_child(child(n))
        for n in range(20):
            path = f"pool/c{n}"
            [ended] = trace.of(Ended, path)
            expired = len(trace.of(GraceExpired, path))
            assert (expired, system.report.killed.count(path)) in ((0, 0), (1, 1))
            if expired:
                killed += 1
            else:
                assert isinstance(ended.exit, Stopped)
                stopped += 1
            # It left its shield after it was cancelled, or ended before anybody looked.
            assert isinstance(ended.exit, Killed) is (expired == 1)
    assert stopped > 0
    assert killed > 0


async def test_race_hard_stop_with_a_child_that_will_not_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()
    turns = 0

    class Turns(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            nonlocal turns
            turns += 1

    async def stubborn(ctx: Context[Any]) -> None:
        with trio.CancelScope(shield=True):
            ctx.started()
            await trio.sleep(30)

    pool = DynamicSupervisor(intensity=MANY)
    async with open_actor_system(children=[pool.spec(id="pool")], listener=trace.listen) as system:
        grace = Shutdown.within(100)
        await pool.start_child(
            ChildSpec(id="stubborn", start=stubborn, shutdown=grace, overrun_s=10)
        )
        for n in range(5):
            await pool.start_child(worker(trace, f"slow{n}", stop_s=90, shutdown=grace))
        begun = trio.current_time()
        system.stop()
        await trio.sleep(1)
        trio.lowlevel.add_instrument(Turns())
        system.hard_stop()
        await system.wait_stopped()
    ends = {path: t - begun for path, t in ((e.path, e.at) for e in trace.of(Ended))}
    assert ends["pool/slow0"] == 1.0
    assert ends["pool/stubborn"] == 30.0
    assert [event.at - begun for event in trace.of(Overrun)] == [11.0, 21.0]
    assert sorted(system.report.killed) == [f"pool/slow{n}" for n in range(5)] + ["pool/stubborn"]
    assert len(trace.of(GraceExpired)) == 6
    # Waiting for the stubborn one did not spin.
    assert turns < 200


async def test_race_stop_of_all_takes_over_a_single_stop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A child being stopped by itself keeps the grace it was given when the pool stops too."""
    trace = Trace()
    pool = DynamicSupervisor(intensity=MANY)
    async with (
        open_actor_system(children=[pool.spec(id="pool")], listener=trace.listen) as system,
        trio.open_nursery() as nursery,
    ):
        ref = await pool.start_child(worker(trace, "a", stop_s=1000, shutdown=Shutdown.within(50)))
        begun = trio.current_time()

        async def stop_it() -> None:
            await pool.stop_child(ref, grace_s=5)

        nursery.start_soon(stop_it)
        await trio.sleep(2)
        system.stop()
    [ended] = trace.of(Ended, "pool/a")
    assert ended.at - begun == 5
    assert system.report.killed == ("pool/a",)
    assert len(trace.of(GraceExpired)) == 1


async def test_race_stop_of_all_does_not_report_overruns_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    trace = Trace()

    async def stubborn(ctx: Context[Any]) -> None:
        with trio.CancelScope(shield=True):
            ctx.started()
            await trio.sleep(12)

    pool = DynamicSupervisor(intensity=MANY)
    async with (
        open_actor_system(children=[pool.spec(id="pool")], listener=trace.listen) as system,
        trio.open_nursery() as nursery,
    ):
        begun = trio.current_time()
        ref = await pool.start_child(ChildSpec(id="a", start=stubborn, overrun_s=3))

        async def stop_it() -> None:
            await pool.stop_child(ref, grace_s=1)

        nursery.start_soon(stop_it)
        await trio.sleep(8)
        system.stop()
    assert [event.at - begun for event in trace.of(Overrun)] == [4.0, 7.0, 10.0]
    assert system.report.killed == ("pool/a",)


async def test_race_asked_crash_nobody_has_looked_at_is_reported_once() -> None:
    pool = DynamicSupervisor(intensity=MANY)

    async def start(ctx: Context[Any]) -> None:
        ctx.started()
        await ctx.stop_requested.wait()
        # The pool's loop is cancelled before it can take the exit out of its queue.
        assert pool._running is not None
        pool._running.request_stop(False)
        raise ValueError("asked, and crashed")

    async with open_actor_system(children=[pool.spec(id="pool")]) as system:
        ref = await pool.start_child(ChildSpec(id="a", start=start))
        await pool.stop_child(ref)
        assert [error.path for error in system.report.errors] == ["pool/a"]


async def test_race_pool_stop_meets_starts_backoffs_and_trees(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Whatever a child is doing at that moment, it ends, and its slot with it."""
    trace = Trace()

    async def never_ready(ctx: Context[Any]) -> None:
        await trio.sleep_forever()

    async def crashes(ctx: Context[Any]) -> None:
        ctx.started()
        raise ValueError

    pool = DynamicSupervisor(intensity=Intensity(max_restarts=100, period_s=60))
    async with (
        open_actor_system(children=[pool.spec(id="pool")], listener=trace.listen) as system,
        trio.open_nursery() as nursery,
    ):
        failed: list[BaseException] = []

        async def start(spec: ChildSpec) -> None:
            try:
                await pool.start_child(spec)
            except ActorGone as exc:
                failed.append(exc)

        backoff = Backoff(initial_s=500, max_s=500)
        await pool.start_child(ChildSpec(id="waits", start=crashes, backoff=backoff))
        await pool.start_child(supervisor(id="tree", children=[worker(trace, "leaf", stop_s=3)]))
        await pool.start_child(worker(trace, "brutal", stop_s=100, shutdown=Shutdown.KILL))
        await pool.start_child(worker(trace, "plain", stop_s=1))
        nursery.start_soon(start, ChildSpec(id="starting", start=never_ready))
        await trio.testing.wait_all_tasks_blocked()
        refs = {ref.id: ref for ref in pool.children}
        begun = trio.current_time()
        system.stop()
        await system.wait_stopped()
        assert trio.current_time() - begun == 3.0
    assert len(failed) == 1
    assert set(refs) == {"waits", "tree", "brutal", "plain", "starting"}
    assert all(ref.ended for ref in refs.values())
    assert system.report.killed == ("pool/brutal",)
    assert len(pool) == 0


async def test_crash_of_a_whole_pool_at_the_stop_is_reported_once_each() -> None:
    async def start(ctx: Context[Any]) -> None:
        ctx.started()
        await ctx.stop_requested.wait()
        raise ValueError(ctx.name)

    pool = DynamicSupervisor(intensity=MANY)
    async with open_actor_system(children=[pool.spec(id="pool")]) as system:
        for n in range(30):
            await pool.start_child(ChildSpec(id=f"c{n}", start=start))
    late = system.report.errors
    assert all(isinstance(error, LateError) for error in late)
    assert sorted(error.path for error in late) == sorted(f"pool/c{n}" for n in range(30))


# ------------------------------------------------------------------------------ made when needed


async def test_race_gate_wakes_whoever_came_before() -> None:
    gate = Gate()
    woken: list[int] = []

    async def wait(n: int) -> None:
        await gate.wait()
        woken.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(3):
            nursery.start_soon(wait, n)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        assert not gate.is_set()
        # One more that is scheduled, but has not come to wait when the gate opens.
        nursery.start_soon(wait, 3)
        gate.set()
        gate.set()
    assert sorted(woken) == [0, 1, 2, 3]
    assert gate.is_set()
    with trio.testing.assert_checkpoints():
        await gate.wait()


async def test_race_gate_survives_a_cancelled_waiter() -> None:
    gate = Gate()
    with trio.move_on_after(0) as scope:
        await gate.wait()
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.wait)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()


async def test_race_stop_event_asked_for_after_the_stop() -> None:
    """`ctx.stop_requested` is made when first used: before, during or after the request."""
    seen: list[tuple[bool, bool]] = []

    async def start(ctx: Context[Any]) -> None:
        ctx.started()
        async for _ in ctx:
            raise AssertionError("no message was sent")
        event = ctx.stop_requested
        seen.append((event.is_set(), event is ctx.stop_requested))
        await event.wait()

    async with open_actor_system(children=[ChildSpec(id="a", start=start)]):
        pass
    assert seen == [(True, True)]


async def test_loop_refuses_to_receive_before_started() -> None:
    """The written-out loop keeps the check of `receive`."""

    async def start(ctx: Context[Any]) -> None:
        with pytest.raises(UsageError, match="before"):
            async for _ in ctx:
                pass
        ctx.started()
        async for message in ctx:
            ctx.reply(message)

    async with open_actor_system(children=[ChildSpec(id="a", start=start)]) as system:
        assert await system.ref("a").ask(7, timeout=5) == 7


async def test_loop_ends_the_ask_before_by_taking_the_next() -> None:
    async def start(ctx: Context[Any]) -> None:
        ctx.started()
        async for message in ctx:
            if message != "ignore":
                ctx.reply(message)

    async with open_actor_system(children=[ChildSpec(id="a", start=start)]) as system:
        ref = system.ref("a")
        async with trio.open_nursery() as nursery:

            async def ask_in_vain() -> None:
                with pytest.raises(ActorGone):
                    await ref.ask("ignore", timeout=5)

            nursery.start_soon(ask_in_vain)
        assert await ref.ask("next", timeout=5) == "next"
        await ref.tell("told")
        # A told message has no port: nothing to reply to, and no leftovers of the one before.
        assert await ref.ask("last", timeout=5) == "last"


async def test_a_started_actor_does_not_keep_the_nursery_of_its_start() -> None:
    nurseries: list[weakref.ref[trio.Nursery]] = []

    async def start(ctx: Context[Any]) -> None:
        nursery = trio.lowlevel.current_task().parent_nursery
        assert nursery is not None
        nurseries.append(weakref.ref(nursery))
        del nursery
        ctx.started()
        await ctx.stop_requested.wait()

    async with open_actor_system(children=[ChildSpec(id="a", start=start)]) as system:
        assert system.ref("a").path == "a"
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert nurseries[0]() is None
