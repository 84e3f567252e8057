"""audited: what a failing sink costs, and that the record comes before the settle."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio

from shove_actors import (
    RAW,
    AuditRecord,
    MemoryConfig,
    MemoryServer,
    MessageMetadata,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    audited,
    open_broker,
)

from .auditing import KINDS, Sink, topic_of
from .fixtures import Clock
from .world import Journal, Order, Script, World, burying, consuming, raw_publish, until

# ------------------------------------------------------------------ a sink that fails


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outcome", [Outcome.ACK, Outcome.REJECT, ValueError("boom")])
async def test_pc136_sw60_a_sink_that_is_down_costs_no_retry(
    world: World, clock: Clock, kind: str, outcome: object
) -> None:
    """max_retries=1, and the sink fails five times: the message comes again until the record is
    written, and only then is what the handler said carried out, with the budget untouched."""
    topic, sink = topic_of(world, kind), Sink(failures=5)
    script = Script(outcomes={"a": [outcome] * 6})
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(
            broker, topic, audited(script, sink), max_retries=1, retry_delay=0.05
        ) as run:
            await sink.records.until(1)
            await world.until_kept(broker, topic.queue, 0)
            dead = await world.kept(broker, topic.topology.dlq)
            if isinstance(outcome, ValueError):
                # The sixth attempt is the first that counts: one retry is left, and it succeeds.
                await sink.records.until(2)
                await world.until_kept(broker, topic.queue, 0)
            counts = run.group.statistics()[topic.queue]
    assert len(dead) == (outcome is Outcome.REJECT)
    assert script.attempts("a")[:6] == [0] * 6
    assert all(m.redelivered for m in script.seen[1:6])
    assert counts.get("dead", 0) == len(dead)
    assert len(sink.traces()) == 1


async def test_pc136_a_time_out_whose_record_fails_costs_no_retry_either(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sink = memory_world.topic(), Sink(failures=2)
    attempts: list[int] = []

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        attempts.append(metadata.retry_count)
        if len(attempts) <= 3:
            await trio.sleep_forever()
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(
            broker, topic, audited(handle, sink), handler_timeout=0.5, max_retries=1
        ):
            await sink.records.until(2)
            await memory_world.until_kept(broker, topic.queue, 0)
        assert not await memory_world.kept(broker, topic.topology.dlq)
    assert attempts == [0, 0, 0, 1]
    assert sink.outcomes() == [("retry", "timeout"), ("ack", "outcome")]


async def test_pc136_dead_letters_are_kept_until_they_are_audited(
    world: World, clock: Clock
) -> None:
    topic, sink = world.topic(), Sink(failures=3)
    dead = Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with (
            consuming(broker, topic, Script(outcomes={"a": [Outcome.REJECT]})),
            burying(broker, topic, audited(dead, sink), max_retries=0, retry_delay=0.05) as run,
        ):
            await sink.records.until(1)
            dlq = str(topic.topology.dlq)
            await world.until_settled(broker, dlq)
            assert run.group.statistics()[dlq].get("kept", 0) == 0
            assert run.group.statistics()[dlq]["ack"] == 1
    assert dead.attempts("a") == [0] * 4


async def test_keep_lets_the_outcome_stand_and_reports_the_gap(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic, sink = world.topic(), Sink(failures=1)
    script = Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("secret"))
        async with consuming(broker, topic, audited(script, sink, on_failure="keep")):
            await script.journal.until(1)
            await world.until_kept(broker, topic.queue, 0)
    assert script.attempts("secret") == [0]
    assert not sink.records.entries
    [line] = [r for r in caplog.records if getattr(r, "shove_event", "") == "audit_gap"]
    assert line.levelno == logging.ERROR
    assert line.shove_queue == topic.queue
    assert line.shove_outcome == "ack"
    assert "RuntimeError" in line.getMessage()
    assert "database" not in line.getMessage()


@pytest.mark.parametrize("on_failure", ["retry", "keep"])
async def test_sw63_a_sink_that_hangs_is_given_up_and_the_outcome_stands(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    on_failure: Any,
) -> None:
    """Five seconds by default; the handler's time-out is over long before that."""
    topic = memory_world.topic()
    script = Script()

    async def hangs(record: AuditRecord[Order]) -> None:
        await trio.sleep_forever()

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(
            broker,
            topic,
            audited(script, hangs, on_failure=on_failure),
            handler_timeout=0.5,
            ack_wait=3.0,
        ):
            await script.journal.until(1)
            began = trio.current_time()
            await memory_world.until_kept(broker, topic.queue, 0)
            assert 4.9 <= trio.current_time() - began <= 5.5
    assert script.attempts("a") == [0]
    [line] = [r for r in caplog.records if getattr(r, "shove_event", "") == "audit_gap"]
    assert "no answer within 5 s" in line.getMessage()


