"""Ordered consumers: C22."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import trio

from shove_actors._errors import (
    AlreadyConsuming,
    ApiError,
    ConnectionClosed,
    ConsumerDeleted,
    FetchTimeout,
    InvalidOption,
    NoHeartbeat,
    StreamNotFound,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Message, Stream
from tests.support import wait_until

from .kit import Events
from .reading import Fresh, Notices, fill, js_of, number_of, store_when_ready, stream_of


def sequence_of(message: Message) -> int:
    return message.metadata.stream_sequence


async def delete_what_it_reads(stream: Stream) -> None:
    """Its consumer in the server: there is one at most, unless it is being replaced."""
    names = [name async for name in stream.consumer_names()]
    for name in names:
        await stream.delete_consumer(name)


async def test_c22_deleted_and_restarted(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        js = js_of(stream)
        events = Events(js.connection)
        await fill(stream, 100)
        found: list[int] = []
        notices = Notices()

        async def read() -> None:
            async with stream.ordered_consumer() as ordered:
                async with ordered.messages(
                    max_messages=10, stop_after=500, on_error=notices, expiry=2.0, heartbeat=0.5
                ) as messages:
                    async for message in messages:
                        found.append(sequence_of(message))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_until(lambda: len(found) == 100)
            await delete_what_it_reads(stream)
            await fill(stream, 100, start=100)
            await wait_until(lambda: len(found) == 200)
            await trio.to_thread.run_sync(own_server.restart)
            await events.wait("reconnected")
            await store_when_ready(js, "s.a", b"200")
            await fill(stream, 99, start=201)
            await wait_until(lambda: len(found) >= 300)
            await delete_what_it_reads(stream)
            await fill(stream, 200, start=300)
        assert found == list(range(1, 501))
        assert [name async for name in stream.consumer_names()] == []
        assert any(isinstance(error, (ConsumerDeleted, NoHeartbeat)) for error in notices.all)


async def test_c22_new_and_replaced_before_the_first(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """What is stored while there is no consumer, before anything was delivered."""
    async with stream_of(server.url, fresh_queue()) as stream:
        await fill(stream, 3)
        async with stream.ordered_consumer(deliver_policy="new") as ordered:
            await delete_what_it_reads(stream)
            await fill(stream, 1, start=3)
            async with ordered.messages() as messages:
                with trio.fail_after(10):
                    assert number_of(await messages.receive()) == 3
        async with stream.ordered_consumer(deliver_policy="new") as ordered:
            with pytest.raises(FetchTimeout):
                await ordered.next(0.1)
            await fill(stream, 1, start=4)
            assert number_of(await ordered.next(5.0)) == 4


async def test_c22_a_gap_is_filled(server: ServerProcess, fresh_queue: Fresh) -> None:
    """A delivery is lost on the way: swallowed in our own callback."""
    async with stream_of(server.url, fresh_queue()) as stream:
        connection = js_of(stream).connection
        deliver = connection._subscriptions.deliver
        await fill(stream, 10)
        async with stream.ordered_consumer() as ordered:
            async with ordered.messages(max_messages=4, stop_after=50) as messages:
                found = [sequence_of(await messages.receive()) for _ in range(10)]
                source = messages._source
                puller = source._puller  # type: ignore[attr-defined]
                line = puller._line
                swallowed: list[bytes] = []

                def lossy(subject: bytes, reply: bytes, block: Any, payload: bytes) -> None:
                    if payload == b"12" and not swallowed:
                        swallowed.append(payload)
                    else:
                        puller._on_message(subject, reply, block, payload)

                connection.redirect(line.sid, lossy)
                await fill(stream, 40, start=10)
                found += [sequence_of(message) async for message in messages]
        assert swallowed == [b"12"]
        assert found == list(range(1, 51))
        assert connection._subscriptions.deliver == deliver


async def test_c22_consume(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        await fill(stream, 60)
        found: list[int] = []

        async def handle(message: Message) -> None:
            found.append(sequence_of(message))
            if len(found) in (10, 30):
                await delete_what_it_reads(stream)

        async with stream.ordered_consumer() as ordered:
            async with ordered.consume(
                handle, max_messages=8, stop_after=60, expiry=2.0, heartbeat=0.5
            ) as loop:
                with trio.fail_after(20):
                    await loop.wait_closed()
        assert found == list(range(1, 61))


async def test_c22_replaced_while_the_last_ones_are_handled(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """What is being handled belongs to the old reading; the new one counts without it."""
    async with stream_of(server.url, fresh_queue()) as stream:
        await fill(stream, 6)
        found: list[int] = []
        connection = js_of(stream).connection

        async def handle(message: Message) -> None:
            if not found:
                events = Events(connection)
                connection.drop_session("test")
                await events.wait("reconnected")
                await wait_until(lambda: source._puller is not None)
            found.append(sequence_of(message))

        async with stream.ordered_consumer() as ordered:
            async with ordered.consume(handle, max_messages=3, stop_after=6) as loop:
                source: Any = loop._source
                with trio.fail_after(20):
                    await loop.wait_closed()
        assert found == list(range(1, 7))


async def test_c22_one_after_another(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Each reading goes on where the last one ended; one at a time."""
    async with stream_of(server.url, fresh_queue()) as stream:
        await fill(stream, 20)
        async with stream.ordered_consumer() as ordered:
            assert ordered.cached_info.config.ack_policy == "none"
            assert ordered.cached_info.config.mem_storage
            assert (await ordered.info()).num_pending == 20
            async with ordered.fetch(5) as batch:
                with pytest.raises(AlreadyConsuming):
                    async with ordered.messages():
                        raise AssertionError("not reached")
                assert [sequence_of(m) async for m in batch] == [1, 2, 3, 4, 5]
            assert sequence_of(await ordered.next()) == 6
            async with ordered.messages() as messages:
                assert sequence_of(await messages.receive()) == 7
                await wait_until(lambda: messages.buffered == 13)
                assert sequence_of(messages.receive_nowait()) == 8
            # What was buffered was not read.
            async with ordered.fetch_no_wait(3) as batch:
                assert [sequence_of(m) async for m in batch] == [9, 10, 11]
            async with ordered.messages() as messages:
                await wait_until(lambda: messages.buffered == 9)
                await messages.drain()
                assert [sequence_of(m) async for m in messages] == list(range(12, 21))
                with pytest.raises(trio.EndOfChannel):
                    await messages.receive()
            with pytest.raises(FetchTimeout):
                await ordered.next(0.2)
            assert len([name async for name in stream.consumer_names()]) == 1
        assert [name async for name in stream.consumer_names()] == []


