"""Push consumers: C20."""

from __future__ import annotations

import pytest
import trio

from shove_actors._errors import (
    AlreadyConsuming,
    ApiError,
    ConsumerDeleted,
    IteratorClosed,
    NoHeartbeat,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream, Message, _push, connect
from tests.support import wait_until

from .kit import Events, fast
from .reading import Fresh, Notices, fill, js_of, number_of, store_when_ready, stream_of


async def test_c20_a_group_shares(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream, connect(fast(server.url)) as other:
        one = await stream.create_push_consumer(
            durable_name="p", deliver_subject=f"to.{name}", deliver_group="workers"
        )
        two = await other.push_consumer(name, "p")
        found: list[list[int]] = [[], []]

        async def first(message: Message) -> None:
            found[0].append(number_of(message))
            await message.ack()

        async def second(message: Message) -> None:
            found[1].append(number_of(message))
            await message.ack()

        async with one.consume(first), two.consume(second):
            await other.connection.flush()
            await fill(stream, 200)
            await wait_until(lambda: len(found[0]) + len(found[1]) == 200)
        assert all(found)
        assert sorted(found[0] + found[1]) == list(range(200))
        assert found[0] == sorted(found[0])


@pytest.mark.parametrize("how", ["consume", "messages"])
async def test_c20_flow_control(server: ServerProcess, fresh_queue: Fresh, how: str) -> None:
    """600 messages of 30 kB: unanswered, the server would stop in the middle."""
    name = fresh_queue()
    async with stream_of(server.url, name, storage="memory") as stream:
        await fill(stream, 600, size=30_000)
        consumer = await stream.create_push_consumer(
            durable_name="p",
            deliver_subject=f"to.{name}",
            idle_heartbeat=0.5,
            flow_control=True,
            ack_policy="none",
        )
        found: list[int] = []
        if how == "consume":

            async def handle(message: Message) -> None:
                found.append(number_of(message))
                if len(found) % 100 == 0:
                    await trio.sleep(0.1)

            async with consumer.consume(handle):
                await wait_until(lambda: len(found) == 600, timeout=20)
        else:
            async with consumer.messages() as messages:
                with trio.fail_after(20):
                    while len(found) < 600:
                        found.append(number_of(await messages.receive()))
                assert messages.notices == ()
        assert found == list(range(600))


async def test_c20_flow_control_needs_a_heartbeat(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        with pytest.raises(ApiError) as caught:
            await stream.create_push_consumer(deliver_subject="to.x", flow_control=True)
        assert caught.value.err_code == 10108


async def test_one_reading_per_handle(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        consumer = await stream.create_push_consumer(
            durable_name="p", deliver_subject=f"to.{name}", deliver_group="g"
        )

        async def handle(message: Message) -> None:
            await message.ack()

        async with consumer.consume(handle):
            with pytest.raises(AlreadyConsuming):
                async with consumer.messages():
                    raise AssertionError("not reached")
        await fill(stream, 1)
        async with consumer.messages() as messages:
            with trio.fail_after(5):
                assert number_of(await messages.next(5.0)) == 0
            messages.stop()
            with pytest.raises(IteratorClosed):
                messages.receive_nowait()


async def test_a_deleted_push_consumer_is_noticed(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """The server says nothing; the heartbeats that are missing do."""
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        consumer = await stream.create_push_consumer(
            durable_name="p", deliver_subject=f"to.{name}", idle_heartbeat=0.5
        )
        notices = Notices()

        async def handle(message: Message) -> None:
            await message.ack()

        async def consume() -> None:
            async with consumer.consume(handle, on_error=notices):
                await trio.sleep(1.2)
                assert notices.all == []
                await stream.delete_consumer("p")
                await trio.sleep_forever()

        with trio.fail_after(10), pytest.raises(ConsumerDeleted):
            await consume()
        assert [type(error) for error in notices.all] == [NoHeartbeat, ConsumerDeleted]


@pytest.mark.parametrize("how", ["consumer", "stream"])
async def test_a_deletion_is_noticed_without_heartbeats(
    server: ServerProcess, fresh_queue: Fresh, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Silence tells nothing then; so the server is asked, after some of it."""
    monkeypatch.setattr(_push, "QUIET_S", 0.3)
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        consumer = await stream.create_push_consumer(durable_name="p", deliver_subject=f"to.{name}")
        notices = Notices()
        asked = Counter(js_of(stream))
        async with consumer.messages(on_error=notices) as messages:
            with trio.move_on_after(1.0):
                await messages.receive()
            # It was asked, not told to anybody, and it goes on.
            assert 1 <= asked.infos <= 3
            assert notices.all == []
            await fill(stream, 1)
            assert number_of(await messages.receive()) == 0
            if how == "consumer":
                await stream.delete_consumer("p")
            else:
                await js_of(stream).delete_stream(name)
            with trio.fail_after(5), pytest.raises(ConsumerDeleted):
                await messages.receive()
            assert [type(error) for error in notices.all] == [ConsumerDeleted]


class Counter:
    """How often the server was asked about a consumer."""

    def __init__(self, js: JetStream) -> None:
        self.infos = 0
        js.connection.subscribe(b"$JS.API.CONSUMER.INFO.>", self._count)

    def _count(self, *message: object) -> None:
        self.infos += 1


async def test_drain(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        consumer = await stream.create_push_consumer(durable_name="p", deliver_subject=f"to.{name}")
        await fill(stream, 5)
        async with consumer.messages() as messages:
            await wait_until(lambda: messages.buffered == 5)
            await messages.drain()
            assert [number_of(m) async for m in messages] == list(range(5))


async def test_through_a_restart(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        events = Events(js_of(stream).connection)
        consumer = await stream.create_push_consumer(
            durable_name="p", deliver_subject="to.s", idle_heartbeat=1.0
        )
        await fill(stream, 2)
        found: list[int] = []

        async def handle(message: Message) -> None:
            found.append(number_of(message))
            await message.ack()

        async with consumer.consume(handle):
            await wait_until(lambda: len(found) == 2)
            await trio.to_thread.run_sync(own_server.restart)
            await events.wait("reconnected")
            await store_when_ready(js_of(stream), "s.a", b"2")
            await wait_until(lambda: 2 in found)
