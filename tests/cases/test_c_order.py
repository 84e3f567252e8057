"""Section C of the cases: order per key. (Shard counts and functions: with topologies.)"""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from shove_actors import (
    Defer,
    Outcome,
    Retry,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
)
from shove_actors.backends import margins
from tests.runtime.fixtures import Clock
from tests.runtime.world import Journal, Order, Script, World, ack, consuming


def lanes(world: World, *, shards: int = 1, hold: float = 0.2) -> SequencedTopic[Order]:
    builder = TopologyBuilder(world.fresh()).sequenced(SequenceFailure.SKIP)
    return SequencedTopic(
        Order,
        key=lambda o: o.key,
        topology=builder.routing_shards(shards).hold_queue(hold).dlq().build(),
    )


# ------------------------------------------------------------------ PC-036


@pytest.mark.parametrize("how", ["retry", "retry after", "raise", "timeout"])
async def test_pc036_retry_holds_the_lane(world: World, clock: Clock, how: str) -> None:
    topic = lanes(world)
    runs: Journal[tuple[str, str, float]] = Journal()

    async def handle(order: Order) -> Outcome:
        runs.add((order.key, order.name, trio.current_time()))
        if len(runs) == 1:
            if how == "raise":
                raise ValueError
            if how == "timeout":
                await trio.sleep_forever()
            return Outcome.RETRY if how == "retry" else Retry(after=0.4)
        return Outcome.ACK

    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n), "k") for n in (1, 2, 3)])
        async with consuming(broker, topic, handle, handler_timeout=0.5):
            await runs.until(4)
            await world.until_settled(broker, topic.queue, topic.topology.shard_durable(0))
    assert [name for _, name, _ in runs.entries] == ["1", "1", "2", "3"]
    waited = runs.entries[1][2] - runs.entries[0][2]
    assert waited >= {"retry after": 0.4, "timeout": 0.5}.get(how, 0.2) - 0.01


async def test_pc036_defer_behaves_as_retry_with_one_warning(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = lanes(world)
    script = Script(
        outcomes={"1": [Outcome.DEFER, Defer(after=0.1)], "2": [Outcome.DEFER]},
    )
    with caplog.at_level(logging.WARNING, logger="shove_actors.consumer"):
        async with world.broker(topic) as broker:
            await broker.publisher().publish_batch(topic, [Order(str(n), "k") for n in (1, 2)])
            async with consuming(broker, topic, script):
                await script.journal.until(5)
    # Counted, unlike a real DEFER: order costs what a retry costs.
    assert script.journal.entries == [("1", 0), ("1", 1), ("1", 2), ("2", 0), ("2", 1)]
    assert sum("returned DEFER" in r.getMessage() for r in caplog.records) == 1


async def test_pc036_dead_letter_lets_the_key_go_on(world: World, clock: Clock) -> None:
    topic = lanes(world)
    script = Script(outcomes={"1": [Outcome.RETRY] * 3, "2": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n), "k") for n in (1, 2, 3)])
        async with consuming(broker, topic, script, max_retries=1):
            await script.journal.until(4)
            dead = await world.until_kept(broker, topic.topology.dlq, 2)
    assert script.journal.entries == [("1", 0), ("1", 1), ("2", 0), ("3", 0)]
    assert [m.headers["Shove-Death-Reason"] for m in dead] == ["max_retries_exceeded", "rejected"]


