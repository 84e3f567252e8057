"""Section F of the cases: dead letters."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
import trio
import trio.testing

from shove_actors import (
    DeadMetadata,
    MemoryConfig,
    Outcome,
    PublishRefused,
    Reject,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)
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

TOO_LARGE = 200


# ------------------------------------------------------------------ PC-078


@pytest.mark.parametrize("trouble", ["full", "missing", "refused"])
async def test_pc078_original_stays_until_its_dead_letter_is_safe(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    trouble: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Counted over a virtual hour: growing pauses, no hot loop, and reported every time."""
    assert memory_world.memory is not None
    topic = memory_world.topic()
    dlq = topic.topology.dlq
    assert dlq is not None
    script = Script(outcomes={"bad": [Outcome.REJECT] * 1000})
    async with memory_world.broker(topic) as broker:
        if trouble == "full":
            await memory_world.limit(broker, dlq, 1)
            await raw_publish(broker, dlq, b"takes the only place")
        elif trouble == "missing":
            await memory_world.delete_stream(broker, dlq)
        else:
            memory_world.memory.faults.refuse_publish(dlq, PublishRefused("no permission"))
        async with consuming(broker, topic, script, max_retries=1) as run:
            await broker.publisher().publish(topic, Order("bad"))
            await trio.sleep(60)
            first_minute = len(script.times)
            assert 4 <= first_minute <= 8
            await trio.sleep(3540)
            assert len(script.times) - first_minute <= 125
            gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
            assert gaps[0] < gaps[1] < gaps[2] < gaps[3]
            assert max(gaps) <= 35
            assert len(await memory_world.kept(broker, topic.queue)) == 1
            assert run.group.statistics()[topic.queue]["stuck"] == len(script.times)
            assert caplog.text.count("could not be moved on") == len(script.times)

            if trouble == "full":
                await memory_world.limit(broker, dlq, None)
            elif trouble == "missing":
                await broker.declare(topic)
            else:
                memory_world.memory.faults.accept_publish(dlq)
            await memory_world.until_settled(broker, topic.queue)
            dead = await memory_world.kept(broker, dlq)
        assert (await run.end()).is_clean
    assert b"bad" in dead[-1].payload
    # However often it could not be moved: that was no attempt, so the reason is the handler's.
    assert dead[-1].headers["Shove-Death-Reason"] == "rejected"


async def test_pc078_on_a_real_server(server_world: World) -> None:
    topic = server_world.topic()
    script = Script(outcomes={"bad": [Outcome.REJECT] * 100})
    async with server_world.broker(topic) as broker:
        await server_world.delete_stream(broker, topic.topology.dlq)
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("bad"))
            await script.journal.until(2)
            assert len(await server_world.kept(broker, topic.queue)) == 1
            await broker.declare(topic)
            [dead] = await server_world.until_kept(broker, topic.topology.dlq, 1)
            await server_world.until_settled(broker, topic.queue)
        assert await server_world.kept(broker, topic.queue) == []
    assert dead.headers["Shove-Death-Reason"] == "rejected"


# ------------------------------------------------------------------ PC-079


async def test_pc079_full_dead_letter_queue_stops_nobody_else(world: World, clock: Clock) -> None:
    topic = world.topic()
    script = Script(outcomes={f"bad-{n}": [Outcome.REJECT] * 100 for n in range(3)})
    async with world.broker(topic) as broker:
        await world.limit(broker, topic.topology.dlq, 1)
        async with consuming(broker, topic, script) as run:
            await broker.publisher().publish_batch(topic, [Order(f"bad-{n}") for n in range(3)])
            await world.until_kept(broker, topic.topology.dlq, 1)
            await script.journal.until(3)
            for n in range(10):
                await broker.publisher().publish(topic, Order(f"well-{n}"))
            await world.until_kept(broker, topic.queue, 2)  # only the two that have no place
            assert {f"well-{n}" for n in range(10)} < {name for name, _ in script.journal.entries}
            # Stopping is not held up by what cannot be moved.
            assert (await run.stop()).is_clean
        await world.limit(broker, topic.topology.dlq, None)
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 3)
            await world.until_settled(broker, topic.queue)


