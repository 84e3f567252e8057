"""A record of an owner that is lost does not make the shard free; and leases that differ."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import trio

from shove_actors._errors import UnavailableError
from shove_actors.backends.memory import MemoryServer
from shove_actors.backends.memory._backend import MemoryBackend
from shove_actors.embedded import ServerProcess
from shove_actors.messaging import bucket_stream, bucket_subject, owners_bucket
from tests.support import wait_until

from .support import LEASE_S, Owner, Server, owner

DELETED = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"


async def lose(one: Owner, how: str) -> None:
    """As an operator does it."""
    queue = one.process.queue
    if isinstance(one.backend, MemoryBackend):
        del one.backend.server.owners[queue, "0"]
        return
    js, bucket = one.nats.js, owners_bucket(queue)
    if how == "marked":
        subject = bucket_subject(bucket, "0")
        await js.connection.request(subject, b"", header_block=DELETED)
    elif how == "purged":
        await js.call(f"STREAM.PURGE.{bucket_stream(bucket)}", {})
    else:
        await js.delete_stream(bucket_stream(bucket))


async def check_it_is_waited_for(server: Server, queue: str, how: str, joins: str) -> None:
    async with owner(server, queue) as one:
        await one.publish("a-1", "b-1", "c-1")
        settled, *others = [await one.next() for _ in range(3)]
        if how == "purged":  # of that nothing else tells
            one.lane.ack(settled)
            assert await one.lane.confirm()
        if joins == "before":
            async with owner(server, queue) as two:
                await trio.sleep(LEASE_S / 3)  # it has seen the record
                await taken_by(two, one, how)
        else:
            await lose(one, how)
            async with owner(server, queue) as two:
                await taken_by(two, one, None)
        for delivery in (settled, *others):
            one.lane.forget(delivery)


async def taken_by(two: Owner, one: Owner, how: str | None) -> None:
    lost_at = trio.current_time()
    if how is not None:
        await lose(one, how)
    one.running.cancel()  # as if it were cut off: it may go on for its lease
    await two.unpin()
    await two.publish("d-1")  # so that there is something to be pinned for
    assert (await two.next(LEASE_S * 5)).payload in (b"a-1", b"b-1")
    assert trio.current_time() - lost_at >= LEASE_S


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("joins", ["before", "after"])
@pytest.mark.parametrize("how", ["marked", "bucket", "purged"])
async def test_a_lost_record_is_waited_for(
    server: ServerProcess, fresh_queue: Callable[[], str], how: str, joins: str
) -> None:
    await check_it_is_waited_for(server, fresh_queue(), how, joins)


@pytest.mark.parametrize("joins", ["before", "after"])
async def test_a_lost_record_is_waited_for_in_memory(
    autojump_clock: trio.testing.MockClock, joins: str
) -> None:
    await check_it_is_waited_for(MemoryServer(), "q", "", joins)


@pytest.mark.server
async def test_a_shard_that_nobody_had_is_taken_at_once(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    """Also one that comes later than the bucket."""
    queue = fresh_queue()
    async with owner(server, queue, ack_wait_s=60.0) as one:
        await one.publish("a-1")
        assert await one.take(1) == ["a-1"]
        assert one.lane.ownership.record is not None
        await one.delete_stream()
        await one.nats.js.delete_message(
            bucket_stream(owners_bucket(queue)), one.lane.ownership.revision
        )
    async with owner(server, queue, ack_wait_s=60.0) as two:
        await two.publish("b-1")
        assert await two.take(1) == ["b-1"]


@pytest.mark.slow
@pytest.mark.server
async def test_a_deleted_bucket_is_made_again(
    server: ServerProcess, fresh_queue: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner loses the shard, takes it again, and says once for each request what is wrong."""
    queue = fresh_queue()
    async with owner(server, queue) as one:
        await one.publish("a-1", "a-2")
        first = await one.next()
        with caplog.at_level(logging.WARNING, "shove_actors.backends.keyed"):
            await lose(one, "bucket")
            await wait_until(lambda: first.lost, timeout=LEASE_S * 2)
            one.lane.forget(first)
            assert await one.take(2, LEASE_S * 5) == ["a-1", "a-2"]
            assert await one.settled()
        said = [r.getMessage() for r in caplog.records if "without an answer" in r.getMessage()]
        assert len(said) == len({text.split(":")[1].split()[0] for text in said})


async def test_a_trouble_is_told_once(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also while requests of another kind succeed in between."""
    async with owner(MemoryServer(), "q") as one:

        async def refuse(record: bytes, revision: int) -> int | None:
            await trio.lowlevel.checkpoint()
            raise UnavailableError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(one.lane._durable, "write_owner", refuse)
            await one.publish("a-1")
            await trio.sleep(LEASE_S * 10)
        assert caplog.text.count("claim went without an answer") == 1
        assert await one.take(1, LEASE_S * 5) == ["a-1"]


async def check_the_owners_lease_is_waited_for(server: Server, queue: str) -> None:
    """A deploy makes `ack_wait` shorter while an owner of before is at work."""
    async with owner(server, queue, ack_wait_s=6.0) as one:
        await one.publish("a-1", "a-2")
        first = await one.next()
        async with owner(server, queue, ack_wait_s=1.0) as two:
            await trio.sleep(0.5)
            one.running.cancel()
            vanished_at = trio.current_time()
            await two.unpin()
            await two.publish("b-1")  # so that there is something to be pinned for
            assert (await two.next(30.0)).payload == b"a-1"
            assert trio.current_time() - vanished_at > 6.0 * 0.6
        one.lane.forget(first)


@pytest.mark.slow
@pytest.mark.server
async def test_the_owners_lease_is_waited_for(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    await check_the_owners_lease_is_waited_for(server, fresh_queue())


async def test_the_owners_lease_is_waited_for_in_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    await check_the_owners_lease_is_waited_for(MemoryServer(), "q")


async def check_another_stream_begins_without_counts(server: Server, queue: str) -> None:
    async with owner(server, queue) as one:
        await one.publish("a-1")
        first = await one.next()
        async with owner(server, queue) as two:
            one.running.cancel()
            again = await two.next(LEASE_S * 5)
            assert again.num_delivered == 2
            await two.delete_stream()
            with trio.fail_after(10):
                await wait_until(lambda: again.lost)
            two.lane.forget(again)
            await two.declare()
            await two.publish("b-1")
            fresh = await two.next(LEASE_S * 5)
            assert (fresh.sequence, fresh.num_delivered) == (1, 1)
        one.lane.forget(first)


@pytest.mark.slow
@pytest.mark.server
async def test_another_stream_begins_without_counts(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    await check_another_stream_begins_without_counts(server, fresh_queue())


async def test_another_stream_begins_without_counts_in_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    await check_another_stream_begins_without_counts(MemoryServer(), "q")


async def test_one_lost_answer_does_not_cost_the_shard(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the lease: a change of leaders loses one."""
    server = MemoryServer()
    async with owner(server, "q", ack_wait_s=1.0) as one:
        await one.publish("a-1")
        first = await one.next()
        durable = one.lane._durable
        write, lost = durable.write_owner, trio.Event()

        async def lose_one(record: bytes, revision: int) -> int | None:
            written = await write(record, revision)
            if not lost.is_set():
                lost.set()
                await trio.sleep_forever()
            return written

        monkeypatch.setattr(durable, "write_owner", lose_one)
        await lost.wait()
        await trio.sleep(5)
        assert not first.lost
        one.lane.ack(first)
        assert await one.settled()
