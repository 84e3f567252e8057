"""What can be said of a message: C23."""

from __future__ import annotations

import json

import pytest
import trio

from shove_actors._errors import (
    AlreadyAcked,
    InvalidOption,
    NoResponders,
    NotJetStreamMessage,
    RequestTimeout,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Message, hpub
from tests.support import wait_until

from .reading import Fresh, fill, js_of, number_of, stream_of


async def test_c23_once(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 4)
        messages = await consumer.fetch_list(4)
        await messages[0].ack()
        await messages[1].nak()
        await messages[2].term()
        await messages[3].double_ack()
        for message in messages:
            assert message.settled
            for verb in (message.ack, message.nak, message.term, message.in_progress):
                with pytest.raises(AlreadyAcked):
                    await verb()
        await messages[0].double_ack()  # may be repeated
        again = await consumer.fetch_list(4, max_wait=0.5)
        assert [(number_of(m), m.metadata.num_delivered) for m in again] == [(1, 2)]


async def test_c23_nak_with_a_delay(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d", ack_wait=60.0)
        await fill(stream, 1)
        message = await consumer.next()
        assert message.metadata.num_delivered == 1
        began = trio.current_time()
        await message.nak(delay=1.0)
        message = await consumer.next(max_wait=5.0)
        assert 0.9 < trio.current_time() - began < 2.0
        assert message.metadata.num_delivered == 2
        with pytest.raises(InvalidOption, match="delay"):
            await message.nak(delay=-1.0)
        assert not message.settled


async def test_c23_term_with_a_reason(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d", ack_wait=0.5)
        await fill(stream, 1)
        heard: list[bytes] = []
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream.name}.d"
        js_of(stream).connection.subscribe(
            subject.encode(), lambda subject, reply, block, payload: heard.append(payload)
        )
        await (await consumer.next()).term("bad")
        await wait_until(lambda: heard)
        assert json.loads(heard[0])["reason"] == "bad"
        assert await consumer.fetch_list(1, max_wait=1.0) == []


async def test_c23_in_progress(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d", ack_wait=1.0)
        await fill(stream, 1)
        message = await consumer.next()
        async with consumer.messages() as messages:
            for _ in range(4):
                with trio.move_on_after(0.5) as calm:
                    await messages.receive()
                assert calm.cancelled_caught
                await message.in_progress()
            await message.double_ack()
            with trio.move_on_after(1.2) as calm:
                await messages.receive()
            assert calm.cancelled_caught


async def test_c23_double_ack_of_a_deleted_consumer(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        message = await consumer.next()
        await stream.delete_consumer("d")
        with trio.fail_after(2), pytest.raises(NoResponders):
            await message.double_ack()
        assert not message.settled
        await message.ack()  # lost without a word


async def test_c23_two_tasks_cannot_both(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        message = await consumer.next()
        outcomes: list[str] = []

        async def settle() -> None:
            try:
                await message.ack()
                outcomes.append("acked")
            except AlreadyAcked:
                outcomes.append("late")

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(settle)
        assert sorted(outcomes) == ["acked"] + ["late"] * 4


async def test_c23_waits_for_the_connection(own_server: ServerProcess) -> None:
    """An acknowledgement of what came before a loss is still right after it."""
    async with stream_of(own_server.url, "s") as stream:
        connection = js_of(stream).connection
        consumer = await stream.create_consumer(durable_name="d", ack_wait=60.0)
        await fill(stream, 2)
        one, two = await consumer.fetch_list(2)
        own_server.pause()  # nothing can be opened again for now
        connection.drop_session("test")
        await wait_until(lambda: not connection.connected)
        with trio.move_on_after(0.1) as scope:
            await one.ack()
        assert scope.cancelled_caught
        assert not one.settled
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.ack)
            nursery.start_soon(two.ack)
            own_server.resume()
        assert one.settled
        assert two.settled
        await connection.flush()
        assert (await consumer.info()).num_ack_pending == 0


async def test_c23_cancelled_before_it_is_sent(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        message = await consumer.next()
        with trio.CancelScope() as scope:
            scope.cancel()
            await message.ack()
        assert scope.cancelled_caught
        assert not message.settled
        await message.double_ack(timeout=5.0)
        assert (await consumer.info()).num_ack_pending == 0


async def test_reading_a_message(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        block = b"NATS/1.0\r\nTrace: abc\r\nTrace: def\r\n\r\n"
        connection = js_of(stream).connection
        connection.write(hpub(f"{stream.name}.a".encode(), b"", block, b""))
        await fill(stream, 1)
        first, second = await consumer.fetch_list(2)
        assert (first.subject, first.data) == (f"{stream.name}.a", b"")
        assert first.headers["Trace"] == "abc"
        assert first.headers.get_all("Trace") == ["abc", "def"]
        assert dict(second.headers) == {}
        assert first.reply.startswith("$JS.ACK.")
        meta = second.metadata
        assert (meta.stream, meta.consumer, meta.domain) == (stream.name, "d", None)
        assert (meta.stream_sequence, meta.consumer_sequence) == (2, 2)
        assert (meta.num_delivered, meta.num_pending) == (1, 0)
        stored = (await js_of(stream).get_message(stream.name, 2)).time_ns
        assert meta.timestamp_ns == stored
        assert abs(meta.time.timestamp() - stored / 1e9) < 1e-5
        assert meta.time.tzinfo is not None
        assert second.data == b"0"


async def test_a_message_of_nobody(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        connection = js_of(stream).connection
        message = Message(connection, b"a.b", b"", None, b"data")
        for verb in (message.ack, message.nak, message.term, message.double_ack):
            with pytest.raises(NotJetStreamMessage, match=r"a\.b"):
                await verb()
        for reply in (b"", b"_INBOX.x", b"$JS.ACK.short"):
            with pytest.raises(NotJetStreamMessage):
                _ = Message(connection, b"a.b", reply, None, b"data").metadata
        # In the longer form, with a domain.
        reply = b"$JS.ACK.hub.account.s.c.3.7.5.1000000000.9.token"
        meta = Message(connection, b"a.b", reply, None, b"").metadata
        assert (meta.domain, meta.stream, meta.consumer, meta.num_delivered) == ("hub", "s", "c", 3)
        assert (meta.stream_sequence, meta.consumer_sequence, meta.num_pending) == (7, 5, 9)


async def test_double_ack_that_nobody_answers(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        connection = js_of(stream).connection
        connection.subscribe(b"mute.reply", lambda *message: None)
        message = Message(connection, b"a.b", b"mute.reply", None, b"")
        with pytest.raises(RequestTimeout):
            await message.double_ack(timeout=0.05)
        assert not message.settled
