"""The bucket of poisoned keys on a real server (see `backends/nats/_marks.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import nats
import pytest
import trio

from shove_actors._errors import PublishRefused, ShoveError, TopicNotDeclared
from shove_actors.backends import Mark
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import connect
from shove_actors.messaging import NatsStreamConfig, SequenceFailure, TopologyBuilder
from tests.support import wait_until

from .nats_process import kinds, of, process


def topology(queue: str, **config: Any) -> Any:
    builder = TopologyBuilder(queue).sequenced(SequenceFailure.FAIL_ALL).hold_queue(1).dlq()
    if config:
        builder = builder.nats_stream_config(NatsStreamConfig(**config))
    return builder.build()


async def elsewhere(url: str, what: Callable[[Any], Any]) -> Any:
    """What another client, nats-py, makes of it."""

    async def ask() -> Any:
        client = await nats.connect(url)
        try:
            return await what(client.jetstream())
        finally:
            await client.close()

    return await trio.to_thread.run_sync(lambda: asyncio.run(ask()))


async def test_other_clients_see_an_ordinary_bucket(
    server: ServerProcess, fresh_queue: Any
) -> None:
    queue = fresh_queue()
    async with process(server, queue + "-other") as one:
        backend = of(one)
        await backend.declare([topology(queue)])
        assert await backend.write_mark(queue, "k-acc/1", b'{"reason":"rejected"}', revision=0)
        assert await backend.write_mark(queue, "b-YS5i", b"{}", revision=0)

        async def look(js: Any) -> tuple[list[str], bytes, int]:
            bucket = await js.key_value(f"{queue}-poison")
            entry = await bucket.get("k-acc/1")
            await bucket.delete("b-YS5i")
            status = await bucket.status()
            assert status.history == 1
            assert not status.ttl
            return await bucket.keys(), entry.value, entry.revision

        keys, value, revision = await elsewhere(server.url, look)
        assert keys == ["k-acc/1"]
        assert value == b'{"reason":"rejected"}'
        assert await backend.read_mark(queue, "k-acc/1") == Mark(value, revision)
        gone = await backend.read_mark(queue, "b-YS5i")
        assert gone.value is None
        assert [name for name, _ in await backend.list_marks(queue)] == ["k-acc/1"]

        async def purge_and_put(js: Any) -> int:
            bucket = await js.key_value(f"{queue}-poison")
            await bucket.purge("k-acc/1")
            return int(await bucket.put("k-new", b"by hand"))

        written = await elsewhere(server.url, purge_and_put)
        assert (await backend.read_mark(queue, "k-acc/1")).value is None
        assert await backend.list_marks(queue) == [("k-new", Mark(b"by hand", written))]


async def test_declare_makes_the_bucket_once_and_lets_nothing_expire(
    own_server: ServerProcess,
) -> None:
    async with process(own_server, "other") as one:
        backend = of(one)
        await backend.declare([topology("q")])
        assert await backend.write_mark("q", "k-a", b"kept", revision=0)
        info = await backend.js.stream_info("KV_q-poison")
        assert info.config.max_msgs_per_subject == 1
        assert info.config.discard == "new"
        assert info.config.deny_delete
        assert info.config.allow_direct
        assert info.config.allow_rollup_hdrs is True
        assert info.config.max_age == 0
        # An operator who means well; a key must not be forgiven by time.
        await backend.js.update_stream(replace(info.config, max_age=3600.0, max_msgs=1000))
        await backend.declare([topology("q")])
        again = await backend.js.stream_info("KV_q-poison")
        assert again.config.max_age == 0
        assert again.config.max_msgs == 1000, "not ours without a NatsStreamConfig"
        assert (await backend.read_mark("q", "k-a")).value == b"kept"
        await backend.declare([TopologyBuilder("plain").build()])
        names = [name async for name in backend.js.stream_names()]
        assert sum(name.startswith("KV_") for name in names) == 1


async def test_whoever_needs_the_bucket_makes_it(own_server: ServerProcess) -> None:
    async with process(own_server, "q") as one:
        backend = of(one)
        with pytest.raises(TopicNotDeclared, match="nobody"):
            await backend.write_mark("nobody", "k-a", b"x", revision=0)
        await backend.declare([topology("p")])
        await backend.js.delete_stream("KV_p-poison")
        assert await backend.read_mark("p", "k-a") == Mark(None, 0)
        assert await backend.list_marks("p") == []
        assert await backend.write_mark("p", "k-a", b"x", revision=0)
        assert (await backend.read_mark("p", "k-a")).value == b"x"


async def test_marks_survive_the_server(own_server: ServerProcess) -> None:
    async with process(own_server, "q") as one:
        await of(one).declare([topology("p")])
        assert await of(one).write_mark("p", "k-a", b"kept", revision=0)
        own_server.kill()
        own_server.restart()
        await wait_until(lambda: "reconnected" in kinds(one))
        assert (await of(one).read_mark("p", "k-a")).value == b"kept"


async def test_unknown_is_not_unmarked(own_server: ServerProcess) -> None:
    """No answer, a bucket that is full, JetStream that is not there: never "not poisoned"."""
    async with process(own_server, "q", request_timeout=0.5) as one:
        backend = of(one)
        await backend.declare([topology("p")])
        info = await backend.js.stream_info("KV_p-poison")
        await backend.js.update_stream(replace(info.config, max_msgs=1))
        assert await backend.write_mark("p", "k-a", b"x", revision=0)
        with pytest.raises(PublishRefused, match="maximum"):
            await backend.write_mark("p", "k-b", b"x", revision=0)
        own_server.pause()
        try:
            with pytest.raises(ShoveError):
                await backend.read_mark("p", "k-b")
        finally:
            own_server.resume()
        assert (await backend.read_mark("p", "k-a")).value == b"x"


async def test_reads_ask_the_leader_and_not_a_replica(
    server: ServerProcess, fresh_queue: Any
) -> None:
    """Direct reads are allowed on a bucket, for other clients; ours do not use them."""
    queue, asked = fresh_queue(), list[str]()
    async with process(server, queue) as one, connect(server.url) as js:

        def heard(subject: bytes, *rest: object) -> None:
            if b"MSG.GET" in subject or b"DIRECT" in subject:
                asked.append(subject.decode())

        js.connection.subscribe(b"$JS.API.>", heard)
        await js.connection.flush()
        await of(one).declare([topology(queue + "-p")])
        await of(one).read_mark(queue + "-p", "k-a")
        await of(one).next_message(queue, 1)
        await wait_until(lambda: len([a for a in asked if queue in a]) == 2)
    assert [a for a in asked if queue in a] == [
        f"$JS.API.STREAM.MSG.GET.KV_{queue}-p-poison",
        f"$JS.API.STREAM.MSG.GET.{queue}",
    ]
