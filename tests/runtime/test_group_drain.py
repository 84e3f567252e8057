"""Groups: an orderly drain, whoever asks for it."""

from __future__ import annotations

import os
import signal

import pytest
import trio
import trio.testing

from shove_actors import Outcome, SupervisorOutcome
from tests.support import wait_until

from .fixtures import Clock
from .slow import Slow
from .world import SOON_S, Order, Script, World, ack, consuming, until

# ------------------------------------------------------------------ draining


async def test_drain_lets_running_handlers_finish_and_gives_back_the_rest(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    slow = Slow()
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(6)])
        async with consuming(broker, topic, slow, consumers=2, prefetch=3) as run:
            await slow.started.until(2)
            await world.until_in_hand(broker, topic.queue, held=6)
            run.group.stop()
            lane = run.group._registrations[0].lanes[0]
            await until(lambda: len(lane.held) == 2)
            assert not run.ended.is_set()
            slow.let_go.set()
            outcome = await run.end()
        assert outcome == SupervisorOutcome()
        assert outcome.exit_code == 0
        assert len(slow.started) == 2
        assert len(await world.kept(broker, topic.queue)) == 4


async def test_drain_timeout_cancels_and_gives_back_without_counting(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    slow, second = Slow(), Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, slow, drain_timeout=0.2, ack_wait=60) as run:
            await slow.started.until(1)
            before = trio.current_time()
            outcome = await run.stop()
        assert trio.current_time() - before >= 0.19
        assert (outcome.timed_out, outcome.exit_code) == (True, 3)
        assert (outcome.errors, outcome.panics) == (0, 0)
        assert slow.cancelled == ["x"]
        async with consuming(broker, topic, second, ack_wait=60):
            await second.journal.until(1)
            assert trio.current_time() - before < SOON_S
    [metadata] = second.seen
    assert metadata.retry_count == 0


@pytest.mark.parametrize("timeout", [0.0, 1.0])
async def test_no_time_out_is_reported_when_nothing_ran(
    memory_world: World, autojump_clock: trio.testing.MockClock, timeout: float
) -> None:
    topic = memory_world.topic()
    script = Script()
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script, drain_timeout=timeout) as run:
            await broker.publisher().publish(topic, Order("x"))
            await script.journal.until(1)
            await memory_world.until_settled(broker, topic.queue)
            assert (await run.stop()).exit_code == 0


async def test_drain_timeout_of_zero_cancels_at_once_and_says_so(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    slow, second = Slow(), Script()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, slow, drain_timeout=0.0) as run:
            await slow.started.until(1)
            before = trio.current_time()
            assert (await run.stop()).exit_code == 3
            assert trio.current_time() == before
        assert slow.cancelled == ["x"]
        async with consuming(broker, topic, second):
            await second.journal.until(1)
        assert second.journal.entries == [("x", 0)]


async def test_hard_stop_cancels_at_once(world: World, clock: Clock) -> None:
    topic = world.topic()
    slow, second = Slow(), Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("1"), Order("2")])
        async with consuming(
            broker, topic, slow, drain_timeout=3600, consumers=2, ack_wait=60
        ) as run:
            await slow.started.until(2)
            run.group.stop()
            run.group.stop()
            await trio.sleep(0.1)
            assert slow.cancelled == []
            run.group.hard_stop()
            run.group.hard_stop()
            outcome = await run.end()
        assert (outcome.timed_out, outcome.exit_code) == (True, 3)
        assert sorted(slow.cancelled) == ["1", "2"]
        async with consuming(broker, topic, second, ack_wait=60):
            await second.journal.until(2)
    assert {count for _, count in second.journal.entries} == {0}


async def test_hard_stop_of_an_idle_group_is_clean(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, ack, drain_timeout=3600) as run:
            run.group.hard_stop()
            assert (await run.end()).exit_code == 0