async def test_pc036_next_of_the_key_waits_for_the_dead_letter(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Settled means stored in the dead letters: while they are full, the key waits."""
    topic = lanes(memory_world)
    script = Script(outcomes={"1": [Outcome.REJECT] * 100})
    async with memory_world.broker(topic) as broker:
        await memory_world.delete_stream(broker, topic.topology.dlq)
        await broker.publisher().publish_batch(topic, [Order("1", "k"), Order("2", "k")])
        async with consuming(broker, topic, script):
            await trio.sleep(60)
            assert {name for name, _ in script.journal.entries} == {"1"}
            await broker.declare(topic)
            await memory_world.until_kept(broker, topic.queue, 0)
    assert script.journal.entries[-1] == ("2", 0)


async def test_pc036_two_processes_keep_order_and_never_overlap(world: World, clock: Clock) -> None:
    topic = lanes(world, shards=3)
    keys = [f"k{n}" for n in range(6)]
    running: dict[int, int] = {}
    worst = 0
    done: Journal[tuple[str, str]] = Journal()
    failed: set[str] = set()

    async def handle(order: Order) -> Outcome:
        nonlocal worst
        shard = topic.shard_of(order.key)
        running[shard] = running.get(shard, 0) + 1
        worst = max(worst, running[shard])
        try:
            await trio.sleep(0.003)
        finally:
            running[shard] -= 1
        identity = order.key + order.name
        if int(order.name) % 4 == 0 and identity not in failed:
            failed.add(identity)
            return Retry(after=0.02)
        done.add((order.key, order.name))
        return Outcome.ACK

    async with world.broker(topic) as one, world.broker() as two:
        for n in range(10):
            await one.publisher().publish_batch(topic, [Order(str(n), key) for key in keys])
        async with consuming(one, topic, handle), consuming(two, topic, handle):
            await done.until(60)
    assert worst == 1
    for key in keys:
        assert [name for k, name in done.entries if k == key] == [str(n) for n in range(10)]


async def test_pc036_prefetch_and_concurrency_do_not_open_a_lane(
    world: World, clock: Clock
) -> None:
    """The options of unordered topics are accepted and change nothing about order."""
    topic = lanes(world)
    running, worst = 0, 0
    done: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        nonlocal running, worst
        running += 1
        worst = max(worst, running)
        await trio.sleep(0.01)
        running -= 1
        done.add(order.name)
        return Outcome.ACK

    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n), "k") for n in range(5)])
        options = {"prefetch": 20, "concurrent_processing": True, "consumers": (3, 5)}
        async with consuming(broker, topic, handle, **options):
            await done.until(5)
    assert done.entries == ["0", "1", "2", "3", "4"]
    assert worst == 1


# ------------------------------------------------------------------ PC-040


async def test_pc040_joining_and_leaving_while_a_key_is_in_flight(
    world: World, clock: Clock
) -> None:
    topic = lanes(world)
    first, let_go = trio.Event(), trio.Event()
    runs: Journal[str] = Journal()

    async def slow(order: Order) -> Outcome:
        runs.add(order.name)
        first.set()
        await let_go.wait()
        return Outcome.ACK

    async with world.broker(topic) as one, world.broker() as two:
        await one.publisher().publish_batch(topic, [Order("1", "k"), Order("2", "k")])
        async with consuming(one, topic, slow):
            await first.wait()
            for _ in range(3):
                async with consuming(two, topic, slow):
                    await trio.sleep(0.1)  # the time in which it would have been given "2"
            assert runs.entries == ["1"]
            let_go.set()
            await runs.until(2)
    assert runs.entries == ["1", "2"]


# ------------------------------------------------------------------ PC-047


async def test_pc047_keys_of_one_shard_wait_and_others_do_not(world: World, clock: Clock) -> None:
    topic = lanes(world, shards=2)
    keys: dict[int, list[str]] = {0: [], 1: []}
    for n in range(100):
        keys[topic.shard_of(f"key-{n}")].append(f"key-{n}")
    (stuck, neighbour), elsewhere = keys[0][:2], keys[1][0]
    script = Script(outcomes={"stuck": [Retry(after=60)]})
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        async with consuming(broker, topic, script):
            await publisher.publish(topic, Order("stuck", stuck))
            await script.journal.until(1)
            await publisher.publish(topic, Order("neighbour", neighbour))
            await publisher.publish(topic, Order("elsewhere", elsewhere))
            await script.journal.until(2)
            # As documented: a key in a long hold keeps its whole lane closed.
            assert [name for name, _ in script.journal.entries] == ["stuck", "elsewhere"]
            if world.virtual:
                await script.journal.until(4, within=61)
    if world.virtual:
        assert [name for name, _ in script.journal.entries[2:]] == ["stuck", "neighbour"]
    documented = (SequencedTopic.__doc__ or "") + (TopologyBuilder.sequenced.__doc__ or "")
    assert "wait for each other" in documented


async def test_hold_queues_of_a_sequenced_topic_only_name_its_delays(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Growing delays as configured, nothing is ever stored in the hold streams."""
    topology = (
        TopologyBuilder(memory_world.fresh())
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(1)
        .hold_queue(1)
        .hold_queue(5)
        .dlq()
        .build()
    )
    topic = SequencedTopic(Order, key=lambda o: o.key, topology=topology)
    script = Script(outcomes={"x": [Outcome.RETRY] * 3})
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, script):
            await script.journal.until(4)
            for hold in topology.holds:
                assert await memory_world.kept(broker, hold.name) == []
        assert broker.movers.children == ()
    gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
    # Whatever comes again on a shard is looked at a moment later.
    look = margins.RETURNED_GRACE_S
    assert gaps == pytest.approx([1 + look, 5 + look, 5 + look])
    assert script.attempts("x") == [0, 1, 2, 3]


async def test_one_key_never_sees_the_other_process_start_before_the_lease_is_over(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """(I) with a disconnected owner: its handler has been cancelled before the other one runs."""
    from shove_actors import MemoryConfig, open_broker

    assert memory_world.memory is not None
    topic = lanes(memory_world)
    trace: Journal[tuple[str, float]] = Journal()

    async def slow(order: Order) -> Outcome:
        trace.add(("first starts", trio.current_time()))
        try:
            await trio.sleep_forever()
        finally:
            trace.add(("first ends", trio.current_time()))
        raise AssertionError

    async def other(order: Order) -> Outcome:
        trace.add(("second starts", trio.current_time()))
        return Outcome.ACK

    config = MemoryConfig(server=memory_world.memory, name="first")
    async with open_broker(config) as one, memory_world.broker(topic) as two:
        async with consuming(one, topic, slow, ack_wait=12, handler_timeout=None):
            await two.publisher().publish(topic, Order("x"))
            await trace.until(1)
            # A younger one is given up at once: it may never have been ours (see `_fence`).
            await trio.sleep(2)
            memory_world.memory.faults.disconnect("first")
            async with consuming(two, topic, other, ack_wait=12):
                await trace.until(3)
    assert [what for what, _ in trace.entries] == ["first starts", "first ends", "second starts"]
    begin = trace.entries[0][1]
    # Three quarters, plus one tick at most, less what a restarted server may be early.
    assert 7.9 <= trace.entries[1][1] - begin <= 9.1
    assert trace.entries[2][1] - begin >= 12


async def test_unordered_topics_do_not_wait(world: World, clock: Clock) -> None:
    """The counter-check: without lanes a retry steps aside."""
    topic = world.topic(lambda b: b.hold_queue(0.3).dlq())
    script = Script(outcomes={"1": [Outcome.RETRY]})
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("1"), Order("2")])
        async with consuming(broker, topic, script):
            await script.journal.until(3)
        async with consuming(broker, topic, ack):
            pass
    assert [name for name, _ in script.journal.entries] == ["1", "2", "1"]
