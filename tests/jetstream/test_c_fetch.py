"""One-off reads: C10 to C13."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import trio

from shove_actors._errors import (
    BadRequest,
    BrokerClosed,
    ConnectionError,
    ConsumerDeleted,
    FetchTimeout,
    InvalidOption,
    IteratorClosed,
    NoHeartbeat,
    NoResponders,
    NotPullConsumer,
    RequestLimitExceeded,
    RequestTimeout,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Consumer, FetchBatch, connect
from tests.support import wait_until

from .kit import fast, lag
from .reading import Fresh, fill, js_of, number_of, stream_of, until_waiting

#: Two clocks are involved: the loop's, which looks at deadlines, and the one that is read here.
TICK = 0.02


async def numbers(batch: FetchBatch) -> list[int]:
    async with batch:
        return [number_of(message) async for message in batch]


async def test_c10_short_batch(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 3)
        began = trio.current_time()
        batch = consumer.fetch(10, max_wait=1.0)
        assert await numbers(batch) == [0, 1, 2]
        assert 0.9 < trio.current_time() - began < 1.5
        assert batch.error is None
        assert batch.received == 3
        batch = consumer.fetch(10, max_wait=0.3)
        assert await numbers(batch) == []
        assert batch.error is None


async def test_c10_full_batch_is_over_at_once(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 5)
        with trio.fail_after(5):
            assert await numbers(consumer.fetch(2)) == [0, 1]
            assert [number_of(m) for m in await consumer.fetch_list(2)] == [2, 3]
            assert number_of(await consumer.next()) == 4
        with pytest.raises(FetchTimeout, match=r"0\.2 s"):
            await consumer.next(max_wait=0.2)
        with pytest.raises(TimeoutError):
            await consumer.next(max_wait=0.1)
        assert await consumer.fetch_list(3, max_wait=0.1) == []


async def test_c10_the_callers_deadline_is_nearer(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """The server's answer comes before it, so the batch ends as a batch."""
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        with trio.fail_after(1.0):
            assert await numbers(consumer.fetch(5)) == [0]


async def test_c11_no_wait(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 3)
        began = trio.current_time()
        batch = consumer.fetch_no_wait(10)
        assert await numbers(batch) == [0, 1, 2]
        assert trio.current_time() - began < 0.3
        assert batch.error is None
        assert await numbers(consumer.fetch_no_wait(10)) == []


