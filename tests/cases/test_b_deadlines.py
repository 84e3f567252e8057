"""Section B of the cases: leases, time-outs, and settles that come too late."""

from __future__ import annotations

import logging
import time

import pytest
import trio
import trio.testing

from shove_actors import MessageMetadata, Outcome, TopologyBuilder, open_broker
from shove_actors.backends.memory import MemoryConfig
from tests.runtime.fixtures import Clock
from tests.runtime.world import SOON_S, Journal, Order, Script, World, consuming

from .lanes import one_lane

# ------------------------------------------------------------------ PC-017


async def test_pc017_handler_that_outlives_ack_wait_runs_once(world: World, clock: Clock) -> None:
    """Two processes on one shard; the handler takes three leases."""
    topic = one_lane(TopologyBuilder(world.fresh()))
    runs: Journal[str] = Journal()
    done: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        runs.add(order.name)
        await trio.sleep(3.0)
        done.add(order.name)
        return Outcome.ACK

    async with world.broker(topic) as one, world.broker() as two:
        async with (
            consuming(one, topic, handle, ack_wait=1.0),
            consuming(two, topic, handle, ack_wait=1.0),
        ):
            await one.publisher().publish(topic, Order("slow", "k"))
            await done.until(1)
            await world.until_settled(one, topic.queue, topic.topology.shard_durable(0))
    assert runs.entries == ["slow"]


# ------------------------------------------------------------------ PC-019


async def test_pc019_blocking_function_runs_in_a_thread_and_keeps_its_lease(
    server_world: World,
) -> None:
    topic = server_world.topic()
    runs: list[str] = []
    done = trio.Event()

    def handle(order: Order) -> Outcome:
        runs.append(order.name)
        time.sleep(2.0)
        trio.from_thread.run_sync(done.set)
        return Outcome.ACK

    async with server_world.broker(topic) as broker:
        async with consuming(broker, topic, handle, ack_wait=1.0):
            await broker.publisher().publish(topic, Order("blocking"))
            with trio.fail_after(SOON_S):
                await done.wait()
            await server_world.until_settled(broker, topic.queue)
        assert broker.leases.late_ticks == 0
    assert runs == ["blocking"]


