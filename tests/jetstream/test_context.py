"""The JetStream API over a real server."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

import pytest
import trio

from shove_actors._errors import (
    ApiError,
    ConsumerCreateFailed,
    ConsumerExists,
    ConsumerNotFound,
    JetStreamNotEnabled,
    JetStreamNotEnabledForAccount,
    MessageNotFound,
    RequestTimeout,
    StreamNameInUse,
    StreamNotFound,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    ConsumerConfig,
    JetStream,
    StreamConfig,
    connect,
    hpub,
    parse_time_ns,
)

from .kit import connected, fast

Fresh = Callable[[], str]


async def store(js: JetStream, subject: str, payload: bytes) -> None:
    answer = await js.connection.request(subject, payload)
    assert answer.status is None


async def test_c04_by_name(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        config = StreamConfig(name=name, subjects=(f"{name}.*",), max_age=3600.0)
        first = await js.create_stream(config)
        again = await js.create_stream(config)
        assert again.cached_info.created == first.cached_info.created
        with pytest.raises(StreamNameInUse):
            await js.create_stream(replace(config, subjects=(f"{name}.other",)))
        with pytest.raises(StreamNotFound) as caught:
            await js.update_stream(replace(config, name=fresh_queue()))
        assert (caught.value.code, caught.value.err_code) == (404, 10059)
        updated = await js.update_stream(replace(first.config, max_bytes=10_000))
        assert updated.config.subjects == (f"{name}.*",)
        assert updated.config.max_bytes == 10_000
        assert updated.config.max_age == 3600.0
        assert updated.config.duplicate_window == 120.0
        await js.delete_stream(name)
        with pytest.raises(StreamNotFound):
            await js.stream_info(name)


async def test_reading_and_writing_back_loses_nothing(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """PC-067: settings that this version does not name travel in `extra`."""
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        made = await js.create_stream(
            StreamConfig(
                name=name,
                subjects=(name,),
                description="the operator's",
                metadata={"owner": "ops"},
                allow_direct=True,
                max_msgs_per_subject=7,
                extra={"compression": "s2"},
            )
        )
        assert made.config.compression == "s2"
        assert made.config.metadata is not None
        assert made.config.metadata["owner"] == "ops"
        await js.update_stream(made.config)
        assert (await js.stream_info(name)).config == made.config


async def test_c05_names_are_complete(own_server: ServerProcess) -> None:
    """Names come 1024 a page; asked for page by page, by offset."""
    async with connect(fast(own_server.url)) as js:
        assert [name async for name in js.stream_names()] == []
        for number in range(5):
            await js.create_stream(StreamConfig(name=f"s{number}", subjects=(f"a.{number}.*",)))
        assert [name async for name in js.stream_names()] == [f"s{n}" for n in range(5)]
        assert [name async for name in js.stream_names("a.3.x")] == ["s3"]
        assert await js.stream_name_by_subject("a.4.x") == "s4"
        assert await js.stream_name_by_subject("b") is None
        async with aclosing(js.stream_names()) as names:
            assert await names.__anext__() == "s0"


async def test_c06_by_name(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        await store(js, f"{name}.a", b"")
        await store(js, f"{name}.b", b"\x00\xff\r\n")
        block = b"NATS/1.0\r\nA: b\r\n\r\n"
        js.connection.write(hpub(f"{name}.a".encode(), b"", block, b"third"))
        await js.connection.flush()
        first = await js.get_message(name, 1)
        assert (first.subject, first.data, first.header_block) == (f"{name}.a", b"", None)
        assert (await js.get_message(name, 2)).data == b"\x00\xff\r\n"
        last = await js.get_last_message(name, f"{name}.a")
        assert (last.sequence, last.data) == (3, b"third")
        assert last.header_block is not None
        assert b"A: b" in last.header_block
        assert abs(last.time_ns - time.time_ns()) < 60e9
        with pytest.raises(MessageNotFound):
            await js.get_message(name, 4)
        assert await js.purge_stream(name) == 3
        assert (await js.stream_info(name)).messages == 0


async def test_c08_consumers(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        config = ConsumerConfig(
            durable_name="d", filter_subject=f"{name}.a", ack_wait=7.5, max_ack_pending=3
        )
        made = await js.create_consumer(name, config)
        assert (await js.create_consumer(name, config)).cached_info == made.cached_info
        assert (made.config.ack_wait, made.config.max_ack_pending) == (7.5, 3)
        with pytest.raises(ConsumerExists):
            await js.create_consumer(name, replace(config, max_ack_pending=4))
        changed = await js.create_consumer(name, replace(config, max_ack_pending=4), action=None)
        assert changed.config.max_ack_pending == 4
        missing = replace(config, durable_name="e")
        with pytest.raises(ApiError):
            await js.create_consumer(name, missing, action="update")
        with pytest.raises(ConsumerCreateFailed):
            await js.create_consumer(name, replace(config, ack_policy="none"), action="update")
        await store(js, f"{name}.a", b"1")
        await store(js, f"{name}.b", b"2")
        info = await js.consumer_info(name, "d")
        assert (info.num_pending, info.num_ack_pending, info.num_waiting) == (1, 0, 0)
        await js.delete_consumer(name, "d")
        with pytest.raises(ConsumerNotFound):
            await js.delete_consumer(name, "d")
        with pytest.raises(StreamNotFound):
            await js.consumer_info(fresh_queue(), "d")


async def test_domains() -> None:
    with ServerProcess(config="jetstream { domain: hub }") as process:
        async with connect(fast(process.url), domain="hub") as js:
            await js.account_info()
            await js.create_stream(StreamConfig(name="s", subjects=("a",)))
            for same in (
                JetStream(js.connection),
                JetStream(js.connection, api_prefix="$JS.hub.API"),
                JetStream(js.connection, api_prefix="$JS.hub.API."),
            ):
                assert (await same.stream_info("s")).config.name == "s"
            with pytest.raises(JetStreamNotEnabled):
                await JetStream(js.connection, domain="elsewhere").account_info()
            with pytest.raises(ValueError, match="exclude each other"):
                JetStream(js.connection, domain="a", api_prefix="b")


async def test_an_account_without_jetstream() -> None:
    text = """
        accounts {
            A: { users: [ { user: a, password: a } ] }
            B: { users: [ { user: b, password: b } ], jetstream: enabled }
        }
    """
    with ServerProcess(config=text) as process:
        async with connect(fast(process.url, username="a", password="a")) as js:
            with pytest.raises(JetStreamNotEnabledForAccount, match="not for the account"):
                await js.account_info()
        async with connect(fast(process.url, username="b", password="b")) as js:
            await js.account_info()


async def test_somebody_else_answers(server: ServerProcess) -> None:
    async with connected(fast(server.url)) as (connection_js, _events):
        connection = connection_js.connection
        js = JetStream(connection, api_prefix="mine.api")
        answers = [b"not json", b"[]"]
        connection.subscribe(
            b"mine.api.>", lambda s, reply, h, p: connection.publish(reply, answers.pop(0)) and None
        )
        for _ in range(2):
            with pytest.raises(ApiError, match="makes no sense"):
                await js.account_info()


async def test_own_timeout(server: ServerProcess) -> None:
    async with connect(fast(server.url)) as js:
        js.connection.subscribe(b"mute.api.>", lambda *message: None)
        mute = JetStream(js.connection, api_prefix="mute.api", timeout=0.05)
        with pytest.raises(RequestTimeout, match=r"0\.05 s"):
            await mute.account_info()
        with trio.move_on_after(0.05) as scope:
            await JetStream(js.connection, api_prefix="mute.api").account_info()
        assert scope.cancelled_caught
        assert len(js.connection.replies) == 0


async def test_the_server_s_clock(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        await js.stream_info(name)
        assert js.clock._offset_ns is not None
        assert abs(js.clock.now_ns() - time.time_ns()) < 5e9
        js.clock.forget()
        assert abs(js.clock.now_ns() - time.time_ns()) < 5e9


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("2024-02-29T12:00:00.123456789Z", 1_709_208_000_123_456_789),
    ],
)
def test_times(text: str, nanoseconds: int) -> None:
    assert parse_time_ns(text) == nanoseconds
