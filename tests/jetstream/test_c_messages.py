"""Continuous reading: C14 to C19, and the options of `messages` and `consume`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors._errors import (
    ConnectionClosed,
    ConsumerDeleted,
    FetchTimeout,
    InvalidOption,
    IteratorClosed,
    MaxBytesExceeded,
    NoHeartbeat,
    NoResponders,
    NotPullConsumer,
    PermissionDenied,
    RequestLimitExceeded,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Consumer, JetStream, Message, connect, hpub
from tests.support import wait_until

from .kit import Events, fast
from .reading import (
    Fresh,
    Notices,
    fill,
    js_of,
    number_of,
    store_when_ready,
    stream_of,
    until_waiting,
)


class Requests:
    """Every pull request that the server is sent, seen by a second connection."""

    def __init__(self, js: JetStream) -> None:
        self.bodies: list[dict[str, Any]] = []
        js.connection.subscribe(b"$JS.API.CONSUMER.MSG.NEXT.>", self._seen)

    def _seen(self, subject: bytes, reply: bytes, block: bytes | None, payload: bytes) -> None:
        self.bodies.append(json.loads(payload))


# ------------------------------------------------------------------ C14


async def test_c14_pipelining(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1000)
        found: list[int] = []
        most = 0
        async with consumer.messages(max_messages=10, stop_after=1000) as messages:
            async for message in messages:
                found.append(number_of(message))
                # Before this one was taken it was pending, too.
                most = max(most, messages.pending)
                await message.ack()
        assert found == list(range(1000))
        assert most <= 10
        assert messages.pulls <= 210
        assert messages.notices == ()


async def test_c14_the_callback_is_counted_until_it_returns(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 200)
        found: list[int] = []

        async def handle(message: Message) -> None:
            info = await consumer.info() if number_of(message) % 20 == 0 else None
            # Ten at most are with us, this one included.
            assert info is None or info.num_ack_pending <= 10
            found.append(number_of(message))
            await message.double_ack()

        async with consumer.consume(handle, max_messages=10, stop_after=200) as loop:
            await loop.wait_closed()
        assert found == list(range(200))
        assert loop.handled == 200


async def test_c14_requests(server: ServerProcess, fresh_queue: Fresh) -> None:
    """What is sent: leaves out what is not set, and never asks for more than fits."""
    async with stream_of(server.url, fresh_queue()) as stream, connect(fast(server.url)) as spy:
        consumer = await stream.create_consumer(durable_name="d")
        requests = Requests(spy)
        await spy.connection.flush()
        await fill(stream, 20)
        async with consumer.messages(
            max_messages=10, threshold_messages=3, stop_after=20, expiry=10.0, heartbeat=2.0
        ) as messages:
            assert [number_of(m) async for m in messages] == list(range(20))
        mine = list(requests.bodies)
        assert mine[0] == {"batch": 10, "expires": 10_000_000_000, "idle_heartbeat": 2_000_000_000}
        assert [body["batch"] for body in mine] == [10, 8, 2]


async def test_bytes(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream, connect(fast(server.url)) as spy:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 300, size=500)
        requests = Requests(spy)
        await spy.connection.flush()
        found: list[int] = []
        held = 0
        async with consumer.messages(max_bytes=5000, stop_after=300) as messages:
            async for message in messages:
                found.append(number_of(message))
                held = max(held, messages.buffered)
                await message.ack()
        assert found == list(range(300))
        assert held <= 9  # of about 600 bytes
        assert max(body["max_bytes"] for body in requests.bodies) == 5000
        assert messages.notices == ()


async def test_requests_limited_by_bytes(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 100, size=500)
        async with consumer.messages(
            max_messages=50, request_max_bytes=2000, stop_after=100
        ) as messages:
            assert [number_of(m) async for m in messages] == list(range(100))
        # Three fit into one request.
        assert 33 <= messages.pulls <= 60


@pytest.mark.parametrize("option", ["max_bytes", "request_max_bytes"])
async def test_a_message_that_never_fits_is_told(
    server: ServerProcess, fresh_queue: Fresh, option: str
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1, size=5000)
        notices = Notices()
        limit: dict[str, Any] = {option: 1000}
        async with consumer.messages(**limit, on_error=notices) as messages:
            with trio.move_on_after(0.7):
                await messages.receive()
        assert isinstance(notices.all[0], MaxBytesExceeded)
        assert messages.pulls <= 4  # no hot loop


# ------------------------------------------------------------------ C15, C16


async def test_c15_restart(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        js = js_of(stream)
        events = Events(js.connection)
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 20)
        found: list[int] = []
        first_after: list[float] = []
        back: list[float] = []

        async def read() -> None:
            async with consumer.messages(max_messages=10) as messages:
                async for message in messages:
                    found.append(number_of(message))
                    if number_of(message) == 20:
                        first_after.append(trio.current_time())
                    await message.ack()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_until(lambda: len(found) == 20)
            await trio.to_thread.run_sync(own_server.restart)
            await events.wait("reconnected")
            back.append(trio.current_time())
            await store_when_ready(js, "s.a", b"20")
            await fill(stream, 99, start=21)
            await wait_until(lambda: len(set(found)) == 120)
            nursery.cancel_scope.cancel()
        assert sorted(set(found)) == list(range(120))
        assert first_after[0] - back[0] < 2.0


async def test_c16_missed_heartbeats(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        consumer = await stream.create_consumer(durable_name="d")
        notices = Notices()
        async with consumer.messages(expiry=2.0, heartbeat=0.5, on_error=notices) as messages:
            async with trio.open_nursery() as nursery:
                found: list[Message] = []

                async def read() -> None:
                    found.append(await messages.receive())

                nursery.start_soon(read)
                await trio.sleep(1.2)
                assert notices.all == []
                own_server.pause()
                try:
                    await notices.wait(NoHeartbeat)
                    await trio.sleep(0.5)
                finally:
                    own_server.resume()
                await fill(stream, 1)
                await wait_until(lambda: found)
        assert number_of(found[0]) == 0
        assert {type(error) for error in notices.all} <= {NoHeartbeat}
        assert 1 <= len(notices.all) <= 3
        assert messages.notices == tuple(notices.all)


async def test_c16_a_reader_that_is_busy_sees_no_alarm(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 2)
        notices = Notices()

        async def slow(message: Message) -> None:
            await trio.sleep(1.5)
            await message.ack()

        async with consumer.consume(
            slow, expiry=1.0, heartbeat=0.5, on_error=notices, stop_after=2
        ) as loop:
            await loop.wait_closed()
        assert notices.all == []


async def test_c16_raised_on_request(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        consumer = await stream.create_consumer(durable_name="d")
        async with consumer.messages(
            expiry=2.0, heartbeat=0.5, raise_on_missing_heartbeat=True
        ) as messages:
            with pytest.raises(FetchTimeout):
                await messages.next(0.3)
            own_server.pause()
            try:
                with pytest.raises(NoHeartbeat):
                    await messages.next(5.0)
            finally:
                own_server.resume()
            await fill(stream, 1)
            # Another alarm may have been raised before the server woke.
            while True:
                try:
                    message = await messages.next(5.0)
                except NoHeartbeat:
                    continue
                break
            assert number_of(message) == 0


# ------------------------------------------------------------------ C17


async def test_c17_deleted_while_reading(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 3)
        notices = Notices()
        async with consumer.messages(on_error=notices) as messages:
            await wait_until(lambda: messages.buffered == 3)
            await stream.delete_consumer("d")
            await notices.wait(ConsumerDeleted)
            # What was there before is handed over first.
            assert [number_of(await messages.receive()) for _ in range(3)] == [0, 1, 2]
            for _ in range(2):
                with pytest.raises(ConsumerDeleted, match="consumer d of stream"):
                    await messages.receive()
            with pytest.raises(ConsumerDeleted):
                async for _ in messages:
                    pass


async def test_c17_deleted_while_consuming(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        notices = Notices()

        async def handle(message: Message) -> None:
            await message.ack()

        async def consume() -> None:
            async with consumer.consume(handle, on_error=notices):
                # Deleted before it sees the request, the server would not answer that.
                await until_waiting(consumer, 1)
                await stream.delete_consumer("d")
                await trio.sleep_forever()

        with trio.fail_after(5), pytest.raises(ConsumerDeleted):
            await consume()
        assert [type(error) for error in notices.all] == [ConsumerDeleted]


@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_c17_deleted_before_the_first_pull(
    server: ServerProcess, fresh_queue: Fresh, what: str
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        if what == "consumer":
            await stream.delete_consumer("d")
        else:
            await js_of(stream).delete_stream(stream.name)
        async with consumer.messages() as messages:
            with trio.fail_after(2), pytest.raises(Exception, match="not found") as caught:
                await messages.receive()
        assert type(caught.value).__name__ == f"{what.title()}NotFound"
        assert [type(error) for error in messages.notices] == [NoResponders]


async def test_c17_a_push_consumer_is_not_pulled_from(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        push = await stream.create_push_consumer(durable_name="p", deliver_subject=f"to.{name}")
        async with Consumer(js_of(stream), push.cached_info).messages() as messages:
            with trio.fail_after(2), pytest.raises(NotPullConsumer):
                await messages.receive()


async def test_c17_a_request_over_the_limits(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d", max_batch=10)
        async with consumer.messages() as messages:
            with trio.fail_after(2), pytest.raises(RequestLimitExceeded, match="MaxRequestBatch"):
                await messages.receive()
        busy = await stream.create_consumer(durable_name="e", max_waiting=1)
        async with busy.fetch(1, max_wait=0.6):
            async with busy.messages(expiry=1.0, heartbeat=0.5) as messages:
                # nats-server 2.15 drops a request for which there is no room, and says so only
                # when it asks for no heartbeats; the missing heartbeats tell.
                with trio.move_on_after(1.2):
                    await messages.receive()
                await fill(stream, 1)
                with trio.fail_after(5):
                    await messages.receive()
                assert {type(error) for error in messages.notices} == {NoHeartbeat}


async def test_c17_closed_connection(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        async with consumer.messages() as messages:
            await wait_until(lambda: messages.buffered == 1)
            js_of(stream).connection.close()
            await js_of(stream).connection.wait_ended()
            assert number_of(await messages.receive()) == 0
            with pytest.raises(ConnectionClosed):
                await messages.receive()


async def test_c17_no_permission() -> None:
    text = """
        jetstream: enabled
        authorization { users: [
            { user: all, password: all }
            { user: some, password: some, permissions: {
                publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" } } }
        ] }
    """
    with ServerProcess(config=text) as process:
        async with connect(fast(process.url, username="all", password="all")) as js:
            stream = await js.create_stream(name="s", subjects=["s.*"])
            await stream.create_consumer(durable_name="d")
        async with connect(fast(process.url, username="some", password="some")) as js:
            async with (await js.consumer("s", "d")).messages() as messages:
                with trio.fail_after(5), pytest.raises(PermissionDenied):
                    await messages.receive()


async def test_c17_a_pause_ends_although_the_reader_is_busy(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """Turned away while a message is being handled: asked again after the pause all the same."""
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 1)
        async with consumer.messages(max_messages=10) as messages:
            await wait_until(lambda: messages.buffered == 1)
            inbox = messages._source._line.inbox  # type: ignore[attr-defined]
            block = b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n"
            js_of(stream).connection.write(hpub(inbox, b"", block, b""))
            await wait_until(lambda: messages.notices)
            assert messages.pulls == 1
            await wait_until(lambda: messages.pulls == 2, timeout=5)


# ------------------------------------------------------------------ C18


async def test_c18_stop_after(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 20)
        async with consumer.messages(stop_after=7) as messages:
            assert [number_of(m) async for m in messages] == list(range(7))
            with pytest.raises(trio.EndOfChannel):
                await messages.receive()
            with pytest.raises(trio.EndOfChannel):
                messages.receive_nowait()
        assert (await consumer.info()).num_ack_pending <= 7
        assert messages.pulls == 1


async def test_c18_stop_after_below_half(server: ServerProcess, fresh_queue: Fresh) -> None:
    """nats.go counts what it did not ask for and sees a false alarm."""
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        async with consumer.messages(stop_after=7, expiry=1.0) as messages:
            with trio.move_on_after(1.5) as empty:
                await messages.receive()
            assert empty.cancelled_caught
            await fill(stream, 7)
            with trio.fail_after(0.5):
                assert number_of(await messages.receive()) == 0
            assert messages.notices == ()


async def test_c18_stop(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d", ack_wait=1.0)
        await fill(stream, 5)
        async with consumer.messages() as messages:
            await wait_until(lambda: messages.buffered == 5)
            messages.stop()
            messages.stop()
            assert [m async for m in messages] == []
            with pytest.raises(IteratorClosed):
                await messages.receive()
            with pytest.raises(IteratorClosed):
                messages.receive_nowait()
            with pytest.raises(IteratorClosed):
                await messages.next(1.0)
        with trio.fail_after(5):
            again = await consumer.fetch_list(5, max_wait=3.0)
        assert [m.metadata.num_delivered for m in again] == [2] * 5
        assert [number_of(m) for m in again] == list(range(5))


async def test_c18_nak_on_stop(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d", ack_wait=60.0)
        await fill(stream, 5)
        async with consumer.messages(nak_on_stop=True) as messages:
            await wait_until(lambda: messages.buffered == 5)
        with trio.fail_after(5):
            assert len(await consumer.fetch_list(5)) == 5


async def test_c18_drain(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 5)
        async with consumer.messages() as messages:
            await wait_until(lambda: messages.buffered == 5)
            await messages.drain()
            await fill(stream, 5, start=5)
            await messages.drain()
            assert [number_of(m) async for m in messages] == list(range(5))
            with pytest.raises(trio.EndOfChannel):
                await messages.receive()
        assert (await consumer.info()).num_waiting == 0


async def test_c18_consume_stop_and_drain(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 10)
        found: list[int] = []
        entered, go_on = trio.Event(), trio.Event()

        async def handle(message: Message) -> None:
            entered.set()
            await go_on.wait()
            found.append(number_of(message))
            await message.ack()

        async with consumer.consume(handle, max_messages=5, nak_on_stop=True) as loop:
            await entered.wait()
            loop.stop()
            go_on.set()
            await loop.wait_closed()
            assert found == [0]  # the one at work finished
        found.clear()
        async with consumer.consume(handle, max_messages=5, threshold_messages=1) as loop:
            await wait_until(lambda: found)
            await loop.drain()
            await loop.wait_closed()
            assert len(found) in (5, 9)  # what had been asked for, once or twice
        assert (await consumer.info()).num_ack_pending == 0


async def test_c18_leaving_lets_the_handler_finish(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 2)
        done: list[int] = []
        entered = trio.Event()

        async def handle(message: Message) -> None:
            entered.set()
            await trio.sleep(0.1)
            done.append(number_of(message))

        async with consumer.consume(handle):
            await entered.wait()
        assert done == [0]


async def test_an_exception_of_the_handler_leaves_the_block(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 2)

        async def handle(message: Message) -> None:
            raise LookupError(str(number_of(message)))

        async def consume() -> None:
            async with consumer.consume(handle):
                await trio.sleep_forever()

        with pytest.raises(LookupError, match="0"):
            await consume()

        async def bad_body() -> None:
            async with consumer.messages():
                raise LookupError("body")

        with pytest.raises(LookupError, match="body"):
            await bad_body()


async def test_an_exception_of_on_error_ends_the_reading(own_server: ServerProcess) -> None:
    async with stream_of(own_server.url, "s") as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await stream.delete_consumer("d")

        def refuse(error: Exception) -> None:
            raise LookupError(type(error).__name__)

        async with consumer.messages(on_error=refuse) as messages:
            with pytest.raises(LookupError, match="NoResponders"):
                await messages.receive()


async def test_on_error_is_a_plain_function(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        push = await stream.create_push_consumer(durable_name="p", deliver_subject=f"to.{name}")

        async def wrong(error: Exception) -> None:
            raise AssertionError("not reached")

        with pytest.raises(InvalidOption, match="coroutine"):
            consumer.messages(on_error=wrong)
        with pytest.raises(InvalidOption, match="coroutine"):
            async with push.messages(on_error=wrong):
                raise AssertionError("not reached")
        async with stream.ordered_consumer() as ordered:
            with pytest.raises(InvalidOption, match="coroutine"):
                ordered.messages(on_error=wrong)


async def test_lazy(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 2)
        async with consumer.messages(eager=False) as messages:
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert messages.pulls == 0
            assert number_of(await messages.receive()) == 0
        async with consumer.messages(eager=False) as messages:
            with pytest.raises(trio.WouldBlock):
                messages.receive_nowait()
            assert messages.pulls == 1


# ------------------------------------------------------------------ C19


async def test_c19_sharing(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        found: list[list[int]] = [[], []]
        async with (
            consumer.messages(max_messages=5) as one,
            consumer.messages(max_messages=5) as two,
        ):
            async with trio.open_nursery() as nursery:

                async def read(messages: Any, mine: list[int]) -> None:
                    async for message in messages:
                        mine.append(number_of(message))
                        await message.ack()

                nursery.start_soon(read, one, found[0])
                nursery.start_soon(read, two, found[1])
                await fill(stream, 200)
                await wait_until(lambda: len(found[0]) + len(found[1]) == 200)
                nursery.cancel_scope.cancel()
        assert all(found)
        assert sorted(found[0] + found[1]) == list(range(200))


async def test_several_readers_of_one_iterator(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        await fill(stream, 100)
        found: list[int] = []
        readers: set[int] = set()
        async with consumer.messages(max_messages=20, stop_after=100) as messages:

            async def read(reader: int) -> None:
                async for message in messages:
                    found.append(number_of(message))
                    readers.add(reader)
                    await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                for reader in range(4):
                    nursery.start_soon(read, reader)
        assert found == list(range(100))
        assert len(readers) > 1


# ------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": 5, "max_bytes": 5}, "exclude each other"),
        ({"max_bytes": 5, "request_max_bytes": 5}, "request_max_bytes"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_bytes": 5, "threshold_messages": 5}, "threshold_bytes"),
        ({"threshold_bytes": 5}, "threshold_messages"),
        ({"max_messages": 5, "threshold_messages": 6}, "threshold_messages"),
        ({"max_bytes": 5, "threshold_bytes": 6}, "threshold_bytes"),
        ({"stop_after": 0}, "stop_after"),
        ({"expiry": 0.5}, "expiry"),
        ({"expiry": 2.0, "heartbeat": 1.1}, "half of expiry"),
        ({"heartbeat": 0.4}, "heartbeat"),
        ({"expiry": 100.0, "heartbeat": 31.0}, "heartbeat"),
        ({"group": "g"}, "no priority group"),
        ({"priority": 3}, "without group"),
    ],
)
async def test_options(
    server: ServerProcess, fresh_queue: Fresh, options: dict[str, Any], word: str
) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")

        async def handle(message: Message) -> None:
            raise AssertionError("not reached")

        reads: list[Callable[[], object]] = [
            lambda: consumer.messages(**options),
            lambda: consumer.consume(handle, **options),
        ]
        for read in reads:
            with pytest.raises(InvalidOption, match=word):
                read()
