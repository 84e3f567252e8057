"""Consumers as an application sees them: C5, C8, C9 and what surrounds them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
import trio

from shove_actors._errors import (
    ApiError,
    ConsumerCreateFailed,
    ConsumerDoesNotExist,
    ConsumerExists,
    ConsumerInvalidReset,
    ConsumerNotFound,
    FilterError,
    InvalidName,
    InvalidOption,
    MaxConsumersReached,
    NotPullConsumer,
    NotPushConsumer,
    StreamNotFound,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConsumerConfig

from .reading import Fresh, ack_all, fill, js_of, number_of, stream_of


async def test_c08_actions(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        made = await stream.create_consumer(durable_name="d", ack_wait=7.5)
        again = await stream.create_consumer(ConsumerConfig(durable_name="d"), ack_wait=7.5)
        assert again.cached_info == made.cached_info
        with pytest.raises(ConsumerExists):
            await stream.create_consumer(durable_name="d", ack_wait=8.0)
        with pytest.raises(ConsumerDoesNotExist):
            await stream.update_consumer(durable_name="e")
        with pytest.raises(ConsumerCreateFailed):
            await stream.update_consumer(replace(made.config, ack_policy="none"))
        changed = await stream.update_consumer(replace(made.config, description="ours"))
        assert (changed.config.description, changed.config.ack_wait) == ("ours", 7.5)
        for _ in range(2):
            either = await stream.create_or_update_consumer(durable_name="f", max_ack_pending=3)
            assert either.config.max_ack_pending == 3
        assert (await stream.consumer("d")).cached_info == await changed.info()


async def test_c08_names(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        nameless = await stream.create_consumer()
        assert len(nameless.name) == 8
        assert nameless.config.durable_name is None
        assert nameless.config.inactive_threshold == 5.0
        named = await stream.create_consumer(name="short-lived", inactive_threshold=60.0)
        assert (named.name, named.stream_name) == ("short-lived", stream.name)
        assert "short-lived" in repr(named)
        with pytest.raises(InvalidName):
            await stream.create_consumer(durable_name="a.b")
        with pytest.raises(StreamNotFound):
            await js_of(stream).create_consumer(fresh_queue())
        with pytest.raises(ConsumerNotFound):
            await stream.consumer("missing")
        with pytest.raises(ConsumerNotFound):
            await stream.delete_consumer("missing")


async def test_c08_filters(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        one = await stream.create_consumer(durable_name="one", filter_subject=f"{name}.a")
        assert one.config.filter_subject == f"{name}.a"
        two = await stream.create_consumer(
            durable_name="two", filter_subjects=[f"{name}.a", f"{name}.b"]
        )
        assert two.config.filter_subjects == (f"{name}.a", f"{name}.b")
        with pytest.raises(FilterError):
            await stream.create_consumer(filter_subject=f"{name}.a", filter_subjects=[f"{name}.b"])
        with pytest.raises(FilterError):
            await stream.create_consumer(filter_subjects=[f"{name}.a", f"{name}.*"])
        with pytest.raises(FilterError):
            await stream.create_consumer(filter_subjects=[f"{name}.a", ""])
        await fill(stream, 2)
        await js_of(stream).connection.request(f"{name}.b", b"7")
        assert await ack_all(two, 3) == [0, 1, 7]


async def test_c08_pull_and_push_are_told_apart(server: ServerProcess, fresh_queue: Fresh) -> None:
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        await stream.create_consumer(durable_name="pull")
        push = await stream.create_push_consumer(durable_name="push", deliver_subject=f"to.{name}")
        assert (await stream.push_consumer("push")).cached_info == push.cached_info
        with pytest.raises(NotPullConsumer):
            await stream.consumer("push")
        with pytest.raises(NotPushConsumer):
            await stream.push_consumer("pull")
        with pytest.raises(NotPushConsumer):
            await stream.create_push_consumer(durable_name="x")
        with pytest.raises(InvalidOption, match="create_push_consumer"):
            await stream.create_consumer(deliver_subject="x")
        changed = await stream.update_push_consumer(
            durable_name="push", deliver_subject=f"to.{name}", description="ours"
        )
        assert changed.config.description == "ours"
        assert (
            await stream.create_or_update_push_consumer(
                durable_name="push", deliver_subject=f"to.{name}"
            )
        ).config.description is None


async def test_c08_every_setting_comes_back(server: ServerProcess, fresh_queue: Fresh) -> None:
    """What is sent is what is read: seconds, moments and tuples."""
    name = fresh_queue()
    async with stream_of(server.url, name) as stream:
        await fill(stream, 1)
        start = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=timezone.utc)
        wanted = ConsumerConfig(
            durable_name="d",
            description="all of it",
            deliver_policy="by_start_time",
            opt_start_time=start,
            ack_policy="explicit",
            replay_policy="original",
            ack_wait=5.5,
            max_deliver=4,
            backoff=(0.5, 1.5),
            max_ack_pending=7,
            max_waiting=9,
            filter_subjects=(f"{name}.a", f"{name}.b"),
            headers_only=True,
            sample_freq="10",
            max_batch=50,
            max_expires=12.5,
            max_bytes=1000,
            inactive_threshold=99.0,
            num_replicas=1,
            mem_storage=True,
            metadata={"owner": "ops"},
            priority_policy="pinned_client",
            priority_groups=("g",),
            priority_timeout=2.5,
        )
        made = (await stream.create_consumer(wanted)).config
        assert made.metadata is not None
        assert made.metadata["owner"] == "ops"
        # A backoff takes the place of ack_wait.
        expected = replace(
            wanted, name="d", metadata=made.metadata, extra=made.extra, ack_wait=made.ack_wait
        )
        assert made == expected
        assert ConsumerConfig.read(made.wire()) == made
        assert (await stream.create_or_update_consumer(made)).config == made
        until = datetime(2099, 1, 1, tzinfo=timezone.utc)
        paused = await stream.create_consumer(durable_name="p", pause_until=until)
        assert paused.config.pause_until == until
        assert paused.cached_info.paused
        assert paused.cached_info.pause_remaining > 1e9
        assert ConsumerConfig(extra={"max_expires": 2_000_000_000}).max_expires == 2.0


async def test_c08_limits(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue(), max_consumers=1) as stream:
        await stream.create_consumer(durable_name="a")
        with pytest.raises(MaxConsumersReached):
            await stream.create_consumer(durable_name="b")
        with pytest.raises(ApiError) as caught:  # longer than max_deliver
            await stream.update_consumer(durable_name="a", max_deliver=1, backoff=[1.0, 2.0])
        assert caught.value.err_code == 10116


async def test_c05_listing_consumers(server: ServerProcess, fresh_queue: Fresh) -> None:
    """260 of them: more than a page of infos."""
    async with stream_of(server.url, fresh_queue(), storage="memory") as stream:
        async with trio.open_nursery() as nursery:
            for part in range(10):

                async def create(part: int = part) -> None:
                    for number in range(26):
                        await stream.create_consumer(
                            name=f"c-{part}-{number}", inactive_threshold=60
                        )

                nursery.start_soon(create)
        infos = [info.name async for info in stream.list_consumers()]
        names = [name async for name in stream.consumer_names()]
        assert len(infos) == len(set(infos)) == 260
        assert sorted(names) == sorted(infos)


async def test_c09_pause_and_resume(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        consumer = await stream.create_consumer(durable_name="d")
        until = datetime.now(timezone.utc) + timedelta(seconds=30)
        state = await stream.pause_consumer("d", until)
        assert state.paused
        assert state.until is not None
        assert abs((state.until - until).total_seconds()) < 0.001
        assert 20 < state.remaining <= 30
        await fill(stream, 1)
        async with consumer.messages(expiry=1.0) as messages:
            with trio.move_on_after(1.0) as waited:
                await messages.receive()
            assert waited.cancelled_caught
            assert (await consumer.info()).paused
            assert not (await stream.resume_consumer("d")).paused
            with trio.fail_after(1.0):
                assert number_of(await messages.receive()) == 0
            assert messages.notices == ()
        assert not (await consumer.info()).paused
        # A moment in the past resumes, too.
        await stream.pause_consumer("d", until)
        past = datetime(2000, 1, 1, tzinfo=timezone.utc)
        assert not (await stream.pause_consumer("d", past)).paused
        with pytest.raises(InvalidOption, match="time zone"):
            await stream.pause_consumer("d", datetime(2000, 1, 1))
        with pytest.raises(ConsumerNotFound):
            await stream.pause_consumer("missing", until)


async def test_reset(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with stream_of(server.url, fresh_queue()) as stream:
        await fill(stream, 5)
        consumer = await stream.create_consumer(durable_name="d")
        assert await ack_all(consumer, 3) == [0, 1, 2]
        unsettled = await consumer.fetch_list(2)
        assert [number_of(m) for m in unsettled] == [3, 4]
        assert await stream.reset_consumer("d") == 4
        assert [number_of(m) for m in await consumer.fetch_list(2)] == [3, 4]
        assert await stream.reset_consumer("d", seq=2) == 2
        assert [number_of(m) for m in await consumer.fetch_list(4)] == [1, 2, 3, 4]
        await stream.create_consumer(
            durable_name="late", deliver_policy="by_start_sequence", opt_start_seq=4
        )
        with pytest.raises(ConsumerInvalidReset):
            await stream.reset_consumer("late", seq=1)
        # The server does not answer for a missing one; we do, at once.
        with trio.fail_after(2), pytest.raises(ConsumerNotFound):
            await stream.reset_consumer("missing")
        with pytest.raises(InvalidOption):
            await stream.reset_consumer("d", seq=0)
