"""Weaknesses of the source system that no case from the field covers; see docs/weaknesses.md."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import (
    MessageMetadata,
    NatsStreamConfig,
    Outcome,
    Reject,
    SequencedTopic,
    SequenceFailure,
    StreamFull,
    Topic,
    TopologyBuilder,
    TopologyError,
)
from shove_actors.backends import Delivery
from shove_actors.backends.memory import DurableSettings
from shove_actors.messaging import Verdict
from shove_actors.runtime._settle import Settler
from tests.runtime.fixtures import Clock
from tests.runtime.world import (
    Journal,
    Order,
    Script,
    World,
    ack,
    burying,
    consuming,
    raw_publish,
)
from tests.telemetry.kit import Sdk, labels


def lanes(
    world: World, *, shards: int = 1, queue: str | None = None, limit: int | None = None
) -> SequencedTopic[Order]:
    builder = TopologyBuilder(queue or world.fresh()).sequenced(SequenceFailure.SKIP)
    if limit is not None:
        builder = builder.nats_stream_config(NatsStreamConfig(max_messages=limit))
    return SequencedTopic(
        Order,
        key=lambda o: o.key,
        topology=builder.routing_shards(shards).hold_queue(0.2).dlq().build(),
    )


def key_of_each_shard(topic: SequencedTopic[Order]) -> list[str]:
    found: dict[int, str] = {}
    for n in range(1000):
        found.setdefault(topic.shard_of(f"key-{n}"), f"key-{n}")
    return [found[shard] for shard in range(topic.topology.routing_shards)]


class Strange(msgspec.Struct, forbid_unknown_fields=True):
    """What an `Order` does not decode as."""

    weight: int


async def test_sw15_programs_that_share_a_dead_letter_queue_destroy_nothing(
    world: World, clock: Clock
) -> None:
    """Two topics of one program may not; two programs do not know of each other."""
    shared = world.fresh()
    ours = Topic(Order, TopologyBuilder(world.fresh()).dlq_named(shared).build())
    theirs = Topic(Strange, TopologyBuilder(world.fresh()).dlq_named(shared).build())
    seen: Journal[str] = Journal()

    async def handle_dead(message: Order) -> Outcome:
        seen.add(message.name)
        return Outcome.ACK

    script = Script(outcomes={"bad": [Outcome.REJECT]})

    async def reject(message: Strange) -> Outcome:
        return Outcome.REJECT

    async with world.broker(ours) as one, world.broker(theirs) as two:
        async with consuming(two, theirs, reject):
            await two.publisher().publish(theirs, Strange(1))
            await world.until_kept(two, shared, 1)
        async with consuming(one, ours, script), burying(one, ours, handle_dead):
            await one.publisher().publish(ours, Order("bad"))
            await seen.until(1)
            await world.until_settled(one, shared)
        kept = await world.kept(one, shared)
        with pytest.raises(TopologyError, match="dlq_named"):
            await one.declare(ours, theirs)
    assert seen.entries == ["bad"]
    assert [letter.headers["Shove-Original-Queue"] for letter in kept] == [theirs.queue, ours.queue]


async def test_sw15_a_letter_of_another_topic_is_no_business_of_ours(
    world: World, clock: Clock
) -> None:
    """It decodes as ours, and a poisoned topic would even delete what is acknowledged."""
    shared = world.fresh()

    def ordered(queue: str) -> SequencedTopic[Order]:
        builder = TopologyBuilder(queue).sequenced(SequenceFailure.FAIL_ALL).routing_shards(1)
        topology = builder.hold_queue(0.2).dlq_named(shared).build()
        return SequencedTopic(Order, key=lambda order: order.key, topology=topology)

    ours, theirs = ordered(world.fresh()), ordered(world.fresh())
    seen: Journal[str] = Journal()

    async def handle_dead(message: Order) -> Outcome:
        seen.add(message.name)
        return Outcome.ACK

    async def reject(message: Order) -> Outcome:
        return Outcome.REJECT

    async with world.broker(ours) as one, world.broker(theirs) as two:
        for broker, topic, name in ((two, theirs, "theirs"), (one, ours, "ours")):
            async with consuming(broker, topic, reject):
                await broker.publisher().publish(topic, Order(name, key="k"))
                await world.until_kept(broker, shared, 1 if topic is theirs else 2)
        async with burying(one, ours, handle_dead):
            await seen.until(1)
            kept = await world.until_kept(one, shared, 1)
    assert seen.entries == ["ours"]
    assert [letter.headers["Shove-Original-Queue"] for letter in kept] == [theirs.queue]


@pytest.mark.parametrize("brake", ["count", "age"])
async def test_sw18_a_handler_can_end_what_defers_for_ever(
    memory_world: World, autojump_clock: trio.testing.MockClock, brake: str
) -> None:
    """The brake is two lines of the handler's; how often it defers is a metric."""
    topic, sdk = memory_world.topic(lambda b: b.hold_queue(1).dlq()), Sdk()
    times: list[float] = []
    began = datetime(2026, 1, 1, tzinfo=timezone.utc)

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        times.append(trio.current_time())
        assert metadata.published_at == began
        age = timedelta(seconds=times[-1] - times[0])
        if metadata.defer_count >= 5 if brake == "count" else age >= timedelta(seconds=5):
            return Reject(reason="deferred too often")
        return Outcome.DEFER

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        await broker.publisher().publish(topic, Order("x"))
        [stored] = await memory_world.kept(broker, topic.queue)
        assert stored.headers.get("Shove-Published-At") is None
        async with consuming(broker, topic, handle):
            await memory_world.until_kept(broker, topic.topology.dlq, 1)
        consumed = sdk.values("messages_consumed_total")
    assert len(times) == 6
    of = {"topic": topic.queue, "consumer_group": topic.topology.durable}
    assert consumed == {
        labels(**of, outcome="defer"): 5,
        labels(**of, outcome="reject"): 1,
    }