async def test_c11_bytes(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 3, size=250)
        size = (await (await stream.create_consumer(durable_name="e")).next()).size
        batch = consumer.fetch(max_bytes=2 * size + size // 2, max_wait=5.0)
        began = trio.current_time()
        assert await numbers(batch) == [0, 1]
        assert batch.error is None
        assert trio.current_time() - began < 1.0
        # Exactly filled.
        other = await stream.create_consumer(durable_name="f")
        assert await numbers(other.fetch(max_bytes=2 * size)) == [0, 1]


async def test_c12_deleted_meanwhile(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        began = trio.current_time()
        async with consumer.fetch(5, max_wait=5.0) as batch:
            first = await batch.receive()
            await trio.sleep(0.3)
            await stream.delete_consumer("d")
            assert [m async for m in batch] == []
        assert trio.current_time() - began < 1.0
        assert isinstance(batch.error, ConsumerDeleted)
        assert number_of(first) == 0


async def test_c12_missing(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await stream.delete_consumer("d")
        with trio.fail_after(1.0), pytest.raises(NoResponders):
            await consumer.fetch_list(5)
        batch = consumer.fetch(5)
        assert await numbers(batch) == []
        assert isinstance(batch.error, NoResponders)


async def test_c13_heartbeat(own_server: ServerProcess) -> None:
    """The server stands still from the moment of the request on: 1.0 to 1.6 s, as the table has it.

    What this process was late by is added; the server's lateness is what is measured.
    """
    async with stream_of(own_server.url, "s") as stream:
        consumer = await stream.create_consumer(durable_name="d")
        own_server.pause()
        try:
            async with lag() as late, consumer.fetch(5, max_wait=10.0, heartbeat=0.5) as batch:
                began = trio.current_time()
                assert [m async for m in batch] == []
                took = trio.current_time() - began
        finally:
            own_server.resume()
        assert isinstance(batch.error, NoHeartbeat)
        assert 1.0 - TICK <= took <= 1.6 + late.seconds


async def test_c13_heartbeats_that_stop(own_server: ServerProcess) -> None:
    """After the last one it is 1.0 s; that one came up to 0.5 s before the server was stopped, so
    seen from the stop it may be half a second less than in the table."""
    async with stream_of(own_server.url, "s") as stream:
        consumer = await stream.create_consumer(durable_name="d")
        async with consumer.fetch(5, max_wait=10.0, heartbeat=0.5) as batch:
            with trio.move_on_after(1.2) as calm:  # heartbeats keep it alive
                await batch.receive()
            assert calm.cancelled_caught
            assert batch.error is None
            own_server.pause()
            try:
                async with lag() as late:
                    began = trio.current_time()
                    assert [m async for m in batch] == []
                    took = trio.current_time() - began
            finally:
                own_server.resume()
        assert isinstance(batch.error, NoHeartbeat)
        assert 0.5 - TICK <= took <= 1.6 + late.seconds


@pytest.mark.slow
async def test_a_server_that_says_nothing_is_not_an_empty_queue(own_server: ServerProcess) -> None:
    """With a message in the stream, and a server that stands still, "nothing" would be wrong."""
    async with stream_of(own_server.url, "s") as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        own_server.pause()
        try:
            with trio.fail_after(30):
                batch = consumer.fetch_no_wait(5)
                assert await numbers(batch) == []
                assert isinstance(batch.error, RequestTimeout)
                batch = consumer.fetch(5, max_wait=0.2)  # too short for heartbeats
                assert await numbers(batch) == []
                assert isinstance(batch.error, RequestTimeout)
                with pytest.raises(RequestTimeout, match="ask again"):
                    await consumer.fetch_list(5, max_wait=0.2)
                with pytest.raises(RequestTimeout):
                    await consumer.next(max_wait=0.2)
        finally:
            own_server.resume()


@pytest.mark.slow
async def test_no_wait_with_too_many_outstanding(server: ServerProcess, fresh_queue: Fresh) -> None:
    """The server says nothing of what it holds back: a short batch, not a silent server."""
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d", max_ack_pending=2)
        await fill(stream, 5)
        for count in (2, 0):
            batch = consumer.fetch_no_wait(5)
            assert len(await numbers(batch)) == count
            assert batch.error is None
        batch = consumer.fetch(5, max_wait=0.3)
        assert await numbers(batch) == []
        assert batch.error is None


async def test_a_reader_that_blocks_the_loop_still_hears_the_end(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        async with consumer.fetch(2, max_wait=0.2) as batch:
            await batch.receive()
            time.sleep(1.5)  # noqa: ASYNC251 - the point: nothing is read meanwhile
            assert [m async for m in batch] == []
        assert batch.error is None


async def test_a_lost_connection_ends_a_fetch(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        async with consumer.fetch(5) as batch:
            assert number_of(await batch.receive()) == 0
            js_of(stream).connection.drop_session("test")
            with trio.fail_after(5):
                assert [m async for m in batch] == []
        assert isinstance(batch.error, ConnectionError)
        # The next one waits for the connection.
        with trio.fail_after(10):
            assert await numbers(consumer.fetch_no_wait(1)) == []
    with pytest.raises((BrokerClosed, ConnectionError)):
        await consumer.fetch_list(1)


async def test_leaving_early_ends_the_request(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        async with consumer.fetch(5) as batch:
            with pytest.raises(trio.WouldBlock):
                batch.receive_nowait()
        with pytest.raises(IteratorClosed):
            await batch.receive()
        with pytest.raises(IteratorClosed):
            batch.receive_nowait()
        assert [m async for m in batch] == []
        await fill(stream, 1)
        with trio.fail_after(5):
            assert number_of(await consumer.next()) == 0
        assert (await consumer.info()).num_ack_pending == 1

        await until_waiting(consumer, 0)
        connection = js_of(stream).connection
        assert len(connection._subscriptions) - len(connection.inboxes) == 1  # the reply inbox


async def test_receiving_without_waiting(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 2)
        async with consumer.fetch(2) as batch:
            await wait_until(lambda: batch.received == 2)
            assert number_of(batch.receive_nowait()) == 0
            assert number_of(batch.receive_nowait()) == 1
            with pytest.raises(trio.EndOfChannel):
                batch.receive_nowait()
            with pytest.raises(trio.EndOfChannel):
                await batch.receive()


async def test_refused_requests(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        limited = await stream.create_consumer(
            durable_name="d", max_batch=5, max_expires=10.0, max_bytes=1000
        )
        for wrong in (
            limited.fetch(6),
            limited.fetch(1, max_wait=11.0),
            limited.fetch(max_bytes=2000, max_wait=5.0),
        ):
            began = trio.current_time()
            assert await numbers(wrong) == []
            assert trio.current_time() - began < 1.0
            assert isinstance(wrong.error, RequestLimitExceeded)
        busy = await stream.create_consumer(durable_name="e", max_waiting=1)
        async with busy.fetch(1):
            with trio.fail_after(1), pytest.raises(RequestLimitExceeded):
                await busy.fetch_list(1)
        push = await stream.create_push_consumer(durable_name="p", deliver_subject=f"to.{name}")
        pull = Consumer(js_of(stream), push.cached_info)
        with trio.fail_after(1), pytest.raises(NotPullConsumer):
            await pull.fetch_list(1)
        grouped = await stream.create_consumer(
            durable_name="g", priority_policy="overflow", priority_groups=["g"]
        )
        # A handle that knows nothing of the groups: the server refuses.
        stale = Consumer(js_of(stream), replace(grouped.cached_info, config=limited.config))
        with trio.fail_after(1), pytest.raises(BadRequest):
            await stale.fetch_list(1, max_wait=0.9)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({}, "either a count or max_bytes"),
        ({"count": 1, "max_bytes": 1}, "either a count or max_bytes"),
        ({"count": 0}, "count"),
        ({"count": True}, "count"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"count": 1, "max_wait": 0.0}, "max_wait"),
        ({"count": 1, "max_wait": 1.0, "heartbeat": 0.6}, "heartbeat"),
        ({"count": 1, "group": "g"}, "no priority group"),
        ({"count": 1, "min_pending": 1}, "without group"),
    ],
)
async def test_options(
    server: ServerProcess, fresh_queue: Fresh, arguments: dict[str, Any], word: str
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        with pytest.raises(InvalidOption, match=word):
            consumer.fetch(**arguments)
        with pytest.raises(ValueError, match="count"):
            consumer.fetch_no_wait(0)


async def test_two_fetches_do_not_mix(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[f"{name}.*"])
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 40)
        found: list[int] = []

        async def reader() -> None:
            found.extend(await numbers(consumer.fetch(10)))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(reader)
        assert sorted(found) == list(range(40))
