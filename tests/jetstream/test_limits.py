"""Numbers that the server cannot count with, and texts that are none: refused before they are
sent, with the option's name."""

from __future__ import annotations

import pytest

from shove_actors._errors import InvalidOption, ShoveError
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConsumerConfig, StreamConfig, connect
from shove_actors.jetstream._fetch import fetch_options
from shove_actors.jetstream._options import MOST_SECONDS, check_count, check_seconds

from .kit import fast
from .reading import Fresh

HALF = "\udc80"


@pytest.mark.parametrize("seconds", [1e30, 1e12, 10**400, float("nan"), float("inf")], ids=str)
def test_seconds(seconds: float) -> None:
    with pytest.raises(InvalidOption, match=r"^wait is .*finite"):
        check_seconds("wait", seconds)
    with pytest.raises(InvalidOption, match="max_wait"):
        fetch_options(1, max_wait=seconds)


def test_the_longest_time() -> None:
    assert check_seconds("wait", MOST_SECONDS) == MOST_SECONDS
    assert StreamConfig(name="s", max_age=MOST_SECONDS).wire()["max_age"] < 2**63


def test_counts() -> None:
    assert check_count("n", 2**63 - 1) == 2**63 - 1
    with pytest.raises(InvalidOption, match="at most 9223372036854775807"):
        check_count("n", 2**63)


def test_configurations() -> None:
    for config, name in (
        (StreamConfig(name="s", max_age=1e30), "max_age"),
        (StreamConfig(name="s", max_msgs=2**70), "max_msgs"),
        (ConsumerConfig(backoff=(1.0, 1e30)), "backoff"),
        (ConsumerConfig(opt_start_seq=2**64), "opt_start_seq"),
    ):
        with pytest.raises(InvalidOption, match=name):
            config.wire()
    assert ConsumerConfig(opt_start_seq=2**64 - 1).wire()["opt_start_seq"] == 2**64 - 1


async def test_on_the_way_to_a_server(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        name = fresh_queue()
        stream = await js.create_stream(name=name, subjects=[name])
        consumer = await stream.create_consumer(name="c")
        kv = await js.create_kv(bucket=name)
        store = await js.create_object_store(bucket=name)
        await js.publish(name, b"x")
        message = await consumer.next(max_wait=5.0)
        for wrong in (
            js.create_stream(name=f"{name}-2", subjects=["a"], max_age=1e30),
            js.create_stream(name=f"{name}-2", subjects=["a"], description=HALF),
            js.create_stream(name=f"{name}{HALF}", subjects=["a"]),
            stream.get_message(2**70),
            js.publish(name + HALF, b"x"),
            js.publish(name * 1000 + HALF, b"x"),
            js.publish(name, HALF),
            js.publish_async(name, HALF),
            kv.put("k", HALF),
            store.put(HALF, b"x"),
            store.put("x", HALF),
            message.term(HALF),
            message.nak(1e30),
        ):
            with pytest.raises(InvalidOption):
                await wrong
        with pytest.raises(ShoveError):
            await kv.put(HALF, "x")
        with pytest.raises(InvalidOption, match="expiry"):
            consumer.messages(expiry=1e12)
        assert (await stream.info()).messages == 1
        assert await store.list() == []
        await message.ack()