# ------------------------------------------------------------------ PC-080


@pytest.mark.parametrize("end", ["rejected", "max_retries_exceeded", "undecodable"])
async def test_pc080_without_a_dead_letter_queue_losses_are_counted_and_warned_of(
    world: World, clock: Clock, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = world.topic(lambda b: b)
    outcome = Outcome.REJECT if end == "rejected" else Outcome.RETRY
    script = Script(outcomes={f"bad-{n}": [outcome] * 9 for n in range(3)})
    with caplog.at_level(logging.WARNING, logger="shove_actors.consumer"):
        async with world.broker(topic) as broker:
            async with consuming(broker, topic, script, max_retries=0) as run:
                for n in range(3):
                    if end == "undecodable":
                        await raw_publish(broker, topic.queue, b"?")
                    else:
                        await broker.publisher().publish(topic, Order(f"bad-{n}"))
                await world.until_kept(broker, topic.queue, 0)
            assert run.group.statistics()[topic.queue]["discarded"] == 3
    warnings = [r for r in caplog.records if "was discarded" in r.getMessage()]
    assert len(warnings) == 1
    assert topic.queue in warnings[0].getMessage()
    assert end in warnings[0].getMessage()


# ------------------------------------------------------------------ PC-081


async def test_pc081_each_death_tells_its_story(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(5).dlq())
    dlq = topic.topology.dlq

    async def handle(order: Order) -> Outcome:
        if order.name == "rejected":
            return Reject(reason="no such\r\naccount: " + "x" * 1000)
        if order.name == "raises":
            raise ValueError("holds\r\na newline")
        if order.name == "hangs":
            await trio.sleep_forever()
        if order.name == "wrong":
            return None  # type: ignore[return-value]
        return Outcome.RETRY

    async with memory_world.broker(topic) as broker:
        await trio.sleep(100)
        await raw_publish(broker, topic.queue, b"not JSON")
        await raw_publish(broker, topic.queue, b'{"name":"%b"}' % (b"x" * TOO_LARGE))
        publisher = broker.publisher()
        for name in ("rejected", "raises", "hangs", "wrong", "fails"):
            await publisher.publish(topic, Order(name), message_id=f"id-{name}")
        options = {"max_retries": 1, "handler_timeout": 1.0, "max_message_size": 100}
        async with consuming(broker, topic, handle, **options):
            found = await memory_world.until_kept(broker, dlq, 7)
    story = {
        message.headers["Shove-Original-Sequence"]: (
            message.headers["Shove-Death-Reason"],
            message.headers["Shove-Death-Cause"],
            message.headers["Shove-Retry-Count"],
        )
        for message in found
    }
    assert story == {
        "1": ("undecodable", "undecodable", "0"),
        "2": ("oversize", "oversize", "0"),
        "3": ("rejected", "reject", "0"),
        "4": ("max_retries_exceeded", "raised", "1"),
        "5": ("max_retries_exceeded", "timeout", "1"),
        "6": ("max_retries_exceeded", "invalid", "1"),
        "7": ("max_retries_exceeded", "retry", "1"),
    }
    for message in found:
        assert message.headers["Shove-Original-Queue"] == topic.queue
        assert message.headers["Shove-Original-Subject"] == topic.queue
        assert message.headers["Shove-Original-Stream"]
        assert message.headers["Shove-Death-Count"] == "1"
        assert message.headers["Shove-Published-At"] == "2026-01-01T00:01:40.000000000Z"
    by_id = {message.headers["Shove-Message-Id"]: message for message in found}
    assert by_id["id-raises"].headers["Shove-Death-Detail"] == "ValueError"
    detail = by_id["id-rejected"].headers["Shove-Death-Detail"]
    assert detail.startswith("no such account")
    assert len(detail) <= 200
    for name, at_least in (("id-rejected", 0), ("id-raises", 5), ("id-hangs", 6)):
        headers = by_id[name].headers
        metadata = DeadMetadata(_Stored(headers))
        assert metadata.died_at is not None
        assert metadata.first_failed_at is not None
        between = metadata.died_at - metadata.first_failed_at
        assert timedelta(seconds=at_least) <= between < timedelta(seconds=at_least + 2)


class _Stored:
    """The headers of a stored message, as metadata read them."""

    payload, stream, subject = b"", "s", "s"
    sequence = num_delivered = 1
    timestamp_ns = 0

    def __init__(self, headers: object) -> None:
        self.headers = headers
        self.raw_headers = b"\nShove-"


async def test_pc081_sequenced_dead_letters_name_their_key(world: World, clock: Clock) -> None:
    topic = SequencedTopic(
        Order,
        key=lambda o: o.key,
        topology=TopologyBuilder(world.fresh())
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(2)
        .hold_queue(0.1)
        .dlq()
        .build(),
    )
    seen: Journal[DeadMetadata] = Journal()

    async def handle_dead(order: Order, metadata: DeadMetadata) -> Outcome:
        seen.add(metadata)
        return Outcome.ACK

    script = Script(outcomes={"x": [Outcome.RETRY] * 9})
    async with world.broker(topic) as broker:
        receipt = await broker.publisher().publish(topic, Order("x", "schlüssel 1"))
        async with (
            consuming(broker, topic, script, max_retries=2),
            burying(broker, topic, handle_dead),
        ):
            [dead] = await seen.until(1)
        assert dead.reason == "max_retries_exceeded"
        assert dead.key == "schlüssel 1"
        assert dead.original_queue == topic.queue
        assert dead.original_subject == topic.topology.shard_subject(topic.shard_of("schlüssel 1"))
        assert dead.original_sequence == receipt.sequence
        assert dead.retry_count == 2


# ------------------------------------------------------------------ PC-083


async def test_pc083_what_cannot_be_read_is_never_destroyed(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = world.topic()
    large = b'{"name":"%b"}' % (b"x" * TOO_LARGE)
    seen: Journal[tuple[str, str]] = Journal()

    async def handle_dead(order: Order, metadata: DeadMetadata) -> Outcome:
        seen.add((order.name, metadata.reason))
        return Outcome.ACK

    async with world.broker(topic) as broker:
        await raw_publish(broker, topic.queue, b"\x00\xff", {"X-Own": "header"})
        await raw_publish(broker, topic.queue, large)
        async with consuming(broker, topic, ack, max_message_size=100):
            await world.until_kept(broker, topic.topology.dlq, 2)
        async with burying(broker, topic, handle_dead) as run:
            await seen.until(1)
            assert topic.topology.dlq is not None
            await world.until_settled(broker, topic.topology.dlq)
        kept = await world.kept(broker, topic.topology.dlq)
        assert run.group.statistics()[topic.topology.dlq]["kept"] == 1
    # The oversized one was handed over whole; the undecodable one is still there, and reported.
    assert seen.entries == [("x" * TOO_LARGE, "oversize")]
    assert [message.payload for message in kept] == [b"\x00\xff", large]
    assert kept[0].headers["X-Own"] == "header"
    assert "does not decode" in caplog.text


async def test_pc083_undecodable_letters_are_handed_over_raw_if_wanted(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    seen: Journal[tuple[object, str]] = Journal()

    class Undertaker:
        async def handle_dead(
            self, order: Order, metadata: DeadMetadata, context: object
        ) -> Outcome:
            seen.add((order.name, metadata.reason))
            return Outcome.ACK

        async def handle_undecodable(
            self, payload: bytes, metadata: DeadMetadata, context: object
        ) -> Outcome:
            seen.add((payload, metadata.reason))
            return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await raw_publish(broker, topic.queue, b"\x00\xff")
        await broker.publisher().publish(topic, Order("bad"))
        script = Script(outcomes={"bad": [Outcome.REJECT]})
        async with consuming(broker, topic, script), burying(broker, topic, Undertaker()):
            await seen.until(2)
    assert sorted(seen.entries, key=repr) == [("bad", "rejected"), (b"\x00\xff", "undecodable")]


# ------------------------------------------------------------------ PC-084


@pytest.mark.parametrize("how", ["raises", "hangs", "rejects", "retries", "defers"])
async def test_pc084_failing_handler_of_dead_letters_keeps_them(
    memory_world: World, autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """The letter has used up ten retries in its life; here it has a budget of its own."""
    topic = memory_world.topic(lambda b: b.hold_queue(0.1).dlq())
    dlq = topic.topology.dlq
    assert dlq is not None
    tries: Journal[str] = Journal()

    async def handle_dead(order: Order, metadata: DeadMetadata) -> Outcome:
        tries.add(order.name)
        assert metadata.retry_count == 10
        if order.name == "first":
            if how == "raises":
                raise ValueError
            if how == "hangs":
                await trio.sleep_forever()
            if how == "defers":
                return Outcome.DEFER if len(tries) < 30 else Outcome.ACK
            return Outcome.REJECT if how == "rejects" else Outcome.RETRY
        return Outcome.ACK

    script = Script(outcomes={name: [Outcome.RETRY] * 11 for name in ("first", "second")})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("first"))
            await memory_world.until_kept(broker, dlq, 1)
            await broker.publisher().publish(topic, Order("second"))
            await memory_world.until_kept(broker, dlq, 2)
        async with burying(
            broker, topic, handle_dead, max_retries=3, handler_timeout=1.0, retry_delay=0.1
        ) as run:
            await tries.until(2)
            await memory_world.until_settled(broker, dlq)
        assert len(await memory_world.kept(broker, dlq)) == 2
        assert (await run.end()).is_clean
        kept = run.group.statistics()[dlq].get("kept", 0)
    assert tries.entries.count("second") == 1
    expected = {"rejects": 1, "defers": 29}.get(how, 4)
    assert tries.entries.count("first") == expected
    assert kept == (0 if how == "defers" else 1)


async def test_pc084_crashed_dead_letter_consumer_has_a_bound_too(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """A letter whose handler ends its process is kept after its budget, and counted there."""
    assert memory_world.memory is not None
    server = memory_world.memory
    topic = memory_world.topic()
    dlq = topic.topology.dlq
    assert dlq is not None
    script = Script(outcomes={"x": [Outcome.REJECT]})
    runs = 0
    async with memory_world.broker(topic) as healthy:
        async with consuming(healthy, topic, script):
            await healthy.publisher().publish(topic, Order("x"))
            await memory_world.until_kept(healthy, dlq, 1)
        for number in range(6):
            died = trio.Event()

            async def die(order: Order) -> Outcome:
                nonlocal runs
                runs += 1
                server.faults.crash(f"victim-{number}")  # noqa: B023
                died.set()  # noqa: B023
                await trio.sleep_forever()
                raise AssertionError

            with trio.CancelScope() as process:
                config = MemoryConfig(server=server, name=f"victim-{number}")
                async with open_broker(config) as broker, trio.open_nursery() as nursery:
                    group = broker.consumer_supervisor()
                    group.register_dlq(topic, die, max_retries=1, ack_wait=1.0)
                    nursery.start_soon(lambda group=group: group.serve(drain_timeout=0.0))
                    with trio.move_on_after(20):
                        await died.wait()
                    (process if died.is_set() else nursery.cancel_scope).cancel()
        assert len(await memory_world.kept(healthy, dlq)) == 1
        await memory_world.until_settled(healthy, dlq)
    assert runs == 3


def test_dead_letters_need_a_queue() -> None:
    """Said when registering, not when the first message fails."""
    from shove_actors import UsageError
    from shove_actors.runtime._dead_registration import DeadRegistration
    from shove_actors.runtime._options import ConsumerOptions

    topic = Topic(Order, TopologyBuilder("q").build())
    with pytest.raises(UsageError, match="no dead-letter queue"):
        DeadRegistration(topic, ConsumerOptions(), handler=ack)