async def test_sw26_a_shard_whose_consumer_crashed_goes_on(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bug around the handler ends one lane: it is said, and the lane is opened again."""
    topic = lanes(memory_world, shards=4)
    keys = key_of_each_shard(topic)
    crashes: list[str] = []
    carry_out = Settler.carry_out

    async def crashing(self: Settler, delivery: Delivery, verdict: Verdict, count: int) -> bool:
        if b"trap" in delivery.payload and len(crashes) < 2:
            crashes.append(delivery.subject)
            raise RuntimeError("a bug")
        return await carry_out(self, delivery, verdict, count)

    monkeypatch.setattr(Settler, "carry_out", crashing)
    done: Counter[str] = Counter()

    async def handle(order: Order) -> Outcome:
        done[f"{order.key} {order.name}"] += 1
        # Only what is no plain acknowledgement goes through the settler.
        return Outcome.REJECT if order.name == "trap" else Outcome.ACK

    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, handle, ack_wait=2.0) as run:
            await broker.publisher().publish(topic, Order("trap", keys[2]))
            for key in keys:
                await broker.publisher().publish(topic, Order("later", key))
            for shard in range(4):
                durable = topic.topology.shard_durable(shard)
                await memory_world.until_settled(broker, topic.queue, durable)
        outcome = await run.end()
    assert len(crashes) == 2
    assert outcome.restarts == 2
    assert [done[f"{key} later"] for key in keys] == [1, 1, 1, 1]
    assert caplog.text.count("a bug") >= 2


async def test_sw27_shards_that_cannot_be_read_any_more_are_no_success(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Somebody exchanges the filters of both durables: each lane is another's."""
    server = memory_world.memory
    assert server is not None
    topic = lanes(memory_world, shards=2)
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, ack) as run:
            stream = server.require_stream(topic.queue)
            names = [topic.topology.shard_durable(n) for n in range(2)]
            gone = [stream.durables.pop(name) for name in names]
            for durable in gone:
                durable.close()
            for number, name in enumerate(names):
                other = topic.topology.shard_subject(1 - number)
                settings = DurableSettings(name=name, filter_subject=other, max_ack_pending=1)
                server.open_durable(topic.queue, settings)
            server._report_gone(gone)
            outcome = await run.end(within=600)
    assert outcome.exit_code == 1
    assert "TopologyError" in outcome.reasons[0]


async def test_sw29_another_number_of_shards_is_refused_while_messages_are_stored(
    world: World, clock: Clock
) -> None:
    """PC-038, PC-039: more and fewer; nothing is stranded and no key moves."""
    topic = lanes(world, shards=3)
    keys = key_of_each_shard(topic)
    script = Script()
    async with world.broker(topic) as broker:
        for key in keys:
            await broker.publisher().publish(topic, Order("x", key))
        for shards in (2, 4):
            async with world.broker() as other:
                with pytest.raises(TopologyError, match=f"routing_shards.{shards}"):
                    await other.declare(lanes(world, shards=shards, queue=topic.queue))
        async with consuming(broker, topic, script):
            await script.journal.until(3)
            await world.until_kept(broker, topic.queue, 0)
    assert sorted(metadata.key or "" for metadata in script.seen) == sorted(keys)


