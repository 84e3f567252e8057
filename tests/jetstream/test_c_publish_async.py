"""Publishing without waiting for each acknowledgement: C25, and atomic batches: C26."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
import trio

from shove_actors._errors import (
    AtomicBatchError,
    ConnectionError,
    Disconnected,
    HeaderError,
    InvalidAck,
    InvalidOption,
    MessageTooLarge,
    NoStreamResponse,
    NotConnected,
    PermissionDenied,
    PublisherClosed,
    PublishTimeout,
    TooManyStalled,
    UsageError,
    WrongLastSequence,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    JetStream,
    PubAck,
    PublishFuture,
    PubMessage,
    connect,
    open_connection,
)
from tests.support import wait_until

from .kit import SOON_S, connected, fast
from .losses import kill, restart

Fresh = Callable[[], str]


def stop(server: ServerProcess, number: signal.Signals) -> None:
    assert server.pid is not None
    os.kill(server.pid, number)


def deaf(js: JetStream, subject: str) -> None:
    """Somebody takes what is published there, and never answers."""
    js.connection.subscribe(subject.encode(), lambda *message: None)


# ------------------------------------------------------------------ C25


async def test_c25_all_are_stored(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url), publish_async_max_pending=256) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name])
        futures = []
        most = 0
        for number in range(500):
            futures.append(await js.publish_async(name, b"%d" % number, stall_wait=SOON_S))
            most = max(most, js.publish_async_pending)
        with trio.fail_after(SOON_S):
            await js.publish_async_complete()
        assert js.publish_async_pending == 0
        assert most <= 256
        assert (await stream.info()).messages == 500
        # In the order of the calls.
        assert [f.ack.sequence for f in futures if f.ack is not None] == list(range(1, 501))
        assert await futures[7].wait() == futures[7].ack
        assert futures[7].done
        assert futures[7].error is None
        assert futures[7].message.data == b"7"
        assert (await stream.get_message(8)).data == b"7"
        await js.publish_async_complete()  # none is outstanding: at once


async def test_c25_a_server_that_dies_with_one_in_flight(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        await js.create_stream(name="S", subjects=["s"])
        stop(own_server, signal.SIGSTOP)
        future = await js.publish_async("s", b"x")
        # The process is told to end only after what was written has left for it.
        await js.publish_async("s", b"y")
        assert js.publish_async_pending == 2
        own_server.kill()
        await events.wait("disconnected")
        with trio.fail_after(SOON_S):
            with pytest.raises(Disconnected) as caught:
                await future.wait()
            await js.publish_async_complete()
        assert isinstance(caught.value, ConnectionError)
        assert caught.value.stored is None
        assert js.publish_async_pending == 0
        assert isinstance(future.error, Disconnected)
        await restart(own_server)
        with trio.fail_after(SOON_S):
            again = await js.publish_async("s", b"z")
            assert (await again.wait()).stream == "S"


async def test_c25_what_is_not_sent_uses_nothing_up(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url), publish_async_max_pending=2) as js:
        name = fresh_queue()
        await js.create_stream(name=name, subjects=[name])
        for _ in range(5):
            with pytest.raises(MessageTooLarge):
                await js.publish_async(name, b"x" * (js.connection.max_payload + 1))
            with pytest.raises(HeaderError):
                await js.publish_async(name, b"x", headers={"A": "\n"})
        assert js.publish_async_pending == 0
        assert (await (await js.publish_async(name, b"x")).wait()).sequence == 1


async def test_c25_stalled(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url), publish_async_max_pending=2) as js:
        name = fresh_queue()
        deaf(js, name)
        for _ in range(2):
            await js.publish_async(name, b"x")
        with pytest.raises(TooManyStalled, match="publish_async_max_pending"):
            await js.publish_async(name, b"x", stall_wait=0.05)
        assert js.publish_async_pending == 2
        # None: as long as the caller's scope, whose cancellation comes out as itself.
        with trio.move_on_after(0.05) as scope:
            await js.publish_async(name, b"x", stall_wait=None)
        assert scope.cancelled_caught
        assert js.publish_async_pending == 2


async def test_c25_a_cancelled_call(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name])
        with trio.CancelScope() as scope:
            scope.cancel()
            await js.publish_async(name, b"x")
        assert scope.cancelled_caught
        assert js.publish_async_pending == 0
        assert (await stream.info()).messages == 0


async def test_c25_room_is_found_by_those_who_wait(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url), publish_async_max_pending=3) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name])

        async def publish() -> None:
            for _ in range(20):
                await js.publish_async(name, b"x", stall_wait=None)
                assert js.publish_async_pending <= 3

        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(publish)
            await js.publish_async_complete()
        assert (await stream.info()).messages == 160


async def test_no_stream(server: ServerProcess, fresh_queue: Fresh) -> None:
    errors: list[tuple[PublishFuture, Exception]] = []
    async with connect(
        fast(server.url), on_publish_error=lambda future, error: errors.append((future, error))
    ) as js:
        future = await js.publish_async(fresh_queue(), b"x", retry_wait=0.02)
        with pytest.raises(NoStreamResponse) as one:
            await future.wait()
        with pytest.raises(NoStreamResponse) as other:
            await future.wait()
        assert one.value is not other.value
        assert errors == [(future, future.error)]
        with trio.fail_after(SOON_S):
            await js.publish_async_complete()


async def test_a_stream_that_comes_in_time(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        future = await js.publish_async(name, b"x", retry_attempts=100, retry_wait=0.05)
        await js.create_stream(name=name, subjects=[name])
        with trio.fail_after(SOON_S):
            assert (await future.wait()).sequence == 1


async def test_refused_by_the_server(server: ServerProcess, fresh_queue: Fresh) -> None:
    acks: list[PubAck] = []
    async with connect(fast(server.url), on_publish_ack=lambda future, ack: acks.append(ack)) as js:
        name = fresh_queue()
        await js.create_stream(name=name, subjects=[name])
        good = await js.publish_async(name, b"x", expect_last_sequence=0)
        bad = await js.publish_async(name, b"x", expect_last_sequence=0)
        assert (await good.wait()).sequence == 1
        with pytest.raises(WrongLastSequence) as caught:
            await bad.wait()
        assert caught.value.err_code == 10071
        assert acks == [good.ack]


async def test_time_outs_of_acknowledgements(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url), publish_ack_timeout=0.1) as js:
        name, quick = fresh_queue(), fresh_queue()
        await js.create_stream(name=quick, subjects=[quick])
        deaf(js, name)
        futures = [await js.publish_async(name, b"x") for _ in range(3)]
        done = await js.publish_async(quick, b"x")
        with trio.fail_after(SOON_S):
            for future in futures:
                with pytest.raises(PublishTimeout, match="publish_ack_timeout"):
                    await future.wait()
            assert (await done.wait()).sequence == 1
        assert js.publish_async_pending == 0
        assert len(js.connection.replies) == 0


async def test_acknowledgements_have_a_bound_by_default(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """The time of one request, as `publish`; the second one in a row needs the timer set anew."""
    name = fresh_queue()
    async with connect(fast(server.url, request_timeout=0.2)) as js:
        deaf(js, name)
        for _ in range(2):
            future = await js.publish_async(name, b"x")
            with trio.fail_after(SOON_S), pytest.raises(PublishTimeout, match=r"0\.2 s"):
                await future.wait()
        assert js.publish_async_pending == 0
    async with connect(fast(server.url), timeout=0.1) as js:
        deaf(js, name)
        with trio.fail_after(SOON_S), pytest.raises(PublishTimeout, match=r"0\.1 s"):
            await (await js.publish_async(name, b"x")).wait()
    async with connect(fast(server.url), timeout=0.1, publish_ack_timeout=math.inf) as js:
        deaf(js, name)
        future = await js.publish_async(name, b"x")
        with trio.move_on_after(0.4):
            await future.wait()
        assert not future.done


async def test_the_end_of_the_context(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with open_connection(fast(server.url)) as connection:
        async with JetStream(connection) as js:
            name = fresh_queue()
            deaf(js, name)
            future = await js.publish_async(name, b"x")
            await js.cleanup_publisher()
            with pytest.raises(PublisherClosed, match="cleaned up"):
                await future.wait()
            # Publishing goes on.
            future = await js.publish_async(name, b"x")
            assert js.publish_async_pending == 1
        with pytest.raises(PublisherClosed, match="was left"):
            await future.wait()
        assert len(connection.replies) == 0
        with pytest.raises(UsageError, match="async with"):
            await js.publish_async(name, b"x")
        # Everything else works without being entered; and it may be entered again.
        await js.account_info()
        async with js:
            with pytest.raises(UsageError, match="entered already"):
                async with js:
                    raise AssertionError("not reached")


async def test_an_exception_leaves_the_context_as_it_is(server: ServerProcess) -> None:
    boom = ValueError("boom")
    async with open_connection(fast(server.url)) as connection:
        with pytest.raises(ValueError, match="boom") as caught:
            async with JetStream(connection):
                raise boom
        assert caught.value is boom


async def test_a_callback_that_raises_is_logged(
    server: ServerProcess, fresh_queue: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(future: PublishFuture, ack: PubAck) -> None:
        raise ValueError("mine")

    async with connect(fast(server.url), on_publish_ack=bad) as js:
        name = fresh_queue()
        await js.create_stream(name=name, subjects=[name])
        assert (await (await js.publish_async(name, b"x")).wait()).sequence == 1
    (record,) = [r for r in caplog.records if "callback failed" in r.message]
    assert record.shove_event == "publish_callback_failed"  # type: ignore[attr-defined]


async def test_without_a_connection(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url, request_timeout=0.1)) as (js, events):
        await kill(own_server)
        await events.wait("disconnected")
        with pytest.raises(NotConnected):
            await js.publish_async("s", b"x")
        assert js.publish_async_pending == 0


async def test_while_the_connection_comes_back(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        await js.create_stream(name="S", subjects=["s"])
        await kill(own_server)
        await events.wait("disconnected")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart, own_server)
            future = await js.publish_async("s", b"x")
        with trio.fail_after(SOON_S):
            assert (await future.wait()).stream == "S"


async def test_a_subject_that_is_forbidden() -> None:
    text = """
        jetstream: enabled
        authorization { users: [
            { user: a, password: a, permissions: { publish: { deny: "secret" } } }
        ] }
    """
    with ServerProcess(config=text) as process:
        async with connect(fast(process.url, username="a", password="a")) as js:
            future = await js.publish_async("secret", b"x")
            with pytest.raises(PermissionDenied) as caught:
                await future.wait()
            assert caught.value.subject == "secret"
            with pytest.raises(PermissionDenied):
                await js.publish("secret", b"x")


# ------------------------------------------------------------------ C26: atomic batches


async def test_c26_all_or_nothing(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[f"{name}.*"], allow_atomic=True)
        async with js.batch() as batch:
            for number in range(3):
                await batch.add(f"{name}.a", b"%d" % number, headers={"N": str(number)})
            assert len(batch) == 3
            assert batch.ack is None
            assert (await stream.info()).messages == 0
        assert batch.ack == PubAck(stream=name, sequence=3, batch=batch.id, count=3)
        assert (await stream.info()).messages == 3
        third = await stream.get_message(3)
        assert (third.data, third.headers["N"]) == (b"2", "2")

        abandoned = js.batch()

        async def abandon() -> None:
            async with abandoned:
                await abandoned.add(f"{name}.a", b"x")
                await abandoned.add(f"{name}.a", b"y")
                raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            await abandon()
        assert abandoned.ack is None
        assert (await stream.info()).messages == 3
        assert len(js.connection.replies) == 0


@pytest.mark.parametrize("count", [1, 2, 65, 1000])
async def test_c26_batches_of_any_size(
    server: ServerProcess, fresh_queue: Fresh, count: int
) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name], allow_atomic=True)
        messages = [PubMessage(subject=name, data=b"%d" % n) for n in range(count)]
        ack = await js.publish_batch(messages)
        assert (ack.sequence, ack.count) == (count, count)
        assert (await stream.get_message(count)).data == b"%d" % (count - 1)


async def test_c26_a_batch_without_messages(server: ServerProcess) -> None:
    async with connect(fast(server.url)) as js:
        async with js.batch() as batch:
            pass
        assert batch.ack is None
        with pytest.raises(InvalidOption, match="one message"):
            await js.publish_batch([])
        with pytest.raises(UsageError, match="inside"):
            await batch.add("a", b"x")
        with pytest.raises(UsageError, match="once"):
            async with batch:
                raise AssertionError("not reached")


async def test_c26_what_is_refused(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name, off = fresh_queue(), fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name], allow_atomic=True)
        await js.create_stream(name=off, subjects=[off])
        with pytest.raises(AtomicBatchError) as caught:
            await js.publish_batch([PubMessage(subject=off)] * 3)
        assert caught.value.err_code == 10174
        # The first may expect; a wrong expectation undoes it all.
        wrong = PubMessage(subject=name, options={"expect_last_sequence": 7})
        with pytest.raises(WrongLastSequence):
            await js.publish_batch([wrong, PubMessage(subject=name)])
        async with js.batch() as batch:
            await batch.add(name, b"x", expect_last_sequence=0)
            await batch.add(name, b"y")
        with pytest.raises(InvalidOption, match="1000"):
            await js.publish_batch([PubMessage(subject=name)] * 1001)
        with pytest.raises(NoStreamResponse):
            await js.publish_batch([PubMessage(subject=fresh_queue())] * 2)
        assert (await stream.info()).messages == 2


async def test_c26_abandoned_batches_give_their_place_back(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """The server keeps fifty open; one that is left by an exception is not one of them."""
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name], allow_atomic=True)

        async def abandoned(count: int) -> None:
            async with js.batch() as batch:
                for _ in range(count):
                    await batch.add(name, b"x")
                raise RuntimeError("the caller's own")

        with trio.fail_after(SOON_S):
            for number in range(120):
                with pytest.raises(RuntimeError, match="own"):
                    await abandoned(number % 4)
            with trio.CancelScope() as scope:
                async with js.batch() as batch:
                    await batch.add(name, b"x")
                    await batch.add(name, b"x")
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
            assert scope.cancelled_caught
            await js.publish_batch([PubMessage(subject=name, data=b"y")] * 3)
        assert (await stream.info()).messages == 3


async def test_c26_too_many_open_batches(server: ServerProcess, fresh_queue: Fresh) -> None:
    """It says so, and what to do; and the others are not harmed by it."""
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name], allow_atomic=True)
        async with AsyncExitStack() as stack:
            for _ in range(50):
                batch = await stack.enter_async_context(js.batch())
                await batch.add(name, b"x")
                await batch.add(name, b"x")
            with pytest.raises(AtomicBatchError, match="too many batches are open") as caught:
                await js.publish_batch([PubMessage(subject=name)] * 2)
            assert caught.value.err_code == 10210
        assert (await stream.info()).messages == 100


async def test_c26_a_batch_whose_stream_is_silent(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        deaf(js, name)
        for count in (1, 2):
            with pytest.raises(PublishTimeout):
                await js.publish_batch([PubMessage(subject=name)] * count, timeout=0.05)
        with trio.move_on_after(0.05) as scope:
            await js.publish_batch([PubMessage(subject=name)] * 2)
        assert scope.cancelled_caught
        assert len(js.connection.replies) == 0


async def test_c26_a_batch_and_a_lost_connection(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        stream = await js.create_stream(name="S", subjects=["s"], allow_atomic=True)

        async def interrupted() -> None:
            async with js.batch() as batch:
                await batch.add("s", b"1")
                await batch.add("s", b"2")
                await kill(own_server)
                await events.wait("disconnected")
                await batch.add("s", b"3")

        with pytest.raises((Disconnected, NotConnected)):
            await interrupted()
        await restart(own_server)
        await events.wait("reconnected")
        assert (await stream.info()).messages == 0


async def test_c26_a_batch_that_waits_for_the_connection(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        stream = await js.create_stream(name="S", subjects=["s"], allow_atomic=True)
        for count in (1, 2):
            await kill(own_server)
            await events.wait("disconnected", count)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(restart, own_server)
                ack = await js.publish_batch([PubMessage(subject="s")] * count, timeout=SOON_S)
            assert ack.count == count
        assert (await stream.info()).messages == 3


async def test_c26_a_lost_commit_leaves_it_open(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, _events):
        await js.create_stream(name="S", subjects=["s"], allow_atomic=True)

        async def commit() -> None:
            async with js.batch() as batch:
                await batch.add("s", b"1")
                stop(own_server, signal.SIGSTOP)

        async def lose() -> None:
            # Once the commit is on its way, and nobody can answer it.
            await wait_until(lambda: len(js.connection.replies))
            await kill(own_server)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            with pytest.raises(Disconnected) as caught:
                await commit()
        assert caught.value.stored is None


async def test_c26_somebody_who_knows_no_batches(server: ServerProcess, fresh_queue: Fresh) -> None:
    """What acknowledges a part of a batch has stored it by itself."""
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        ack = b'{"stream": "X", "seq": 1}'
        js.connection.subscribe(
            name.encode(), lambda s, reply, h, p: js.connection.publish(reply, ack) and None
        )
        with pytest.raises(InvalidAck, match="by itself"):
            await js.publish_batch([PubMessage(subject=name)] * 3)


async def test_no_connection_for_another_attempt(own_server: ServerProcess) -> None:
    async with connected(fast(own_server.url)) as (js, events):
        future = await js.publish_async("nobody", b"x", retry_attempts=5, retry_wait=0.3)
        await js.connection.flush()
        await kill(own_server)
        await events.wait("disconnected")
        with trio.fail_after(SOON_S), pytest.raises(Disconnected):
            await future.wait()
        assert js.publish_async_pending == 0


async def test_c25_every_future_ends_whatever_happens(own_server: ServerProcess) -> None:
    """A server that is killed again and again under load: no future waits for ever, what was
    acknowledged is stored, and what was not may be published again with its id."""
    async with connected(fast(own_server.url, request_timeout=SOON_S)) as (js, events):
        stream = await js.create_stream(name="S", subjects=["s"])
        acked: dict[bytes, int] = {}
        lost = 0

        async def publisher(lane: int) -> None:
            nonlocal lost
            for number in range(150):
                data = b"%d-%d" % (lane, number)
                while data not in acked:
                    try:
                        future = await js.publish_async(
                            "s", data, msg_id=data.decode(), stall_wait=None
                        )
                        acked[data] = (await future.wait()).sequence
                    except (Disconnected, NoStreamResponse):
                        lost += 1

        async def killer() -> None:
            for count in (1, 2, 3):
                await wait_until(lambda many=count: len(acked) > 100 * many)
                await kill(own_server)
                await restart(own_server)
                await events.wait("reconnected", count)

        with trio.fail_after(6 * SOON_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(killer)
                for lane in range(4):
                    nursery.start_soon(publisher, lane)
            await js.publish_async_complete()
        assert js.publish_async_pending == 0
        assert len(js.connection.replies) == 0
        assert lost > 0
        assert len(acked) == 600
        for data, sequence in acked.items():
            assert (await stream.get_message(sequence)).data == data
        assert (await stream.info()).messages == 600


async def test_a_slow_network_is_waited_for(own_server: ServerProcess) -> None:
    """Acknowledgements bound the number of messages; their size is bounded by what has left."""
    async with connected(fast(own_server.url)) as (js, _events):
        stream = await js.create_stream(name="S", subjects=["s"], storage="memory")
        data = bytes(1 << 19)
        sent = 0

        async def publish() -> None:
            nonlocal sent
            for _ in range(100):
                await js.publish_async("s", data, stall_wait=None)
                sent += 1

        stop(own_server, signal.SIGSTOP)
        try:
            with trio.move_on_after(1.0):
                await publish()
            assert sent < 60
            assert js.connection.backlog < 10 << 20
        finally:
            stop(own_server, signal.SIGCONT)
        with trio.fail_after(SOON_S):
            await publish()
            await js.publish_async_complete()
        assert (await stream.info()).messages == sent


async def test_what_a_future_shows(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name, nobody = fresh_queue(), fresh_queue()
        await js.create_stream(name=name, subjects=[name])
        good = await js.publish_async(name, b"secret", headers={"A": "secret"})
        bad = await js.publish_async(nobody, b"secret", retry_attempts=0)
        assert repr(good) == f"<PublishFuture for {name}, pending>"
        await js.publish_async_complete()
        assert repr(good) == f"<PublishFuture for {name}, stored>"
        assert repr(bad) == f"<PublishFuture for {nobody}, failed>"
        assert good.message.headers is not None
        assert dict(good.message.headers) == {"A": "secret"}
        assert bad.ack is None


async def test_many_with_a_time_out(server: ServerProcess, fresh_queue: Fresh) -> None:
    """What is done leaves nothing behind until its time would be over."""
    async with connect(fast(server.url), publish_ack_timeout=60.0) as js:
        name = fresh_queue()
        await js.create_stream(name=name, subjects=[name])
        for _ in range(10):
            for _ in range(20):
                await js.publish_async(name, b"x")
            await js.publish_async_complete()
        await js.publish_async(name, b"x")
        assert len(js._publisher._deadlines) == 1


async def test_two_contexts_on_one_connection(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Each has its own pending publishes."""
    async with open_connection(fast(server.url)) as connection:
        async with JetStream(connection) as one, JetStream(connection) as two:
            name = fresh_queue()
            deaf(one, name)
            await one.publish_async(name, b"x")
            assert (one.publish_async_pending, two.publish_async_pending) == (1, 0)
            with trio.fail_after(SOON_S):
                await two.publish_async_complete()
            assert one.publish_async_pending == 1
