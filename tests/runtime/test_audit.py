"""audited: one record per attempt, whatever becomes of it, for every kind of handler."""

from __future__ import annotations

import sys
import threading
from datetime import timezone
from functools import partial

import pytest
import trio

from shove_actors import (
    AuditRecord,
    DeadMetadata,
    MessageMetadata,
    Outcome,
    Reject,
    Retry,
    UsageError,
    audited,
)

from .fixtures import Clock
from .world import Order, Script, World, burying, consuming, raw_publish, running

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup
from .auditing import KINDS, Sink, topic_of

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


# ------------------------------------------------------------------ kinds of handlers and sinks


@pytest.mark.parametrize("kind", ["memory", "server"])
async def test_plain_functions_as_handler_and_as_sink(
    kind: str, request: pytest.FixtureRequest
) -> None:
    # In real time also in memory: virtual time would jump to the sink's time-out while a thread
    # works (PC-104).
    world: World = request.getfixturevalue(f"{kind}_world")
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
