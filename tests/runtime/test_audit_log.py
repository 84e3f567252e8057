"""AuditLog: records as messages of a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from shove_actors import (
    RAW,
    AuditEntry,
    AuditLog,
    MemoryConfig,
    MemoryServer,
    NatsStreamConfig,
    Outcome,
    Reject,
    Topic,
    TopologyBuilder,
    UsageError,
    audited,
    open_broker,
)
from shove_actors.backends.nats import NatsBackend

from .auditing import Sink
from .fixtures import Clock
from .world import Journal, Order, Script, World, consuming, raw_publish, running, until


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


async def test_a_deleted_stream_is_made_again_for_the_next_record(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    script = Script()
    async with world.broker(topic, AuditLog.topic) as broker:
        await world.delete_stream(broker, AuditLog.topic.queue)  # others' records, on this server
        await broker.publisher().publish(topic, Order("a"))
        async with consuming(broker, topic, audited(script, AuditLog(broker))):
            await entries_of(world, broker, 1)
            await world.delete_stream(broker, AuditLog.topic.queue)
            await broker.publisher().publish(topic, Order("b"))
            # Not before its record is stored.
            await until(lambda: len(script.journal.entries) == 2)
            await world.until_settled(broker, topic.queue)
            (entry,) = await entries_of(world, broker, 1)
            assert entry.payload == {"name": "b", "key": ""}
        assert script.journal.entries == [("a", 0), ("b", 0)], "no record cost an attempt"
        await world.delete_stream(broker, AuditLog.topic.queue)


@pytest.mark.server
async def test_the_stream_of_the_records_has_the_settings_given(server_world: World) -> None:
    settings = NatsStreamConfig(max_messages=50)
    async with server_world.broker() as broker:
        log = AuditLog(broker, stream=settings)
        await log.prepare()
        assert isinstance(broker.backend, NatsBackend)
        info = await broker.backend.js.stream_info(AuditLog.topic.queue)
        assert info.config.max_msgs == 50
        await server_world.delete_stream(broker, AuditLog.topic.queue)
        await server_world.delete_stream(broker, AuditLog.topic.topology.dlq)
    with pytest.raises(UsageError, match=r"AuditLog\(stream=int\): give it a NatsStreamConfig"):
        AuditLog(broker, stream=3)  # type: ignore[arg-type]
