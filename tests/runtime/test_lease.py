"""Leases: ours for as long as we work, or the work is stopped before somebody else can start."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors import (
    MemoryConfig,
    MessageMetadata,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    UsageError,
    open_broker,
)

from .fixtures import Clock
from .world import SOON_S, Journal, Order, Script, World, consuming


@pytest.mark.parametrize("ack_wait", [1.0, 30.0])
async def test_renewed_while_running(
    memory_world: World, autojump_clock: trio.testing.MockClock, ack_wait: float
) -> None:
    """Ten leases long, another process is ready to take over, and it runs once."""
    topic = memory_world.topic()
    runs: Journal[int] = Journal()
    done = trio.Event()

    async def handle(message: Order, metadata: MessageMetadata) -> Outcome:
        runs.add(metadata.num_delivered)
        await trio.sleep(10 * ack_wait)
        done.set()
        return Outcome.ACK

    async with memory_world.broker(topic) as one, memory_world.broker() as two:
        options = {"ack_wait": ack_wait, "handler_timeout": None}
        async with (
            consuming(one, topic, handle, **options),
            consuming(two, topic, handle, **options),
        ):
            await one.publisher().publish(topic, Order("x"))
            with trio.fail_after(20 * ack_wait):
                await done.wait()
            await memory_world.until_settled(one, topic.queue)
        renewed = one.leases.renewed + two.leases.renewed
    assert runs.entries == [1]
    # After a third of a lease each time: no more often than that.
    assert 20 <= renewed <= 32


async def test_what_waits_behind_a_handler_is_renewed_too(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    runs: Journal[int] = Journal()

    async def handle(message: Order, metadata: MessageMetadata) -> Outcome:
        runs.add(metadata.num_delivered)
        await trio.sleep(5)
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(10)])
        async with consuming(broker, topic, handle, ack_wait=1.0, prefetch=10):
            await runs.until(10, within=60)
            await memory_world.until_settled(broker, topic.queue)
    assert runs.entries == [1] * 10


@pytest.mark.parametrize("ack_wait", [1.0, 12.0, 30.0])
async def test_cut_off_the_handler_is_cancelled_before_the_lease_ends(
    memory_world: World, autojump_clock: trio.testing.MockClock, ack_wait: float
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    ends: Journal[float] = Journal()
    started = trio.Event()

    async def handle(message: Order) -> Outcome:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            ends.add(trio.current_time())
        raise AssertionError

    second = Script()
    config = MemoryConfig(server=memory_world.memory, name="cut")
    async with open_broker(config) as one, memory_world.broker() as two:
        await one.declare(topic)
        options = {"ack_wait": ack_wait, "handler_timeout": None}
        async with consuming(one, topic, handle, **options) as run:
            await one.publisher().publish(topic, Order("x"))
            with trio.fail_after(SOON_S):
                await started.wait()
            await trio.sleep(20 * ack_wait / 7)  # in the middle between two renewals
            memory_world.memory.faults.disconnect("cut")
            cut = trio.current_time()
            async with consuming(two, topic, second, **options):
                await second.journal.until(1, within=3 * ack_wait)
            memory_world.memory.faults.reconnect("cut")
        assert run.group.statistics()[topic.queue] == {"lost": 1}
    [ended] = ends.entries
    assert ended < second.times[0]
    # A quarter of the lease to unwind in, less at most a tick.
    assert second.times[0] - ended >= ack_wait * (1 / 4 - 1 / 12) - 0.01
    assert ended - cut <= ack_wait
    # No attempt of a handler was made into a retry: it was not its fault.
    assert second.journal.entries == [("x", 0)]


async def test_short_interruptions_are_survived(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    runs: Journal[int] = Journal()
    faults = memory_world.memory.faults
    done = trio.Event()

    async def handle(message: Order, metadata: MessageMetadata) -> Outcome:
        runs.add(metadata.num_delivered)
        await trio.sleep(100)
        done.set()
        return Outcome.ACK

    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config) as broker:
        await broker.declare(topic)
        async with consuming(broker, topic, handle, ack_wait=10, handler_timeout=None):
            await broker.publisher().publish(topic, Order("x"))
            await runs.until(1)
            for number in range(8):
                faults.disconnect("me") if number % 2 else faults.stall("me")
                await trio.sleep(2)
                faults.reconnect("me") if number % 2 else faults.unstall("me")
                await trio.sleep(8)
            with trio.fail_after(300):
                await done.wait()
            await memory_world.until_settled(broker, topic.queue)
    assert runs.entries == [1]


async def test_lost_renewals_are_sent_again_in_time(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    runs: Journal[int] = Journal()
    done = trio.Event()

    async def handle(message: Order, metadata: MessageMetadata) -> Outcome:
        runs.add(metadata.num_delivered)
        await trio.sleep(100)
        done.set()
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, handle, ack_wait=10, handler_timeout=None):
            memory_world.memory.faults.drop_renewal(2)
            await broker.publisher().publish(topic, Order("x"))
            with trio.fail_after(300):
                await done.wait()
            await memory_world.until_settled(broker, topic.queue)
    assert runs.entries == [1]


async def test_late_settle_is_dropped_whatever_it_says(
    memory_world: World, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that cannot be stopped finishes after its lease: its outcome has no effect."""
    assert memory_world.memory is not None
    for outcome in (Outcome.ACK, Outcome.RETRY, Outcome.REJECT, Outcome.DEFER, ValueError("late")):
        topic = memory_world.topic()
        runs: Journal[int] = Journal()

        async def handle(
            message: Order, metadata: MessageMetadata, runs: Journal[int] = runs,
            outcome: object = outcome,
        ) -> object:  # fmt: skip
            runs.add(metadata.num_delivered)
            if metadata.num_delivered == 1:
                with trio.CancelScope(shield=True):
                    await trio.sleep(30)
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome
            return Outcome.ACK

        async with memory_world.broker(topic) as broker:
            memory_world.memory.faults.sometimes(drop_renewal=1.0)
            async with consuming(
                broker, topic, handle, ack_wait=10, prefetch=1, handler_timeout=None
            ) as run:
                await broker.publisher().publish(topic, Order("x"))
                await runs.until(2, within=60)
                await memory_world.until_settled(broker, topic.queue)
            memory_world.memory.faults.sometimes()
            assert runs.entries[0] == 1
            assert len(runs) == 2
            for name in topic.topology.stream_names():
                assert await memory_world.kept(broker, name) == []
            assert run.group.statistics()[topic.queue] == {"ack": 1, "lost": 1}