async def test_c22_start_and_filters(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        connection = js_of(stream).connection
        for number in range(6):
            await connection.request(f"{name}.{'abc'[number % 3]}", b"%d" % number)
        between = datetime.now(timezone.utc) + timedelta(milliseconds=20)
        await trio.sleep(0.05)
        await connection.request(f"{name}.a", b"6")

        async def read(**settings: Any) -> list[int]:
            async with stream.ordered_consumer(**settings) as ordered:
                async with ordered.fetch_no_wait(20) as batch:
                    return [number_of(m) async for m in batch]

        assert await read() == list(range(7))
        assert await read(opt_start_seq=4) == [3, 4, 5, 6]
        assert await read(opt_start_time=between) == [6]
        assert await read(filter_subjects=[f"{name}.a"]) == [0, 3, 6]
        assert await read(filter_subjects=[f"{name}.a", f"{name}.c"]) == [0, 2, 3, 5, 6]
        assert await read(deliver_policy="last") == [6]
        assert await read(deliver_policy="last_per_subject") == [4, 5, 6]
        async with stream.ordered_consumer(
            headers_only=True, name_prefix="mine", metadata={"a": "b"}, inactive_threshold=60.0
        ) as ordered:
            assert ordered.cached_info.name == "mine_1"
            assert ordered.cached_info.config.inactive_threshold == 60.0
            message = await ordered.next()
            assert (message.data, message.headers["Nats-Msg-Size"]) == (b"", "1")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"filter_subjects": "abc"}, "list"),
        ({"opt_start_seq": 0}, "opt_start_seq"),
        ({"deliver_policy": "by_start_sequence"}, "opt_start_seq"),
        ({"deliver_policy": "new", "opt_start_seq": 1}, "opt_start_seq"),
        ({"deliver_policy": "by_start_time"}, "opt_start_time"),
        ({"inactive_threshold": 0.0}, "inactive_threshold"),
        ({"max_reset_attempts": 0}, "max_reset_attempts"),
        ({"name_prefix": "a.b"}, "name_prefix"),
    ],
)
async def test_c22_options(
    server: ServerProcess, fresh_queue: Fresh, settings: dict[str, Any], word: str
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        with pytest.raises(InvalidOption, match=word):
            async with stream.ordered_consumer(**settings):
                raise AssertionError("not reached")


async def test_c22_what_ends_it(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        js = js_of(stream)
        with pytest.raises(StreamNotFound):
            async with js.ordered_consumer("missing"):
                raise AssertionError("not reached")
        with pytest.raises(ApiError):
            async with stream.ordered_consumer(filter_subjects=["s.a", "s.*"]):
                raise AssertionError("not reached")
        async with stream.ordered_consumer() as ordered:
            async with ordered.messages(expiry=2.0, heartbeat=0.5) as messages:
                await js.delete_stream("s")
                with trio.fail_after(10), pytest.raises(StreamNotFound):
                    await messages.receive()
                with pytest.raises(StreamNotFound):
                    messages.receive_nowait()
        stream = await js.create_stream(name="s", subjects=["s.*"])
        async with stream.ordered_consumer() as ordered:
            async with ordered.messages() as messages:
                js.connection.close()
                with trio.fail_after(10), pytest.raises(ConnectionClosed):
                    await messages.receive()


async def test_c22_another_stream_of_that_name(server: ServerProcess, fresh_queue: Fresh) -> None:
    """It counts from 1 again: what was read is no place in it."""
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        js = js_of(stream)
        await fill(stream, 5)
        async with stream.ordered_consumer() as ordered:
            async with ordered.fetch(5) as batch:
                assert len([message async for message in batch]) == 5
            await js.delete_stream(name)
            stream = await js.create_stream(name=name, subjects=[f"{name}.*"])
            await fill(stream, 2)
            with pytest.raises(StreamNotFound, match="made again"):
                await ordered.next(1.0)
            with pytest.raises(StreamNotFound, match="made again"):
                async with ordered.messages():
                    raise AssertionError("not reached")


async def test_c22_a_silent_server(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        notices = Notices()
        async with stream.ordered_consumer() as ordered:
            async with (
                ordered.messages(expiry=2.0, heartbeat=0.5, on_error=notices) as messages,
                trio.open_nursery() as nursery,
            ):
                found: list[int] = []

                async def read() -> None:
                    async for message in messages:
                        found.append(sequence_of(message))

                nursery.start_soon(read)
                own_server.pause()
                try:
                    await notices.wait(NoHeartbeat)
                finally:
                    own_server.resume()
                await fill(stream, 5)
                await wait_until(lambda: len(found) == 5)
                nursery.cancel_scope.cancel()
        assert found == [1, 2, 3, 4, 5]