async def test_pc019_blocked_loop_is_reported_and_claims_no_success(
    server_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease ends while the loop stands still: the late settle is dropped, the message comes
    again, and somebody is told."""
    topic = server_world.topic()
    runs: Journal[int] = Journal()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        runs.add(metadata.num_delivered)
        if len(runs) == 1:
            time.sleep(1.5)  # noqa: ASYNC251 - what must not be done, done
        return Outcome.ACK

    with caplog.at_level(logging.WARNING):
        async with server_world.broker(topic) as broker:
            async with consuming(broker, topic, handle, ack_wait=0.6) as run:
                await broker.publisher().publish(topic, Order("blocking"))
                await runs.until(2)
                await server_world.until_settled(broker, topic.queue)
            assert broker.leases.late_ticks >= 1
    assert runs.entries[0] == 1
    assert runs.entries[1] > 1
    assert "event loop was blocked" in caplog.text
    assert "the settle is dropped" in caplog.text
    counted = run.group.statistics()[topic.queue]
    assert (counted["ack"], counted["lost"]) == (1, 1)


# ------------------------------------------------------------------ PC-020


async def test_pc020_late_settle_of_the_old_owner_is_dropped(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first worker is cut off, loses its lease and then says ACK; the second says RETRY. The
    second one's word counts, and nothing is published by the first."""
    assert memory_world.memory is not None
    topic = memory_world.topic()
    first_runs, second = trio.Event(), Script(outcomes={"x": [Outcome.RETRY]})

    async def stubborn(order: Order) -> Outcome:
        first_runs.set()
        with trio.CancelScope(shield=True):  # does not notice that it is being stopped
            await trio.sleep(5.0)
        return Outcome.ACK

    config = MemoryConfig(server=memory_world.memory, name="first")
    async with open_broker(config) as one, memory_world.broker() as two:
        await one.declare(topic)
        async with consuming(one, topic, stubborn, ack_wait=1.0, drain_timeout=30) as old:
            await one.publisher().publish(topic, Order("x"))
            await first_runs.wait()
            memory_world.memory.faults.disconnect("first")
            async with consuming(two, topic, second, ack_wait=1.0):
                await second.journal.until(1)
                memory_world.memory.faults.reconnect("first")
                await second.journal.until(2)
                await trio.sleep(10)
        await memory_world.until_settled(two, topic.queue)
        assert await memory_world.kept(two, topic.topology.holds[0].name) == []
    # The retry reached the second process (the first was busy until after it).
    assert second.attempts("x") == [0, 1]
    assert old.group.statistics()[topic.queue] == {"lost": 1}
    assert "could not be renewed" in caplog.text


async def test_pc020_old_owner_on_a_real_server(server_world: World) -> None:
    """A renewal that is never confirmed: the handler is cancelled before the lease is over, and
    its message is handled by the other process."""
    topic = server_world.topic()
    ends: Journal[str] = Journal()
    second = Script()

    async def slow(order: Order) -> Outcome:
        try:
            await trio.sleep(30)
            return Outcome.ACK
        finally:
            ends.add("cancelled")

    async with server_world.broker(topic) as one, server_world.broker() as two:
        async with consuming(one, topic, slow, ack_wait=1.0) as run:
            await one.publisher().publish(topic, Order("x"))
            await server_world.until_in_hand(one, topic.queue, held=1)
            # From here on nothing that the first process sends arrives.
            for lane in list(one.leases._lanes):
                lane.renew = lambda delivery: None  # type: ignore[method-assign]
            async with consuming(two, topic, second, ack_wait=1.0):
                await ends.until(1)
                assert second.journal.entries == []
                run.group.stop()
                await second.journal.until(1)
        await server_world.until_settled(two, topic.queue)
    assert run.group.statistics()[topic.queue] == {"lost": 1}


# ------------------------------------------------------------------ PC-021


@pytest.mark.parametrize("outcome", [Outcome.ACK, Outcome.RETRY])
async def test_pc021_next_message_of_a_key_waits_for_the_timed_out_handler(
    memory_world: World, autojump_clock: trio.testing.MockClock, outcome: Outcome
) -> None:
    topic = one_lane(TopologyBuilder(memory_world.fresh()))
    trace: Journal[tuple[str, str, float]] = Journal()

    async def handle(order: Order) -> Outcome:
        trace.add(("start", order.name, trio.current_time()))
        try:
            if len(trace) == 1:
                try:
                    await trio.sleep_forever()
                except trio.Cancelled:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(1.0)
                    if outcome is Outcome.ACK:
                        return outcome  # swallows its cancellation: its word counts
                    raise
            return Outcome.ACK
        finally:
            trace.add(("end", order.name, trio.current_time()))

    async with memory_world.broker(topic) as broker:
        # Published when the lane is open: one that starts over stored messages waits a little.
        async with consuming(broker, topic, handle, handler_timeout=0.1):
            opened = trio.current_time()
            await broker.publisher().publish_batch(topic, [Order("1", "k"), Order("2", "k")])
            await trace.until(4 if outcome is Outcome.ACK else 6)
    steps = [(what, name) for what, name, _ in trace.entries]
    again = [] if outcome is Outcome.ACK else [("start", "1"), ("end", "1")]
    assert steps == [("start", "1"), ("end", "1"), *again, ("start", "2"), ("end", "2")]
    assert trace.entries[1][2] - opened == pytest.approx(1.1)


async def test_pc021_a_thread_keeps_its_slot_until_it_ends(memory_world: World) -> None:
    topic = one_lane(TopologyBuilder(memory_world.fresh()))
    overlap: list[int] = []
    running_now = 0
    runs: Journal[str] = Journal()

    def handle(order: Order) -> Outcome:
        nonlocal running_now
        running_now += 1
        overlap.append(running_now)
        time.sleep(0.2)
        running_now -= 1
        trio.from_thread.run_sync(runs.add, order.name)
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("1", "k"), Order("2", "k")])
        async with consuming(broker, topic, handle, handler_timeout=0.05):
            await runs.until(2)
    assert runs.entries == ["1", "2"]
    assert overlap == [1, 1]


# ------------------------------------------------------------------ PC-027


async def test_pc027_hold_delays_do_not_shorten_the_lease(world: World, clock: Clock) -> None:
    topic = world.topic(lambda b: b.hold_queue(0.1).dlq())
    runs: Journal[int] = Journal()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        runs.add(metadata.num_delivered)
        await trio.sleep(0.7)
        return Outcome.RETRY if metadata.retry_count == 0 else Outcome.ACK

    async with world.broker(topic) as broker:
        async with consuming(broker, topic, handle):
            await broker.publisher().publish(topic, Order("x"))
            await runs.until(2)
            await world.until_kept(broker, topic.queue, 0)
    assert runs.entries == [1, 1]
