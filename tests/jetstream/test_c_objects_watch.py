"""C31: watching object stores, on a real server."""

from __future__ import annotations

import pytest
import trio

from shove_actors._errors import (
    InvalidOption,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    connect,
)

from .kit import SOON_S, Events, fast
from .losses import restart
from .stores import SMALL, Fresh, take_infos


async def test_c31_watch(server: ServerProcess, fresh_queue: Fresh) -> None:
    """The program of nats.go's documentation."""
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        await store.put("config-1", "first config")
        async with store.watch() as watcher:
            await store.put("config-2", "second config")
            await store.update_meta("config-1", description="updated config")
            assert await take_infos(watcher, 4) == [
                ("config-1", "", False),
                None,
                ("config-2", "", False),
                ("config-1", "updated config", False),
            ]
            await store.delete("config-2")
            assert await take_infos(watcher, 1) == [("config-2", "", True)]
            watcher.stop()
            with trio.fail_after(SOON_S):
                assert [info async for info in watcher] == []


async def test_c31_options(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        async with store.watch() as watcher:
            assert await take_infos(watcher, 1) == [None]
        await store.put("a", b"1")
        await store.put("b", b"2")
        await store.delete("b")
        async with store.watch(ignore_deletes=True) as watcher:
            assert await take_infos(watcher, 2) == [("a", "", False), None]
            await store.delete("a")
            await store.put("c", b"3")
            assert await take_infos(watcher, 1) == [("c", "", False)]
        async with store.watch(updates_only=True) as watcher:
            assert await watcher.initial() == []
            await store.put("d", b"4")
            assert await take_infos(watcher, 1) == [("d", "", False)]
        with pytest.raises(TypeError):
            store.watch(include_history=True)  # type: ignore[call-arg]
        with pytest.raises(InvalidOption):
            store.watch(idle_heartbeat=0.0)


async def test_c31_a_watcher_tells_what_get_needs(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        put = await store.put("a", SMALL, metadata={"k": "v"})
        async with store.watch() as watcher:
            (info,) = await watcher.initial()
        assert (info.size, info.digest, info.nuid) == (put.size, put.digest, put.nuid)
        assert (info.revision, dict(info.metadata)) == (put.revision, {"k": "v"})


async def test_c31_a_record_that_nobody_understands(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """It is skipped; the mark behind it still comes (nats.go would wait for ever)."""
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        await store.put("a", b"1")
        await js.connection.request(f"$O.{store.bucket}.M.eA==", b"no json")
        async with store.watch() as watcher:
            assert await take_infos(watcher, 2) == [("a", "", False), None]


async def test_c31_a_restart_of_the_server(own_server: ServerProcess) -> None:
    async with connect(fast(own_server.url)) as js:
        events = Events(js.connection)
        store = await js.create_object_store(bucket="b")
        await store.put("a", b"1")
        async with store.watch() as watcher:
            assert await take_infos(watcher, 2) == [("a", "", False), None]
            await restart(own_server)
            await events.wait("reconnected")
            await store.put("b", b"2")
            assert await take_infos(watcher, 1) == [("b", "", False)]
