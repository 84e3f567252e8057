"""Section B of the cases: acknowledgement, deadlines, redelivery."""

from __future__ import annotations

import logging
import time

import pytest
import trio
import trio.testing

from shove_actors import (
    RAW,
    DeathReason,
    Defer,
    MessageMetadata,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends.memory import MemoryConfig
from shove_actors.messaging import MSG_ID
from tests.runtime.fixtures import Clock
from tests.runtime.world import (
    SOON_S,
    Journal,
    Order,
    Script,
    World,
    consuming,
    raw_publish,
    running,
)


def one_lane(builder: TopologyBuilder) -> SequencedTopic[Order]:
    topology = builder.sequenced(SequenceFailure.SKIP).routing_shards(1)
    return SequencedTopic(
        Order, key=lambda o: o.key, topology=topology.hold_queue(0.2).dlq().build()
    )


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
        await broker.publisher().publish_batch(topic, [Order("1", "k"), Order("2", "k")])
        async with consuming(broker, topic, handle, handler_timeout=0.1):
            await trace.until(4 if outcome is Outcome.ACK else 6)
    steps = [(what, name) for what, name, _ in trace.entries]
    again = [] if outcome is Outcome.ACK else [("start", "1"), ("end", "1")]
    assert steps == [("start", "1"), ("end", "1"), *again, ("start", "2"), ("end", "2")]
    assert trace.entries[1][2] == pytest.approx(1.1)


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


# ------------------------------------------------------------------ PC-022


async def test_pc022_last_acknowledgement_is_confirmed_before_leaving(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    for number in range(10):
        script = Script()
        async with world.broker(topic) as broker:
            await broker.publisher().publish(topic, Order(f"m{number}"))
            async with consuming(broker, topic, script):
                await script.journal.until(1)
        # Left at once. Whatever was acknowledged must not be seen by the next process.
        assert script.journal.entries == [(f"m{number}", 0)]
    async with world.broker(topic) as broker:
        assert await world.kept(broker, topic.queue) == []


# ------------------------------------------------------------------ PC-024


async def test_pc024_what_was_received_and_not_started_is_returned(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    started, let_go = trio.Event(), trio.Event()
    first: list[str] = []

    async def slow(order: Order) -> Outcome:
        first.append(order.name)
        started.set()
        await let_go.wait()
        return Outcome.ACK

    second = Script()
    async with world.broker(topic) as one, world.broker() as two:
        await one.publisher().publish_batch(topic, [Order(str(n)) for n in range(10)])
        async with consuming(one, topic, slow, prefetch=10, ack_wait=60) as run:
            await started.wait()
            await world.until_in_hand(one, topic.queue, held=10)
            run.group.stop()
            # Long before any lease runs out, and while the first still works.
            async with consuming(two, topic, second, ack_wait=60):
                await second.journal.until(9)
                let_go.set()
                assert (await run.end()).is_clean
            await world.until_settled(two, topic.queue)
    assert first == ["0"]
    assert sorted(name for name, _ in second.journal.entries) == [str(n) for n in range(1, 10)]
    assert all(metadata.retry_count == 0 for metadata in second.seen)


# ------------------------------------------------------------------ PC-029


@pytest.mark.parametrize("kind", ["holds", "no holds", "sequenced"])
async def test_pc029_message_that_kills_its_process_reaches_the_dead_letters(
    memory_world: World, autojump_clock: trio.testing.MockClock, kind: str
) -> None:
    """The process vanishes in the handler, every time; the limit is three retries."""
    assert memory_world.memory is not None
    topic: Topic[Order]
    if kind == "sequenced":
        topic = one_lane(TopologyBuilder(memory_world.fresh()))
    elif kind == "holds":
        topic = memory_world.topic()
    else:
        topic = memory_world.topic(lambda b: b.dlq())
    attempts = 0
    async with memory_world.broker(topic) as healthy:
        await healthy.publisher().publish(topic, Order("killer"))
        for number in range(8):
            died = trio.Event()

            async def die(order: Order) -> Outcome:
                nonlocal attempts
                attempts += 1
                memory_world.memory.faults.crash(f"victim-{number}")  # noqa: B023
                died.set()  # noqa: B023
                await trio.sleep_forever()
                raise AssertionError

            config = MemoryConfig(server=memory_world.memory, name=f"victim-{number}")
            with trio.CancelScope() as process:
                async with open_broker(config) as broker, trio.open_nursery() as nursery:
                    group = broker.consumer_group()
                    group.register(topic, die, max_retries=3, ack_wait=1.0)
                    nursery.start_soon(lambda group=group: group.serve(drain_timeout=0.0))
                    with trio.move_on_after(20):
                        await died.wait()
                    if died.is_set():
                        process.cancel()
                    else:
                        nursery.cancel_scope.cancel()
        [dead] = await memory_world.until_kept(healthy, topic.topology.dlq, 1)
    # The first, three retries, and one more of which it is noted that it was started.
    assert attempts == 5
    assert dead.headers["Shove-Death-Reason"] == DeathReason.CRASHED.value
    assert dead.headers["Shove-Death-Cause"] == "crash"
    assert b"killer" in dead.payload


# ------------------------------------------------------------------ PC-031


async def test_pc031_deferred_messages_do_not_starve_the_rest(world: World, clock: Clock) -> None:
    topic = world.topic(lambda b: b.hold_queue(3600).dlq())
    journal: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        journal.add(order.name)
        return Outcome.DEFER if order.name.startswith("defer") else Outcome.ACK

    names = ["defer-1", "defer-2", "well-1", "well-2"]
    async with world.broker(topic) as broker:
        async with consuming(broker, topic, handle, prefetch=2):
            await broker.publisher().publish_batch(topic, [Order(name) for name in names])
            await journal.until(4)
            await world.until_settled(broker, topic.queue)
            held = await world.until_kept(broker, topic.topology.holds[0].name, 2)
    assert sorted(journal.entries) == names
    assert [message.headers["Shove-Defer-Count"] for message in held] == ["1", "1"]
    assert [message.headers["Shove-Retry-Count"] for message in held] == ["0", "0"]


async def test_pc031_also_without_hold_queues(world: World, clock: Clock) -> None:
    topic = world.topic(lambda b: b.dlq())
    journal: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        journal.add(order.name)
        return Defer(after=3600) if order.name.startswith("defer") else Outcome.ACK

    names = ["defer-1", "defer-2", "well-1", "well-2"]
    async with world.broker(topic) as broker:
        async with consuming(broker, topic, handle, prefetch=2):
            await broker.publisher().publish_batch(topic, [Order(name) for name in names])
            await journal.until(4)
    assert sorted(journal.entries) == names


# ------------------------------------------------------------------ PC-032


async def test_pc032_declaring_again_keeps_what_is_on_hold(world: World, clock: Clock) -> None:
    topic = world.topic(lambda b: b.hold_queue(0.5).dlq())
    in_place = world.topic(lambda b: b.dlq())
    script = Script(outcomes={"a": [Outcome.RETRY], "b": [Outcome.DEFER], "c": [Outcome.RETRY]})
    async with world.broker(topic, in_place) as one:
        async with (
            consuming(one, topic, script),
            consuming(one, in_place, script, retry_delay=0.5),
        ):
            await one.publisher().publish_batch(topic, [Order("a"), Order("b")])
            await one.publisher().publish(in_place, Order("c"))
            await script.journal.until(3)
            async with world.broker(topic, in_place) as two:
                await two.declare(topic, in_place)
                await script.journal.until(6)
    assert sorted(script.journal.entries) == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 0), ("c", 0), ("c", 1),
    ]  # fmt: skip


# ------------------------------------------------------------------ PC-033


async def test_pc033_a_servers_own_delivery_limit_strands_nothing(server_world: World) -> None:
    """An operator's `max_deliver` on our durable is lifted: only the runtime gives up messages."""
    from dataclasses import replace

    from shove_actors.backends.nats import NatsBackend

    topic = server_world.topic(lambda b: b.dlq())
    script = Script(outcomes={"x": [Outcome.RETRY] * 4})
    async with server_world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            pass
        backend = broker.backend
        assert isinstance(backend, NatsBackend)
        durable = topic.topology.durable
        config = (await backend.js.consumer_info(topic.queue, durable)).config
        await backend.js.create_consumer(
            topic.queue, replace(config, name=durable, max_deliver=2), action=None
        )
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, script, max_retries=3, retry_delay=0.1):
            [dead] = await server_world.until_kept(broker, topic.topology.dlq, 1)
        assert await server_world.kept(broker, topic.queue) == []
    assert script.attempts("x") == [0, 1, 2, 3]
    assert dead.headers["Shove-Death-Reason"] == "max_retries_exceeded"


