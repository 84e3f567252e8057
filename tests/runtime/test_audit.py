"""audited: one record per attempt, whatever becomes of it, and what a failing sink costs."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timezone
from functools import partial
from typing import Any

import pytest
import trio

from shove_actors import (
    RAW,
    AuditEntry,
    AuditLog,
    AuditRecord,
    DeadMetadata,
    MemoryConfig,
    MemoryServer,
    MessageMetadata,
    Outcome,
    Reject,
    Retry,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    UsageError,
    audited,
    open_broker,
)

from .fixtures import Clock
from .world import Journal, Order, Script, World, burying, consuming, raw_publish, running, until

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

KINDS = ["holds", "no holds", "sequenced"]


def topic_of(world: World, kind: str) -> Topic[Order]:
    if kind == "sequenced":
        topology = (
            TopologyBuilder(world.fresh())
            .sequenced(SequenceFailure.SKIP)
            .routing_shards(1)
            .hold_queue(0.1)
            .dlq()
            .build()
        )
        return SequencedTopic(Order, key=lambda o: o.key, topology=topology)
    return world.topic() if kind == "holds" else world.topic(lambda b: b.dlq())


@dataclass
class Sink:
    """Keeps records; fails as often as it is told first."""

    failures: int = 0
    records: Journal[AuditRecord[Any]] = field(default_factory=Journal)
    calls: int = 0

    async def audit(self, record: AuditRecord[Any]) -> None:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the audit database is down")
        self.records.add(record)

    def outcomes(self) -> list[tuple[str, str]]:
        return [(r.outcome.name, r.cause) for r in self.records.entries]

    def traces(self) -> set[str]:
        return {r.trace_id for r in self.records.entries}


# ------------------------------------------------------------------ one record per attempt


@pytest.mark.parametrize("kind", KINDS)
async def test_every_attempt_has_a_record_and_one_trace_id(
    world: World, clock: Clock, kind: str
) -> None:
    topic, sink = topic_of(world, kind), Sink()
    script = Script(outcomes={"a": [Outcome.RETRY, ValueError("boom"), 17, Retry(reason="busy")]})
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(script, sink), retry_delay=0.05):
            records = await sink.records.until(5)
            await world.until_kept(broker, topic.queue, 0)
    assert sink.outcomes() == [
        ("retry", "outcome"),
        ("retry", "raised"),
        ("retry", "invalid"),
        ("retry", "outcome"),
        ("ack", "outcome"),
    ]
    assert [r.detail for r in records] == [None, "ValueError", "returned int", "busy", None]
    assert len(sink.traces()) == 1
    assert [r.metadata.retry_count for r in records] == [0, 1, 2, 3, 4]
    for record in records:
        assert record.topic == topic.queue
        assert record.payload == Order("a")
        assert record.raw == topic.encode(Order("a"))
        assert record.duration_ms >= 0
        assert record.timestamp.tzinfo is timezone.utc
        assert "'a'" not in repr(record)


async def test_messages_have_trace_ids_of_their_own_or_the_callers(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sink = memory_world.topic(), Sink()
    async with memory_world.broker(topic) as broker:
        publisher = broker.publisher()
        await publisher.publish(topic, Order("a"))
        await publisher.publish(topic, Order("b"))
        await publisher.publish(topic, Order("c"), headers={"X-Trace-Id": "of-the-caller"})
        async with consuming(broker, topic, audited(Script(), sink)):
            records = await sink.records.until(3)
    by_name = {r.payload.name: r.trace_id for r in records}
    assert by_name["c"] == "of-the-caller"
    assert len(set(by_name.values())) == 3
    assert len(by_name["a"]) == 36


@pytest.mark.parametrize("header", [None, "of-the-caller"])
async def test_trace_id_is_the_same_in_the_dead_letters(
    world: World, clock: Clock, header: str | None
) -> None:
    """Through a hold queue, into the dead letters, and through a retry there."""
    topic, sink = world.topic(), Sink()
    headers = {"x-trace-id": header} if header else None
    dead = Script(outcomes={"a": [Outcome.RETRY]})
    script = Script(outcomes={"a": [Outcome.RETRY, Reject(reason="enough")]})
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"), headers=headers)
        async with (
            consuming(broker, topic, audited(script, sink)),
            burying(broker, topic, audited(dead, sink), retry_delay=0.05),
        ):
            records = await sink.records.until(4)
    assert sink.outcomes() == [
        ("retry", "outcome"),
        ("reject", "outcome"),
        ("retry", "outcome"),
        ("ack", "outcome"),
    ]
    assert {r.topic for r in records} == {topic.queue}
    assert isinstance(records[2].metadata, DeadMetadata)
    assert records[1].detail == "enough"
    assert len(sink.traces()) == 1
    if header:
        assert sink.traces() == {header}


# ------------------------------------------------------------------ attempts that are cut short


async def test_pc137_timed_out_attempts_have_a_record(world: World, clock: Clock) -> None:
    topic, sink = world.topic(), Sink()
    again = trio.Event()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        if metadata.retry_count == 0:
            await trio.sleep_forever()
        again.set()
        return Outcome.ACK

    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(handle, sink), handler_timeout=0.3):
            await sink.records.until(2)
    assert again.is_set()
    assert sink.outcomes() == [("retry", "timeout"), ("ack", "outcome")]
    assert sink.records.entries[0].duration_ms >= 299
    assert len(sink.traces()) == 1


@pytest.mark.parametrize("how", ["drain", "kill"])
async def test_pc137_attempts_interrupted_by_a_stop_have_a_record(
    world: World, clock: Clock, how: str
) -> None:
    topic, sink = world.topic(), Sink()
    began = trio.Event()

    async def handle(order: Order) -> Outcome:
        began.set()
        await trio.sleep_forever()
        return Outcome.ACK

    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(handle, sink), drain_timeout=0.2) as run:
            with trio.fail_after(20):
                await began.wait()
            if how == "kill":
                run.group.hard_stop()
            else:
                run.group.stop()
            assert (await run.end()).timed_out
        assert sink.outcomes() == [("interrupted", "interrupted")]
        assert sink.records.entries[0].outcome is Outcome.INTERRUPTED
        # Given back, not an attempt: the next consumer has its whole budget.
        script = Script()
        async with consuming(broker, topic, audited(script, sink), max_retries=0):
            await sink.records.until(2)
        assert script.attempts("a") == [0]
        assert len(sink.traces()) == 1
        assert not await world.kept(broker, topic.topology.dlq)


async def test_pc137_a_lost_lease_has_a_record(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sink = memory_world.topic(), Sink()
    began, cancelled = trio.Event(), trio.Event()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        if not began.is_set():
            began.set()
            try:
                await trio.sleep_forever()
            finally:
                cancelled.set()
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(
            broker, topic, audited(handle, sink), ack_wait=6.0, handler_timeout=None
        ):
            await began.wait()
            assert memory_world.memory is not None
            memory_world.memory.delete_durable(topic.queue, topic.topology.durable)
            await cancelled.wait()
            records = await sink.records.until(2)
    assert [(r.outcome.name, r.detail) for r in records] == [
        ("interrupted", "lease lost"),
        ("ack", None),
    ]
    assert len(sink.traces()) == 1


async def test_a_base_exception_has_a_record_and_goes_to_the_supervisor(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    class Panic(BaseException):
        pass

    topic, sink = memory_world.topic(), Sink()
    script = Script(outcomes={"a": [Panic()]})

    async def panic() -> None:
        async with memory_world.broker(topic) as broker:
            await broker.publisher().publish(topic, Order("a"))
            async with consuming(broker, topic, audited(script, sink)):
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await panic()
    assert caught.group_contains(Panic)
    assert [(r.outcome.name, r.detail) for r in sink.records.entries] == [("interrupted", "Panic")]


async def test_a_record_is_not_torn_by_a_stop(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The drain ends, and the kill comes, while the sink is writing: it finishes, and the outcome
    of the finished work is carried out."""
    topic = memory_world.topic()
    began, written = trio.Event(), trio.Event()

    async def sink(record: AuditRecord[Order]) -> None:
        began.set()
        await trio.sleep(2)
        written.set()

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(Script(), sink), drain_timeout=0.5) as run:
            await began.wait()
            run.group.hard_stop()
            await run.end()
        assert written.is_set()
        assert not await memory_world.kept(broker, topic.queue)


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


