"""The server object: shared, outliving its backends, and quiet when nothing is due."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from shove_actors._errors import ConfigError, TopicNotDeclared, TopologyError, UsageError
from shove_actors.backends import Stored
from shove_actors.backends.memory import (
    DurableSettings,
    MemoryConfig,
    MemoryServer,
    StreamSettings,
)
from shove_actors.messaging import Retention, Storage
from tests.backends.world import drain, receive

from .support import backend_of, memory_world

Clock = trio.testing.MockClock


def test_streams_never_overlap() -> None:
    server = MemoryServer()
    server.create_stream(StreamSettings(name="a", subjects=("x.*", "y")))
    for subjects in (("x.1",), ("*.1",), ("z", ">"), ("y",)):
        with pytest.raises(TopologyError, match="overlaps"):
            server.create_stream(StreamSettings(name="b", subjects=subjects))
    with pytest.raises(TopologyError, match="exists"):
        server.create_stream(StreamSettings(name="a", subjects=("q",)))
    server.create_stream(StreamSettings(name="b", subjects=("z",)))
    assert list(server.streams) == ["a", "b"]


async def test_edit_changes_one_setting_and_leaves_the_rest(autojump_clock: Clock) -> None:
    server = MemoryServer()
    server.create_stream(StreamSettings(name="a", subjects=("a",), max_bytes=1000))
    server.create_stream(StreamSettings(name="b", subjects=("b",)))
    server.edit_stream("a", max_messages=7)
    settings = server.streams["a"].settings
    assert (settings.max_messages, settings.max_bytes) == (7, 1000)
    for changes in ({"retention": Retention.LIMITS}, {"storage": Storage.MEMORY}, {"name": "c"}):
        with pytest.raises(TopologyError, match=next(iter(changes))):
            server.edit_stream("a", **changes)
    with pytest.raises(TopologyError, match="overlaps"):
        server.edit_stream("a", subjects=("a", "b"))
    with pytest.raises(TopicNotDeclared, match="missing"):
        server.edit_stream("missing", max_messages=1)


async def test_stream_named_like_anothers_subject(autojump_clock: Clock) -> None:
    server = MemoryServer()
    server.create_stream(StreamSettings(name="a", subjects=("b",)))
    server.create_stream(StreamSettings(name="b", subjects=("a",)))
    assert server.publish("a", b"") == Stored("b", 1)
    assert server.publish("b", b"") == Stored("a", 1)


async def test_durable_that_could_never_get_a_message_is_refused(autojump_clock: Clock) -> None:
    """PC-011: never silently idle. (The real server creates such a durable.)"""
    server = MemoryServer()
    server.create_stream(StreamSettings(name="q", subjects=("q.*",)))
    with pytest.raises(TopologyError, match="idle"):
        server.open_durable("q", DurableSettings(name="d", filter_subject="other"))
    server.open_durable("q", DurableSettings(name="d", filter_subject="q.>"))


async def test_work_queue_readers_must_be_disjoint(autojump_clock: Clock) -> None:
    server = MemoryServer()
    server.create_stream(StreamSettings(name="q", subjects=("q.*",)))
    server.open_durable("q", DurableSettings(name="a", filter_subject="q.a"))
    server.open_durable("q", DurableSettings(name="b", filter_subject="q.b"))
    for filter_subject in ("q.a", "q.*", None):
        with pytest.raises(TopologyError, match="work queue"):
            server.open_durable("q", DurableSettings(name="c", filter_subject=filter_subject))
    with pytest.raises(UsageError, match="no durable 'c'"):
        server.delete_durable("q", "c")


async def test_backends_come_and_go(autojump_clock: Clock) -> None:
    server = MemoryServer()
    world = memory_world(server)
    async with world.process() as one:
        await one.stored(3)
    assert not server.backends
    async with world.process(declare=False) as other:
        assert [d.payload for d in await drain(await other.lane(credit=3), 3)] == [b"0", b"1", b"2"]
        assert backend_of(one).name != backend_of(other).name


async def test_time_passes_while_nobody_is_connected(autojump_clock: Clock) -> None:
    """An ack wait that ends with no backend open: the next one gets the message at once."""
    server = MemoryServer()
    world = memory_world(server)
    async with world.process() as one:
        await one.stored(1)
        await receive(await one.lane(ack_wait_s=5.0))
    await trio.sleep(100)
    async with world.process(declare=False) as other:
        start = trio.current_time()
        assert (await receive(await other.lane(ack_wait_s=5.0))).num_delivered == 2
        assert trio.current_time() == start


async def test_the_one_that_leaves_hands_on_the_time(autojump_clock: Clock) -> None:
    """Only the first backend slept until the deadline; it leaves, the other must take over."""
    server = MemoryServer()
    world = memory_world(server)
    async with world.process() as other:
        theirs = await other.lane(ack_wait_s=5.0)
        async with world.process() as one:
            mine = await one.lane(ack_wait_s=5.0)
            await one.stored(2)
            await receive(mine)
            first = await receive(theirs)
            theirs.ack(first)
        again = await receive(theirs)
        assert again.num_delivered == 2
        assert trio.current_time() == 5.0


async def test_idle_server_leaves_the_clock_alone(autojump_clock: Clock) -> None:
    """Everything settled: no task wakes for a deadline that has lost its reason."""
    server = MemoryServer()
    passes = 0
    real_serve = server.serve

    def counted() -> None:
        nonlocal passes
        passes += 1
        real_serve()

    server.serve = counted  # type: ignore[method-assign]
    async with memory_world(server).process() as process:
        await process.stored(20)
        lane = await process.lane(credit=5, ack_wait_s=3.0)
        await drain(lane, 20)
        await trio.testing.wait_all_tasks_blocked()
        assert server.next_due() == math.inf
        before = passes
        await trio.sleep(3600)
        assert passes - before <= 1


async def test_a_lease_costs_one_wake_up(autojump_clock: Clock) -> None:
    """Expired with nobody asking: in the queue, and nothing more is due."""
    server = MemoryServer()
    async with memory_world(server).process() as process:
        await process.stored(1)
        lane = await process.lane(credit=1, ack_wait_s=3.0)
        await receive(lane)
        await trio.testing.wait_all_tasks_blocked()
        assert server.next_due() == 3.0
        await trio.sleep(4)
        assert server.next_due() == math.inf


def test_one_server_in_several_runs() -> None:
    """Each run has its own clock, and a lease of the first one ends in the second."""
    server = MemoryServer()
    world = memory_world(server)

    async def first() -> None:
        await trio.sleep(50)
        async with world.process() as process:
            await process.stored(1)
            await receive(await process.lane(ack_wait_s=5.0))
            await trio.sleep(2)

    async def second() -> None:
        async with world.process(declare=False) as process:
            again = await receive(await process.lane(ack_wait_s=5.0))
            assert again.num_delivered == 2
            assert trio.current_time() == pytest.approx(3.0, abs=1e-3)

    trio.run(first, clock=trio.testing.MockClock(autojump_threshold=0))
    trio.run(second, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_new_age_is_kept_to_by_sleeping_backends(autojump_clock: Clock) -> None:
    """The task sleeps until the ack wait ends; the age that is set now comes first."""
    server = MemoryServer()
    async with memory_world(server).process() as process:
        lane = await process.lane(credit=2, max_ack_pending=1, ack_wait_s=1000.0)
        await process.stored(1)
        await receive(lane)
        await trio.sleep(10)
        await process.stored(1)
        await trio.testing.wait_all_tasks_blocked()
        server.edit_stream("q", max_age_s=15.0)
        assert (await receive(lane)).sequence == 2
        assert trio.current_time() == 15.0


async def test_names_tell_processes_apart(autojump_clock: Clock) -> None:
    server = MemoryServer()
    config = MemoryConfig(server=server, name="worker")
    one, other = config.create_backend(), config.create_backend()
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        assert list(server.backends) == ["worker"]
        with pytest.raises(ConfigError, match="worker"):
            await other.run()
        one.close()
    async with trio.open_nursery() as nursery:
        await nursery.start(other.run)
        other.close()


def test_max_payload_is_checked() -> None:
    with pytest.raises(ConfigError, match="max_payload"):
        MemoryServer(max_payload=0)


async def test_dates_are_the_same_in_every_run(autojump_clock: Clock) -> None:
    server = MemoryServer(epoch_ns=5_000_000_000)
    server.create_stream(StreamSettings(name="q", subjects=("q",)))
    server.publish("q", b"")
    await trio.sleep(2)
    server.publish("q", b"")
    assert [m.timestamp_ns for m in server.messages("q")] == [5_000_000_000, 7_000_000_000]
    assert "1 streams" in repr(server)
