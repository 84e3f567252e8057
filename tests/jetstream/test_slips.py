"""What is easily typed and cannot be meant: refused before anything is sent."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import trio

from shove_actors import _errors, jetstream
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    FetchTimeout,
    InvalidName,
    InvalidOption,
    MessageTooLarge,
    UsageError,
    connect,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("data", [5, 5.0, None, [1], {"a": 1}, object()])
async def test_content_is_bytes_or_text(server: ServerProcess, data: Any) -> None:
    """`bytes(5)` is five zeros, and `bytes([1])` one byte."""
    async with connect(server.url) as js:
        await js.create_or_update_stream(name="SLIPS", subjects=["slips"])
        kv = await js.create_or_update_kv(bucket="slips")
        with pytest.raises(InvalidOption, match=r"the message is of type .*; give bytes or str"):
            await js.publish("slips", data)
        with pytest.raises(InvalidOption, match=r"the value is of type .*; give bytes or str"):
            await kv.put("count", data)
        assert (await js.stream_info("SLIPS")).messages == 0
        for good in (b"x", "x", bytearray(b"x"), memoryview(b"x")):
            await js.publish("slips", good)
        assert (await (await js.stream("SLIPS")).get_message(4)).data == b"x"
        await js.delete_stream("SLIPS")


@pytest.mark.parametrize("before", [0, 1])
async def test_c07_purge_before_the_first_takes_nothing(server: ServerProcess, before: int) -> None:
    """The server reads a sequence of 0 as none given: everything would go."""
    async with connect(server.url) as js:
        stream = await js.create_stream(name="SLIPS", subjects=["slips"])
        for _ in range(3):
            await js.publish("slips", b"")
        assert await stream.purge(before=before) == 0
        assert await stream.purge(before=before, subject="slips") == 0
        assert (await stream.info()).state.messages == 3
        assert await stream.purge(before=2) == 1
        await js.delete_stream("SLIPS")


@pytest.mark.parametrize("seconds", ["1h", True, float("nan"), float("inf"), [1]])
async def test_a_duration_is_a_number(server: ServerProcess, seconds: Any) -> None:
    """A text times a billion is two gigabytes before it is an error."""
    async with connect(server.url) as js:
        with pytest.raises(InvalidOption, match=r"max_age is .*number of seconds"):
            await js.create_stream(name="SLIPS", subjects=["slips"], max_age=seconds)
        with pytest.raises(InvalidOption, match=r"ack_wait is .*number of seconds"):
            await js.create_consumer("SLIPS", durable_name="d", ack_wait=seconds)


async def test_a_fetch_that_is_not_entered(server: ServerProcess) -> None:
    async with connect(server.url) as js:
        stream = await js.create_stream(name="SLIPS", subjects=["slips"])
        consumer = await stream.create_consumer(durable_name="d")
        batch = consumer.fetch(1)
        with pytest.raises(UsageError, match=r"async with consumer\.fetch"):
            await batch.__anext__()
        await js.delete_stream("SLIPS")


async def test_a_frame_that_would_end_the_connection_is_not_sent(server: ServerProcess) -> None:
    """A server ends the connection of who sends too much, with everybody's requests on it."""
    async with connect(server.url) as js:
        before = js.connection.server_id, len(js.connection.server)
        stream = await js.create_stream(name="SLIPS", subjects=["slips", "s.>"])
        consumer = await stream.create_consumer(durable_name="d")
        with pytest.raises(MessageTooLarge, match=r"the request to .* has .*max_payload"):
            await js.update_stream(name="SLIPS", description="x" * 2_000_000)
        for call in (js.publish("s." + "x" * 4000, b""), js.stream_name_by_subject("\xe9" * 2000)):
            with pytest.raises(InvalidName, match=r"has 400\d bytes; at most 3072"):
                await call
        await js.publish("slips", b"")
        message = await consumer.next(5)
        with pytest.raises(InvalidOption, match=r"reason has 2000000 bytes; at most"):
            await message.term("x" * 2_000_000)
        with pytest.raises(InvalidOption, match="reason is of type int"):
            await message.term(5)  # type: ignore[arg-type]
        assert not message.settled
        await message.term("enough")
        assert (js.connection.server_id, len(js.connection.server)) == before
        assert js.connection.last_error is None
        await js.delete_stream("SLIPS")


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_scope_of_the_caller_ends_next(server: ServerProcess, ordered: bool) -> None:
    """It is no time-out of ours, which would say a number that is not true."""
    async with connect(server.url) as js:
        stream = await js.create_stream(name="SLIPS", subjects=["slips"])
        with trio.fail_after(5), trio.move_on_after(0.3) as scope:
            if ordered:
                async with stream.ordered_consumer() as reader:
                    await reader.next()
            else:
                await (await stream.create_consumer(durable_name="d")).next()
        assert scope.cancelled_caught
        with pytest.raises(FetchTimeout, match=r"within 0\.2 s"):
            await (await stream.create_consumer(durable_name="e")).next(0.2)
        await js.delete_stream("SLIPS")


def test_every_error_of_the_client_can_be_imported() -> None:
    """Whatever the client raises, a program can catch by a public name."""
    tree = ast.parse((ROOT / "shove_actors" / "_errors.py").read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    of_the_client = [n for n in names if issubclass(getattr(_errors, n), _errors.JetStreamError)]
    assert len(of_the_client) > 40
    assert [n for n in of_the_client if getattr(jetstream, n, None) is None] == []
    assert [n for n in of_the_client if n not in jetstream.__all__] == []
