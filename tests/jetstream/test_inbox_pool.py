"""An inbox whose request is over is used again, and nothing of the old request reaches the new."""

from __future__ import annotations

import trio

from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import hpub
from shove_actors.jetstream._inbox_pool import KEPT
from tests.support import wait_until

from .kit import Events
from .reading import Fresh, fill, js_of, number_of, stream_of


async def test_one_inbox_for_one_fetch_after_another(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        connection = js_of(stream).connection
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 6)
        for number in range(3):
            assert number_of(await consumer.next()) == number
            assert (len(connection.inboxes), len(connection._subscriptions)) == (1, 2)
        # Ended by the server: over as well.
        assert len(await consumer.fetch_list(10, max_wait=0.2)) == 3
        assert (len(connection.inboxes), len(connection._subscriptions)) == (1, 2)
        # Left early: the request goes with its inbox.
        async with consumer.fetch(1):
            assert (len(connection.inboxes), len(connection._subscriptions)) == (0, 2)
        assert (len(connection.inboxes), len(connection._subscriptions)) == (0, 1)


async def test_what_belongs_to_an_older_request(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        connection = js_of(stream).connection
        consumer = await stream.create_consumer(durable_name="d", ack_wait=60.0)
        await fill(stream, 2)
        async with consumer.fetch(1) as first:
            await first.receive()
        block = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
        async with consumer.fetch(1) as second:
            assert second._inbox == first._inbox
            assert second._reply_to != first._reply_to
            # A status for the first is none for the second.
            connection.write(hpub(first._reply_to, b"", block, b""))
            with trio.fail_after(5):
                assert number_of(await second.receive()) == 1
        assert second.error is None
        # A delivery that nobody waits for is given back.
        await fill(stream, 1, start=2)
        body = b'{"batch":1,"expires":1000000000}'
        connection.publish(consumer._next_subject, body, second._reply_to)
        with trio.fail_after(5):
            message = await consumer.next()
            while message.metadata.num_delivered < 2:
                await message.nak()
                message = await consumer.next()
        assert number_of(message) == 2


async def test_a_few_are_kept(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        connection = js_of(stream).connection
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 3 * KEPT)

        async with trio.open_nursery() as nursery:
            for _ in range(3 * KEPT):
                nursery.start_soon(consumer.next)
        assert len(connection.inboxes) == KEPT
        assert len(connection._subscriptions) == KEPT + 1


async def test_kept_through_a_reconnect(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        connection = js_of(stream).connection
        events = Events(connection)
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        await consumer.next()
        connection.drop_session("test")
        await events.wait("reconnected")
        await wait_until(lambda: connection.connected)
        await fill(stream, 1, start=1)
        with trio.fail_after(5):
            assert number_of(await consumer.next()) == 1
        assert len(connection.inboxes) == 1
