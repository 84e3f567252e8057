"""C32: nats.go's legacy programs, written down with the legacy names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from shove_actors._errors import (
    ConsumerExists,
    ConsumerMismatch,
    ConsumerNotFound,
    FetchDisconnected,
    FetchTimeout,
    InvalidOption,
    IteratorClosed,
    MessageDeleteFailed,
    MessageNotFound,
    StreamNotFound,
    UsageError,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConsumerConfig, Message, PubMessage, legacy
from tests.support import wait_until

from .kit import SOON_S, Events, fast
from .losses import kill

Fresh = Callable[[], str]


async def filled(js: legacy.JetStreamContext, name: str, count: int = 3) -> str:
    await js.add_stream(name=name, subjects=[f"{name}.*"])
    for number in range(count):
        await js.publish(f"{name}.a", b"%d" % number)
    return f"{name}.*"


async def exists(js: legacy.JetStreamContext, stream: str, name: str) -> bool:
    try:
        await js.consumer_info(stream, name)
    except ConsumerNotFound:
        return False
    return True


# ------------------------------------------------------------------ managing


async def test_c32_streams(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        info = await js.add_stream(name=name, subjects=[f"{name}.*"])
        assert info.config.subjects == (f"{name}.*",)
        await js.publish(f"{name}.a", b"x")
        # As the seed does it: what is left out is gone, and the message too large for the limit.
        info = await js.update_stream(name=name, max_bytes=8)
        assert (info.config.max_bytes, info.config.subjects) == (8, (name,))
        assert (await js.stream_info(name)).messages == 0
        await js.update_stream(info.config, max_bytes=-1)
        for data in (b"1", b"2", b"3"):
            await js.publish(name, data)
        assert (await js.get_msg(name, 2)).data == b"1"
        assert (await js.get_last_msg(name, name)).data == b"3"
        await js.delete_msg(name, 2)
        await js.secure_delete_msg(name, 3)
        with pytest.raises(MessageNotFound):
            await js.get_msg(name, 2)
        with pytest.raises(MessageDeleteFailed):
            await js.delete_msg(name, 2)
        assert await js.purge_stream(name) == 1
        assert [n async for n in js.stream_names(name)] == [name]
        assert [i.config.name async for i in js.streams(name)] == [name]
        assert await js.stream_name_by_subject(name) == name
        await js.delete_stream(name)
        with pytest.raises(StreamNotFound):
            await js.stream_info(name)
        with pytest.raises(StreamNotFound, match="no stream matches"):
            await js.stream_name_by_subject(name)
        assert (await js.account_info()).limits.max_streams == -1


async def test_c32_consumers(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        await filled(js, name)
        made = await js.add_consumer(name, durable_name="MONITOR")
        # The legacy default, unlike the new one.
        assert made.config.ack_policy == "none"
        assert (await js.add_consumer(name, durable_name="MONITOR")).created == made.created
        with pytest.raises(ConsumerExists, match="ack_policy is 'none'"):
            await js.add_consumer(name, durable_name="MONITOR", ack_policy="explicit")
        with pytest.raises(ConsumerExists, match="max_deliver"):
            await js.add_consumer(name, durable_name="MONITOR", max_deliver=3)
        changed = await js.update_consumer(name, made.config, description="ours")
        assert changed.config == replace(made.config, description="ours")
        # Compared is only what is set.
        assert (await js.add_consumer(name, durable_name="MONITOR")).config == changed.config
        with pytest.raises(InvalidOption, match="name"):
            await js.update_consumer(name)
        given = await js.add_consumer(name, ConsumerConfig(durable_name="explicit"))
        assert given.config.ack_policy == "explicit"
        assert sorted([n async for n in js.consumer_names(name)]) == ["MONITOR", "explicit"]
        assert sorted([i.name async for i in js.consumers(name)]) == ["MONITOR", "explicit"]
        await js.delete_consumer(name, "MONITOR")
        assert not await exists(js, name, "MONITOR")


async def test_c32_publishing(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url), publish_async_max_pending=256) as js:
        name = fresh_queue()
        await js.add_stream(name=name, subjects=[f"{name}.*"])
        subject = f"{name}.scratch"
        assert (await js.publish(subject, b"hello")).sequence == 1
        assert (await js.publish_msg(PubMessage(subject=subject, data=b"hello"))).sequence == 2
        for _ in range(500):
            await js.publish_async(subject, b"hello", stall_wait=SOON_S)
        future = await js.publish_msg_async(PubMessage(subject=subject), stall_wait=SOON_S)
        with trio.fail_after(SOON_S):
            await js.publish_async_complete()
        assert js.publish_async_pending == 0
        assert future.done
        assert (await js.stream_info(name)).messages == 503


# ------------------------------------------------------------------ with a callback


async def test_c32_ephemeral_callback(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        got: list[bytes] = []
        done = trio.Event()

        def callback(message: Message) -> None:
            got.append(message.data)
            if len(got) == 3:
                done.set()

        async with js.subscribe(subject, callback) as sub:
            with trio.fail_after(SOON_S):
                await done.wait()
                consumer = sub.consumer_name
                # Acknowledged behind the callback's back.
                while (info := await sub.consumer_info()).num_ack_pending:
                    await trio.lowlevel.checkpoint()
            assert info.config.ack_policy == "explicit"
            assert info.config.deliver_policy == "all"
            assert info.ack_floor.stream_seq == 3
        assert got == [b"0", b"1", b"2"]
        assert not await exists(js, name, consumer)


async def test_c32_a_callback_may_acknowledge_itself(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        got: list[int] = []
        done = trio.Event()

        async def callback(message: Message) -> None:
            got.append(message.metadata.stream_sequence)
            if message.metadata.stream_sequence == 2:
                await legacy.ack_sync(message)
            if len(got) == 3:
                done.set()

        async with js.subscribe(subject, callback, manual_ack=True, durable="manual") as sub:
            with trio.fail_after(SOON_S):
                await done.wait()
            assert (await sub.consumer_info()).num_ack_pending == 2
        # The callback's own acknowledgement and ours do not hurt each other.
        got.clear()
        done = trio.Event()
        async with js.subscribe(subject, callback) as sub:
            with trio.fail_after(SOON_S):
                await done.wait()
        assert got == [1, 2, 3]


async def test_c32_a_callback_that_raises(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name, count=1)
        errors: list[Exception] = []
        deliveries: list[int] = []
        done = trio.Event()

        def callback(message: Message) -> None:
            deliveries.append(message.metadata.num_delivered)
            if len(deliveries) == 1:
                raise ValueError("boom")
            done.set()

        async with js.subscribe(subject, callback, ack_wait=0.2, on_error=errors.append):
            with trio.fail_after(SOON_S):
                await done.wait()
        assert deliveries == [1, 2]
        assert [str(error) for error in errors] == ["boom"]

        async def until_it_raises() -> None:
            deliveries.clear()
            async with js.subscribe(subject, callback, durable="raises"):
                await trio.sleep_forever()

        with pytest.raises(ValueError, match="boom"), trio.fail_after(SOON_S):
            await until_it_raises()
        assert not await exists(js, name, "raises")


async def test_c32_drain_processes_what_was_sent(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name, count=20)
        got: list[bytes] = []
        started = trio.Event()

        async def callback(message: Message) -> None:
            started.set()
            await trio.sleep(0.02)
            got.append(message.data)

        async with js.subscribe(subject, callback) as sub:
            with trio.fail_after(SOON_S):
                await started.wait()
                while (await sub.consumer_info()).num_pending:
                    await trio.lowlevel.checkpoint()
                await sub.drain()
            assert got == [b"%d" % n for n in range(20)]
            assert not await exists(js, name, sub.consumer_name)
            await sub.drain()
            await sub.unsubscribe()


async def test_c32_queue(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name, count=0)
        one: list[bytes] = []
        two: list[bytes] = []
        async with (
            js.queue_subscribe(subject, "workers", lambda m: one.append(m.data)) as first,
            js.queue_subscribe(subject, "workers", lambda m: two.append(m.data)) as second,
        ):
            assert first.consumer_name == second.consumer_name == "workers"
            for number in range(100):
                await js.publish(f"{name}.a", b"%d" % number)
            await wait_until(lambda: len(one) + len(two) == 100, SOON_S)
            with pytest.raises(ConsumerMismatch, match="deliver_group"):
                async with js.subscribe_sync(subject, durable="workers"):
                    raise AssertionError("not reached")
        assert sorted(one + two) == sorted(b"%d" % n for n in range(100))
        assert one
        assert two
        with pytest.raises(InvalidOption, match="queue subscription"):
            async with js.queue_subscribe_sync(subject, "q", idle_heartbeat=1.0):
                raise AssertionError("not reached")


# ------------------------------------------------------------------ without a callback


async def test_c32_durable_sync(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        async with js.subscribe_sync(subject, durable="MONITOR", max_deliver=3) as sub:
            message = await sub.next_msg(SOON_S)
            assert message.data == b"0"
            info = await sub.consumer_info()
            # Never acknowledged by itself; at most what a channel of nats.go's holds.
            assert info.num_ack_pending == 3
            assert info.config.max_deliver == 3
            assert info.config.max_ack_pending == 512 * 1024
            await message.ack()
            assert [(await sub.receive()).data, sub.receive_nowait().data] == [b"1", b"2"]
            with pytest.raises(TimeoutError):
                await sub.next_msg(0.05)
            await sub.unsubscribe()
            assert not await exists(js, name, "MONITOR")
            with pytest.raises(IteratorClosed):
                await sub.next_msg(0.05)


async def test_c32_what_existed_is_left(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        inbox = js.js.connection.new_inbox().decode()
        await js.add_consumer(
            name, durable_name="theirs", deliver_subject=inbox, ack_policy="explicit"
        )
        async with js.subscribe_sync(subject, durable="theirs") as sub:
            assert (await sub.next_msg(SOON_S)).data == b"0"
            with pytest.raises(ConsumerMismatch, match="reads it already"):
                async with js.subscribe_sync(subject, bind=(name, "theirs")):
                    raise AssertionError("not reached")
            await sub.drain()
            assert [message.data async for message in sub] == [b"1", b"2"]
        assert await exists(js, name, "theirs")
        async with js.chan_subscribe(subject, bind=(name, "theirs")) as channel:
            assert channel.consumer_name == "theirs"
        assert await exists(js, name, "theirs")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_deliver": 7}, "max_deliver is 3, and 7"),
        ({"ack_policy": "none"}, "ack_policy"),
        ({"deliver_policy": "new"}, "deliver_policy"),
        ({"ack_wait": 1.0}, "ack_wait"),
        ({"queue": "q"}, "deliver_group"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_c32_an_existing_consumer_must_be_what_is_asked_for(
    server: ServerProcess, fresh_queue: Fresh, options: dict[str, object], match: str
) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        await js.add_consumer(
            name, durable_name="d", deliver_subject="there", max_deliver=3, ack_policy="explicit"
        )
        with pytest.raises(ConsumerMismatch, match=match):
            async with js.subscribe_sync(subject, durable="d", **options):  # type: ignore[arg-type]
                raise AssertionError("not reached")
        with pytest.raises(ConsumerMismatch, match="push consumer"):
            async with js.pull_subscribe(subject, "d"):
                raise AssertionError("not reached")


async def test_c32_which_stream_and_which_consumer(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        with pytest.raises(StreamNotFound, match="no stream matches"):
            async with js.subscribe_sync(fresh_queue()):
                raise AssertionError("not reached")
        with pytest.raises(StreamNotFound):
            async with js.subscribe_sync(subject, bind_stream=fresh_queue()):
                raise AssertionError("not reached")
        with pytest.raises(ConsumerNotFound):
            async with js.subscribe_sync(subject, bind=(name, "missing")):
                raise AssertionError("not reached")
        async with js.subscribe_sync(f"{name}.b", bind_stream=name, durable="b") as sub:
            with pytest.raises(ConsumerMismatch, match="filter_subject"):
                async with js.subscribe_sync(f"{name}.a", durable="b"):
                    raise AssertionError("not reached")
            assert (await sub.consumer_info()).config.filter_subject == f"{name}.b"
        await js.add_consumer(name, durable_name="pull", ack_policy="explicit")
        with pytest.raises(ConsumerMismatch, match="pull consumer"):
            async with js.subscribe_sync(subject, durable="pull"):
                raise AssertionError("not reached")


async def test_c32_where_it_starts(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        async with js.subscribe_sync(subject, opt_start_seq=3) as sub:
            assert (await sub.next_msg(SOON_S)).data == b"2"
        async with js.subscribe_sync(subject, deliver_policy="last", ack_policy="none") as sub:
            message = await sub.next_msg(SOON_S)
            assert message.data == b"2"
            assert (await sub.consumer_info()).config.ack_policy == "none"


async def test_c32_ordered(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        async with js.subscribe_sync(subject, ordered=True, opt_start_seq=2) as sub:
            assert [(await sub.next_msg(SOON_S)).data for _ in range(2)] == [b"1", b"2"]
            with pytest.raises(UsageError, match="replaces its consumer"):
                await sub.consumer_info()
        got: list[bytes] = []
        done = trio.Event()

        def callback(message: Message) -> None:
            got.append(message.data)
            if len(got) == 3:
                done.set()

        async with js.subscribe(subject, callback, ordered=True):
            with trio.fail_after(SOON_S):
                await done.wait()
        assert got == [b"0", b"1", b"2"]
        with pytest.raises(InvalidOption, match="no durable"):
            async with js.subscribe_sync(subject, ordered=True, durable="d"):
                raise AssertionError("not reached")


# ------------------------------------------------------------------ pulling


async def test_c32_pull(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        async with js.pull_subscribe(subject, "MONITOR") as sub:
            started = trio.current_time()
            messages = await sub.fetch(10, timeout=30.0)
            # Three are stored: all that there is, at once.
            assert [m.data for m in messages] == [b"0", b"1", b"2"]
            assert trio.current_time() - started < SOON_S
            for message in messages:
                await message.ack()
            with pytest.raises(FetchTimeout) as caught:
                await sub.fetch(10, timeout=0.2)
            assert isinstance(caught.value, TimeoutError)
            with pytest.raises(FetchTimeout):
                await sub.fetch(1, timeout=0.2)
            async with trio.open_nursery() as nursery:

                async def later() -> None:
                    await trio.sleep(0.1)
                    await js.publish(f"{name}.a", b"late")

                nursery.start_soon(later)
                (late,) = await sub.fetch(10, timeout=30.0)
            assert late.data == b"late"
            with pytest.raises(InvalidOption):
                await sub.fetch(0)
            await sub.unsubscribe()
            with pytest.raises(IteratorClosed):
                await sub.fetch(1)
        assert not await exists(js, name, "MONITOR")


async def test_c32_pull_from_an_existing_one(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with legacy.connect(fast(server.url)) as js:
        name = fresh_queue()
        subject = await filled(js, name)
        await js.add_consumer(name, durable_name="theirs", ack_policy="explicit")
        async with js.pull_subscribe(subject, "theirs") as sub:
            assert len(await sub.fetch(2)) == 2
            await sub.drain()
        assert await exists(js, name, "theirs")
        async with js.pull_subscribe(subject) as sub:
            assert len(await sub.fetch(3)) == 3
            ephemeral = sub.consumer_name
        assert not await exists(js, name, ephemeral)


async def test_c32_pull_and_a_lost_connection(own_server: ServerProcess) -> None:
    async with legacy.connect(fast(own_server.url)) as js:
        events = Events(js.js.connection)
        await js.add_stream(name="S", subjects=["s"])
        async with js.pull_subscribe("s", "d") as sub:
            async with trio.open_nursery() as nursery:

                async def lose() -> None:
                    while not (await sub.consumer_info()).num_waiting:
                        await trio.lowlevel.checkpoint()
                    await kill(own_server)

                nursery.start_soon(lose)
                with pytest.raises(FetchDisconnected), trio.fail_after(SOON_S):
                    await sub.fetch(1, timeout=30.0)
            await events.wait("disconnected")