@pytest.mark.parametrize("way", ["ack", "retry", "reject", "raise", "timeout"])
async def test_sw30_sw47_what_shards_have_in_hand_is_told_and_comes_back_to_none(
    memory_world: World, autojump_clock: trio.testing.MockClock, way: str
) -> None:
    topic, sdk = lanes(memory_world, shards=3), Sdk()
    gauge = "messages_inflight"
    busy: Journal[str] = Journal()
    release = trio.Event()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        if metadata.attempt > 1:
            return Outcome.ACK
        busy.add(order.key)
        if way == "timeout":
            await trio.sleep_forever()
        await release.wait()
        if way == "raise":
            raise ValueError
        return {"ack": Outcome.ACK, "retry": Outcome.RETRY}.get(way, Outcome.REJECT)

    async with memory_world.broker(topic, telemetry=sdk.telemetry()) as broker:
        async with consuming(broker, topic, handle, handler_timeout=5):
            for key in key_of_each_shard(topic):
                await broker.publisher().publish(topic, Order("x", key))
            await busy.until(3)
            assert sum(sdk.values(gauge).values()) == 3
            release.set()
            await memory_world.until_kept(broker, topic.queue, 0)
            assert sum(sdk.values(gauge).values()) == 0


async def test_sw33_a_limit_that_nothing_enforces_cannot_be_asked_for(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = lanes(memory_world)
    async with memory_world.broker(topic) as broker:
        with pytest.raises(TypeError, match="max_pending_per_key"):
            broker.consumer_group().register(topic, ack, max_pending_per_key=1)  # type: ignore[call-arg]


async def test_sw34_a_retry_in_a_full_lane_needs_no_room(world: World, clock: Clock) -> None:
    """The stream is full all the time, and publishers wait to fill it again."""
    topic = lanes(world, limit=2)
    script = Script(outcomes={"0": [Outcome.RETRY] * 3, "3": [Outcome.RETRY]})

    async with world.broker(topic) as broker:

        async def press() -> None:
            for n in range(8):
                while True:
                    try:
                        await raw_publish(
                            broker,
                            topic.topology.shard_subject(0),
                            topic.encode(Order(str(n), "k")),
                            {"Shove-Key": "k"},
                        )
                        break
                    except StreamFull:
                        await trio.sleep(0.05)

        async with consuming(broker, topic, script), trio.open_nursery() as nursery:
            nursery.start_soon(press)
            await script.journal.until(12)
            await world.until_kept(broker, topic.queue, 0)
    handled = [name for name, _ in script.journal.entries]
    assert handled == ["0", "0", "0", "0", "1", "2", "3", "3", "4", "5", "6", "7"]


async def test_sw36_what_was_in_hand_at_a_stop_comes_first_afterwards(
    world: World, clock: Clock
) -> None:
    """The drain runs out, the handler is cancelled, and the next group begins with its message."""
    topic = lanes(world)
    seen: Journal[str] = Journal()

    async def hang(order: Order) -> Outcome:
        seen.add(order.name)
        await trio.sleep_forever()
        raise AssertionError

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        assert metadata.retry_count == 0
        seen.add(order.name)
        return Outcome.ACK

    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(n, "k") for n in "123"])
        async with consuming(broker, topic, hang, drain_timeout=0.1) as run:
            await seen.until(1)
            assert (await run.stop()).exit_code == 3
        async with consuming(broker, topic, handle):
            await seen.until(4)
    assert seen.entries == ["1", "1", "2", "3"]


async def test_sw44_the_connection_outlives_the_last_handler(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Stopped while it runs, it has half a minute more, and its acknowledgement arrives."""
    topic = memory_world.topic()
    started, ended = trio.Event(), []

    async def handle(order: Order) -> Outcome:
        started.set()
        await trio.sleep(30)
        ended.append(order.name)
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, handle, drain_timeout=60, handler_timeout=None) as run:
            await started.wait()
            run.group.stop()
            assert (await run.end(within=40)).is_clean
    async with memory_world.broker(topic) as broker:
        assert await memory_world.kept(broker, topic.queue) == []
    assert ended == ["x"]
