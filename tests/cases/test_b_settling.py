"""Section B of the cases: stopping, retries, and what never becomes a success."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors import RAW, DeathReason, Defer, Outcome, Topic, TopologyBuilder, open_broker
from shove_actors.backends.memory import MemoryConfig
from shove_actors.messaging import MSG_ID
from tests.runtime.fixtures import Clock
from tests.runtime.world import Journal, Order, Script, World, consuming, raw_publish, running

from .lanes import one_lane

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