async def test_deleted_durable_takes_the_lease_with_it(world: World, clock: Clock) -> None:
    """Whoever holds a message of a durable that is gone cannot settle it any more."""
    topic = world.topic()
    ends: Journal[str] = Journal()
    started = trio.Event()
    first = True

    async def handle(message: Order) -> Outcome:
        nonlocal first
        if not first:
            ends.add("handled")
            return Outcome.ACK
        first = False
        started.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            ends.add("cancelled")
            raise
        raise AssertionError

    async with world.broker(topic) as broker:
        async with consuming(broker, topic, handle, ack_wait=1.0) as run:
            await broker.publisher().publish(topic, Order("x"))
            with trio.fail_after(SOON_S):
                await started.wait()
            if world.memory is not None:
                world.memory.delete_durable(topic.queue, topic.topology.durable)
            else:
                from shove_actors.backends.nats import NatsBackend

                assert isinstance(broker.backend, NatsBackend)
                await broker.backend.js.delete_consumer(topic.queue, topic.topology.durable)
            await ends.until(2)
            await world.until_kept(broker, topic.queue, 0)
        assert (await run.end()).is_clean
    assert ends.entries == ["cancelled", "handled"]
    assert run.group.statistics()[topic.queue] == {"ack": 1, "lost": 1}


async def test_keeper_sleeps_while_nobody_consumes(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        script = Script()
        async with consuming(broker, topic, script):
            pass
        assert not broker.leases._lanes
        before = trio.current_time()
        await trio.sleep(80_000)
        assert trio.current_time() - before == 80_000
        assert broker.leases.late_ticks == 0


async def test_shorter_lease_of_a_new_lane_is_heeded_at_once(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Joining while the keeper sleeps for a much longer one."""
    slow, quick = memory_world.topic(), memory_world.topic()
    runs: Journal[int] = Journal()

    async def handle(message: Order, metadata: MessageMetadata) -> Outcome:
        runs.add(metadata.num_delivered)
        await trio.sleep(5)
        return Outcome.ACK

    async with memory_world.broker(slow, quick) as broker:
        async with consuming(broker, slow, handle, ack_wait=3600):
            await trio.sleep(1)
            async with consuming(broker, quick, handle, ack_wait=0.5):
                await broker.publisher().publish(quick, Order("x"))
                await memory_world.until_kept(broker, quick.queue, 1)
                await memory_world.until_kept(broker, quick.queue, 0)
    assert runs.entries == [1]


async def test_lease_of_a_shard_has_a_least_length(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Shorter, and there is no time to unwind in; plain topics and dead letters may."""
    builder = TopologyBuilder(memory_world.fresh()).sequenced(SequenceFailure.SKIP)
    topology = builder.routing_shards(1).hold_queue(1).dlq().build()
    ordered = SequencedTopic(Order, key=lambda order: order.key, topology=topology)
    async with memory_world.broker(ordered) as broker:
        group = broker.consumer_group()
        with pytest.raises(UsageError, match=r"ack_wait=0\.9 for the sequenced topic"):
            group.register(ordered, Script(), ack_wait=0.9)
        group.register(ordered, Script(), ack_wait=1.0)
        group.register_dlq(ordered, Script(), ack_wait=0.5)
        group.register(memory_world.topic(), Script(), ack_wait=0.5)