@pytest.mark.parametrize("how", ["hard stop", "drain timeout"])
@pytest.mark.parametrize("outcome", [Outcome.ACK, Outcome.REJECT, Outcome.RETRY])
async def test_handler_that_ends_with_an_outcome_although_cancelled_is_heard(
    memory_world: World, autojump_clock: trio.testing.MockClock, how: str, outcome: Outcome
) -> None:
    """Its work is done (or refused) for good: doing it again would be wrong."""
    topic = memory_world.topic(lambda b: b.hold_queue(3600).dlq())
    started = trio.Event()

    async def handle(message: Order) -> Outcome:
        started.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return outcome

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        timeout = 3600.0 if how == "hard stop" else 1.0
        async with consuming(broker, topic, handle, drain_timeout=timeout) as run:
            await started.wait()
            run.group.stop() if how == "drain timeout" else run.group.hard_stop()
            assert (await run.end()).timed_out
        places = [topic.queue, topic.topology.holds[0].name, topic.topology.dlq]
        counts = [len(await memory_world.kept(broker, place)) for place in places]
    assert counts == {
        Outcome.ACK: [0, 0, 0], Outcome.RETRY: [0, 1, 0], Outcome.REJECT: [0, 0, 1],
    }[outcome]  # fmt: skip


async def test_cancelled_serve_drains(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    slow = Slow()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("1"), Order("2")])
        group = broker.consumer_group()
        group.register(topic, slow)
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            await slow.started.until(1)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
                slow.let_go.set()
        assert slow.finished == ["1"]
        assert group.outcome.is_clean
        [left] = await memory_world.kept(broker, topic.queue)
        assert topic.decode(left.payload) == Order("2")
        assert broker.groups.children == ()


async def test_cancelled_in_the_middle_of_the_start(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """At any moment of it: nothing stays behind, and the next group works."""
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        for steps in range(12):
            group = broker.consumer_group()
            group.register(topic, ack, consumers=3)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(group.serve)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await trio.sleep(1)
            assert broker.groups.children == ()
            assert not broker.leases._lanes
        script = Script()
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("x"))
            await script.journal.until(1)


# ------------------------------------------------------------------ signals


async def test_run_until_any_async_function(world: World, clock: Clock) -> None:
    topic = world.topic()
    script = Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, script)

        async def handled() -> None:
            await script.journal.until(1)

        with trio.fail_after(SOON_S):
            assert (await group.run_until(handled, drain_timeout=5)).exit_code == 0
        assert await world.kept(broker, topic.queue) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_run_until_a_signal_by_default(memory_world: World, number: signal.Signals) -> None:
    topic = memory_world.topic()
    slow = Slow()
    async with memory_world.broker(topic) as broker, trio.open_nursery() as nursery:
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, slow)

        async def send() -> None:
            await slow.started.until(1)
            os.kill(os.getpid(), number)
            await wait_until(lambda: group.stopping)
            slow.let_go.set()

        nursery.start_soon(send)
        with trio.fail_after(SOON_S):
            outcome = await group.run_until()
    assert outcome.exit_code == 0
    assert slow.finished == ["x"]


async def test_second_signal_cancels_handlers_at_once(memory_world: World) -> None:
    topic = memory_world.topic()
    slow = Slow()
    async with memory_world.broker(topic) as broker, trio.open_nursery() as nursery:
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, slow)

        async def send() -> None:
            await slow.started.until(1)
            os.kill(os.getpid(), signal.SIGTERM)
            await wait_until(lambda: group.stopping)
            os.kill(os.getpid(), signal.SIGTERM)

        nursery.start_soon(send)
        with trio.fail_after(SOON_S):
            outcome = await group.run_until(drain_timeout=3600)
    assert outcome.exit_code == 3
    assert slow.cancelled == ["x"]


async def test_failing_signal_function_drains_and_is_raised(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    slow = Slow()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, slow)

        async def broken() -> None:
            await slow.started.until(1)
            slow.let_go.set()
            raise ValueError("no signal")

        with pytest.raises(ValueError, match="no signal"):
            await group.run_until(broken)
        assert slow.finished == ["x"]
        assert group.outcome.is_clean