async def test_a_sink_that_turns_its_cancellation_into_an_error_has_failed(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, script, calls = memory_world.topic(), Script(), 0

    async def sink(record: AuditRecord[Order]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("rolled back")

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(script, sink, timeout=1)):
            await memory_world.until_kept(broker, topic.queue, 0)
            await until(lambda: calls == 2)
    assert script.attempts("a") == [0, 0]


async def test_an_interrupted_attempt_whose_record_fails_is_reported(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, began = memory_world.topic(), trio.Event()

    async def handle(order: Order) -> Outcome:
        began.set()
        await trio.sleep_forever()
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(handle, Sink(failures=9))) as run:
            await began.wait()
            run.group.hard_stop()
            await run.end()
        assert len(await memory_world.kept(broker, topic.queue)) == 1
    [line] = [r for r in caplog.records if getattr(r, "shove_event", "") == "audit_gap"]
    assert line.shove_outcome == "interrupted"


async def test_an_error_whose_record_fails_is_still_logged(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, sink = memory_world.topic(), Sink(failures=1)
    script = Script(outcomes={"a": [ValueError("boom")]})
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(script, sink)):
            await sink.records.until(1)
    events = [getattr(r, "shove_event", "") for r in caplog.records]
    assert events.count("handler_raised") == 1
    assert events.count("audit_retry") == 1


async def test_an_audit_retry_that_cannot_grow_stays_and_is_not_buried(
    fresh_queue: Callable[[], str], autojump_clock: trio.testing.MockClock
) -> None:
    """A foreign message as large as the server allows has no room for a header of ours."""
    topic = Topic(bytes, TopologyBuilder(fresh_queue()).hold_queue(1).dlq().build(), codec=RAW)
    server, sink = MemoryServer(), Sink(failures=2)
    async with open_broker(MemoryConfig(server=server, max_payload=4096)) as broker:
        await broker.declare(topic)
        await raw_publish(broker, topic.queue, b"x" * 4096)

        async def handle(message: bytes) -> Outcome:
            return Outcome.ACK

        async with consuming(broker, topic, audited(handle, sink)):
            await sink.records.until(1)
        assert not server.messages(topic.queue)
        assert not server.messages(str(topic.topology.dlq))
    assert sink.calls == 3


# ------------------------------------------------------------------ order


async def test_the_record_comes_before_the_settle_and_the_lane_is_closed_meanwhile(
    world: World, clock: Clock
) -> None:
    """Two keys of one shard: nothing of the lane is handled while a record is being written, or
    while a message waits for the next try of its record."""
    topic = topic_of(world, "sequenced")
    seen: Journal[str] = Journal()
    failures = {"a": 2, "b": 1}

    async def handle(order: Order) -> Outcome:
        seen.add(f"handle {order.name}")
        return Outcome.ACK

    async with world.broker(topic) as broker:

        async def sink(record: AuditRecord[Order]) -> None:
            name = record.payload.name
            stored = [kept.sequence for kept in await world.kept(broker, topic.queue)]
            assert record.metadata.sequence in stored
            await trio.sleep(0.05)
            seen.add(f"audit {name}")
            if failures.get(name, 0):
                failures[name] -= 1
                raise RuntimeError("down")

        for name, key in [("a", "k1"), ("b", "k2"), ("c", "k1")]:
            await broker.publisher().publish(topic, Order(name, key))
        async with consuming(broker, topic, audited(handle, sink), max_retries=0):
            await seen.until(12)
            await world.until_kept(broker, topic.queue, 0)
        assert not await world.kept(broker, topic.topology.dlq)
    order = [name for name in "aaabbc" for _ in range(2)]
    assert seen.entries == [f"{'audit' if i % 2 else 'handle'} {n}" for i, n in enumerate(order)]


async def test_a_key_is_not_poisoned_before_its_failure_is_audited(
    world: World, clock: Clock
) -> None:
    """FAIL_ALL: a rejection whose record is missing is no end of the key yet."""
    topology = (
        TopologyBuilder(world.fresh())
        .sequenced(SequenceFailure.FAIL_ALL)
        .routing_shards(1)
        .hold_queue(0.1)
        .dlq()
        .build()
    )
    topic = SequencedTopic(Order, key=lambda o: o.key, topology=topology)
    script = Script(outcomes={"a": [Outcome.REJECT] * 3})
    known: Journal[int] = Journal()
    async with world.broker(topic) as broker:

        async def sink(record: AuditRecord[Order]) -> None:
            known.add(len(await broker.poisoned(topic)))
            if len(known) < 3:
                raise RuntimeError("down")

        await broker.publisher().publish_batch(topic, [Order("a", "k"), Order("b", "k")])
        async with consuming(broker, topic, audited(script, sink), max_retries=0):
            await world.until_kept(broker, topic.topology.dlq, 2)
        [poisoned] = await broker.poisoned(topic)
    assert poisoned.key == "k"
    assert known.entries == [0, 0, 0]
    assert script.attempts("a") == [0, 0, 0]
    assert script.attempts("b") == []