# ------------------------------------------------------------------ kinds of handlers and sinks


async def test_plain_functions_as_handler_and_as_sink(world: World, clock: Clock) -> None:
    topic = world.topic()
    threads: set[str] = set()
    records: list[AuditRecord[Order]] = []
    main = threading.get_ident()

    def handle(order: Order) -> Outcome:
        threads.add("main" if threading.get_ident() == main else "other")
        return Outcome.REJECT

    def sink(record: AuditRecord[Order]) -> None:
        threads.add("main" if threading.get_ident() == main else "other")
        records.append(record)

    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(handle, sink)):
            await world.until_kept(broker, topic.topology.dlq, 1)
    assert [r.outcome for r in records] == [Outcome.REJECT]
    assert threads == {"other"}


async def test_a_plain_sink_that_hangs_is_left_behind(server_world: World) -> None:
    topic, release = server_world.topic(), threading.Event()

    def sink(record: AuditRecord[Order]) -> None:
        release.wait(20)

    try:
        async with server_world.broker(topic) as broker:
            await broker.publisher().publish(topic, Order("a"))
            async with consuming(broker, topic, audited(Script(), sink, timeout=0.2)):
                await server_world.until_kept(broker, topic.queue, 0)
    finally:
        release.set()


class Both:
    """A handler object with every method there is."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.number = type(self).made

    async def handle(self, order: Order) -> Outcome:
        return Outcome.REJECT

    async def handle_dead(self, order: Order, metadata: DeadMetadata) -> Outcome:
        return Outcome.ACK

    async def handle_undecodable(self, payload: bytes, metadata: DeadMetadata) -> Outcome:
        return Outcome.ACK


async def test_objects_with_handle_dead_and_handle_undecodable(world: World, clock: Clock) -> None:
    topic, sink, handler = world.topic(), Sink(), Both()
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        await raw_publish(broker, topic.queue, b"no json")
        group = broker.consumer_supervisor()
        group.register(topic, audited(handler, sink))
        group.register_dlq(topic, audited(handler, sink))
        async with running(group):
            records = await sink.records.until(3)
    # What does not decode reached no handler of the topic, and one of the dead letters.
    assert sorted((r.outcome.name, r.raw[:2]) for r in records) == [
        ("ack", b"no"),
        ("ack", b'{"'),
        ("reject", b'{"'),
    ]
    [undecodable] = [r for r in records if r.raw == b"no json"]
    assert undecodable.payload == b"no json"
    assert isinstance(undecodable.metadata, DeadMetadata)
    assert undecodable.metadata.reason == "undecodable"


async def test_run_dlq_takes_an_audited_handler(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, sink = memory_world.topic(), Sink()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, Script(outcomes={"a": [Outcome.REJECT]})):
            await memory_world.until_kept(broker, topic.topology.dlq, 1)
        outcome = await broker.run_dlq(
            topic, audited(Script(), sink), signal=partial(sink.records.until, 1)
        )
    assert outcome.is_clean
    assert sink.outcomes() == [("ack", "outcome")]


@pytest.mark.parametrize("form", ["outside", "inside"])
async def test_factories(
    memory_world: World, autojump_clock: trio.testing.MockClock, form: str
) -> None:
    topic, sink = memory_world.topic(), Sink()
    Both.made = 0
    factory = audited(Both, sink) if form == "outside" else lambda: audited(Both(), sink)
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(6)])
        group = broker.consumer_group()
        group.register(topic, factory=factory, consumers=3)
        async with running(group):
            await sink.records.until(6)
    assert Both.made == 3
    assert sink.outcomes() == [("reject", "outcome")] * 6


async def test_two_audits_around_one_handler(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, inner, outer = memory_world.topic(), Sink(failures=1), Sink()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(audited(Script(), inner), outer)):
            await inner.records.until(1)
            await outer.records.until(2)
    assert [r.detail for r in outer.records.entries] == ["unaudited", None]


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_timeouts_are_checked(timeout: float) -> None:
    with pytest.raises(UsageError, match="without a bound"):
        audited(Script(), Sink(), timeout=timeout)


def test_policies_and_sinks_are_checked() -> None:
    with pytest.raises(UsageError, match="'retry' or 'keep'"):
        audited(Script(), Sink(), on_failure="drop")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"audit\(record\)"):
        audited(Script(), 3)  # type: ignore[arg-type]


# ------------------------------------------------------------------ AuditLog


async def entries_of(world: World, broker: Any, count: int) -> list[AuditEntry]:
    kept = await world.until_kept(broker, AuditLog.topic.queue, count)
    return [AuditLog.topic.decode(each.payload) for each in kept]


async def test_audit_log_publishes_every_attempt(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    script = Script(outcomes={"a": [Outcome.RETRY, Reject(reason="enough")]})
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("a", "k"), headers={"tenant": "t1"})
        async with consuming(broker, topic, audited(script, AuditLog(broker))):
            first, second = await entries_of(memory_world, broker, 2)
        assert first.trace_id == second.trace_id
        assert (first.outcome, second.outcome) == ("retry", "reject")
        assert second.detail == "enough"
        assert first.topic == topic.queue
        assert first.payload == {"name": "a", "key": "k"}
        assert first.payload_size == len(topic.encode(Order("a", "k")))
        assert first.payload_base64 is None
        assert not first.payload_omitted
        assert first.metadata.headers["tenant"] == "t1"
        assert (first.metadata.retry_count, second.metadata.retry_count) == (0, 1)
        assert (first.metadata.redelivered, second.metadata.redelivered) == (False, True)
        assert first.metadata.delivery_id == second.metadata.delivery_id


async def test_audit_log_of_what_is_no_json_and_of_foreign_headers(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = Topic(bytes, TopologyBuilder(memory_world.fresh()).dlq().build(), codec=RAW)
    block = b"NATS/1.0\r\nX-Odd: caf\xe9\r\nX-Trace-Id: t\xff\r\n\r\n"

    async def handle(message: bytes) -> Outcome:
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await raw_publish(broker, topic.queue, b"\x00\xff", block=block)
        async with consuming(broker, topic, audited(handle, AuditLog(broker))):
            [entry] = await entries_of(memory_world, broker, 1)
    assert entry.payload is None
    assert entry.payload_base64 == "AP8="
    assert entry.metadata.headers["X-Odd"] == "caf\ufffd"
    assert entry.trace_id == "t\ufffd"


async def test_audit_log_of_a_message_that_is_too_large_leaves_its_payload_out(
    fresh_queue: Callable[[], str], autojump_clock: trio.testing.MockClock
) -> None:
    topic = Topic(bytes, TopologyBuilder(fresh_queue()).dlq().build(), codec=RAW)
    server = MemoryServer()

    async def handle(message: bytes) -> Outcome:
        return Outcome.ACK

    async with open_broker(MemoryConfig(server=server, max_payload=8192)) as broker:
        await broker.declare(topic)
        publisher = broker.publisher()
        await publisher.publish(topic, b"\xff" * 6000)
        await publisher.publish(topic, b"\xff" * 10, headers={"big": "x" * 7000})
        async with consuming(broker, topic, audited(handle, AuditLog(broker))):
            await until(lambda: len(server.messages(AuditLog.topic.queue)) == 2)
            await until(lambda: not server.messages(topic.queue))
        large, headers = (
            AuditLog.topic.decode(m.payload) for m in server.messages(AuditLog.topic.queue)
        )
    assert (large.payload_omitted, large.payload_size) == (True, 6000)
    assert large.payload is None
    assert large.payload_base64 is None
    assert (headers.payload_omitted, headers.payload_size) == (True, 10)
    assert headers.metadata.headers == {}


async def test_auditing_the_audit_log_does_not_recurse(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    archived: Journal[AuditEntry] = Journal()

    async def archive(entry: AuditEntry) -> Outcome:
        archived.add(entry)
        return Outcome.ACK

    async with memory_world.broker(topic, AuditLog.topic) as broker:
        log = AuditLog(broker)
        await broker.publisher().publish(topic, Order("a"))
        group = broker.consumer_group()
        group.register(topic, audited(Script(), log))
        group.register(AuditLog.topic, audited(archive, log))
        async with running(group):
            await archived.until(1)
            await trio.sleep(60)
        assert not await memory_world.kept(broker, AuditLog.topic.queue)
    assert [e.topic for e in archived.entries] == [topic.queue]


async def test_audit_log_on_a_server_is_declared_at_the_start_and_has_dead_letters(
    server_world: World,
) -> None:
    topic = server_world.topic()
    before: set[int] = set()
    async with server_world.broker(topic) as broker:
        await broker.declare(AuditLog.topic)
        before = {k.sequence for k in await server_world.kept(broker, AuditLog.topic.queue)}
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(Script(), AuditLog(broker))):
            await server_world.until_kept(broker, AuditLog.topic.queue, len(before) + 1)
            await server_world.until_kept(broker, topic.queue, 0)
        [new] = [
            k
            for k in await server_world.kept(broker, AuditLog.topic.queue)
            if k.sequence not in before
        ]
    assert AuditLog.topic.topology.dlq == "shove-audit-log-dlq"
    assert AuditLog.topic.decode(new.payload).topic == topic.queue


async def test_a_sink_that_cannot_get_ready_prevents_the_start(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    class Unready(Sink):
        async def prepare(self) -> None:
            raise UsageError("no audit database is configured")

    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, audited(Script(), Unready()))
        with pytest.raises(UsageError, match="no audit database"):
            await group.serve()