# ------------------------------------------------------------------ PC-034

BROKEN = {
    "zero bytes": b"",
    "invalid JSON": b'{"name": ',
    "NaN": b"NaN",
    "NaN inside": b'{"name": NaN}',
    "wrong schema": b'{"name": 7}',
    "not an object": b"[1, 2]",
    "invalid UTF-8": b'{"name": "\xff\xfe"}',
    "nesting": b"[" * 1000 + b"]" * 1000,
}


@pytest.mark.parametrize("sequenced", [False, True])
async def test_pc034_undecodable_messages_are_dead_lettered_as_they_are(
    world: World, clock: Clock, sequenced: bool
) -> None:
    if sequenced:
        topic: Topic[Order] = one_lane(TopologyBuilder(world.fresh()))
        subject = topic.topology.shard_subject(0)
    else:
        topic = world.topic()
        subject = topic.queue
    script = Script()
    async with world.broker(topic) as broker:
        for name, payload in BROKEN.items():
            await raw_publish(broker, subject, payload, {"X-Name": name, MSG_ID: name})
        await raw_publish(broker, subject, b'{"name": "well"}')
        async with consuming(broker, topic, script) as run:
            await script.journal.until(1)
            dead = await world.until_kept(broker, topic.topology.dlq, len(BROKEN))
        assert (await run.end()).restarts == 0
        assert await world.kept(broker, topic.queue) == []
    assert script.journal.entries == [("well", 0)]
    found = {message.headers["X-Name"]: message for message in dead}
    assert {name: message.payload for name, message in found.items()} == BROKEN
    for name, message in found.items():
        assert message.headers["Shove-Death-Reason"] == "undecodable"
        assert message.headers["Shove-Message-Id"] == name
        # The detail is for people, and never quotes the payload.
        assert "\xff" not in message.headers.get("Shove-Death-Detail", "")


async def test_pc034_raw_topics_decode_everything(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = Topic(bytes, TopologyBuilder(memory_world.fresh()).dlq().build(), codec=RAW)
    got: Journal[bytes] = Journal()

    async def handle(payload: bytes) -> Outcome:
        got.add(payload)
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, handle)
        async with running(group):
            for payload in BROKEN.values():
                await broker.publisher().publish(topic, payload)
            await got.until(len(BROKEN))
    assert got.entries == list(BROKEN.values())


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
