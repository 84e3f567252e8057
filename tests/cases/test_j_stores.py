"""Section J of the cases: watchers of buckets, and uploads that were refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from shove_actors._errors import BucketNotFound, InvalidOption, JetStreamError, ObjectNotFound
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import KeyValueEntry, ObjectStore, Watcher, connect
from tests.jetstream.kit import SOON_S, Events, fast
from tests.jetstream.losses import kill, restart

Fresh = Callable[[], str]

# ------------------------------------------------------------------ PC-124


@pytest.mark.parametrize("how", ["leave", "close", "cancel"])
async def test_pc124_stopping_a_watcher_that_nobody_reads(
    server: ServerProcess, fresh_queue: Fresh, how: str
) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue())
        with trio.CancelScope() as scope:
            async with kv.watch() as watcher:
                for number in range(300):
                    await kv.put(f"k{number % 7}", b"%d" % number)
                started = trio.current_time()
                if how == "close":
                    with trio.fail_after(SOON_S):
                        await watcher.aclose()
                elif how == "cancel":
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
        assert trio.current_time() - started < SOON_S
        assert (await kv.get("k0")).value == b"294"


# ------------------------------------------------------------------ PC-126


async def values_until(watcher: Watcher[KeyValueEntry], last: bytes) -> list[bytes]:
    found: list[bytes] = []
    with trio.fail_after(SOON_S):
        while last not in found:
            entry = await watcher.receive()
            if entry is not None:
                found.append(entry.value)
    return found


@pytest.mark.parametrize("how", ["killed", "restarted"])
async def test_pc126_a_watcher_outlives_the_server(own_server: ServerProcess, how: str) -> None:
    """What was written during the watcher's outage is seen, in order, each once."""
    async with connect(fast(own_server.url)) as js, connect(fast(own_server.url)) as other:
        events = Events(js.connection)
        kv = await js.create_kv(bucket="b", history=64)
        theirs = await other.kv("b")
        await kv.put("a", b"0")
        async with kv.watch() as watcher:
            assert [entry.value for entry in await watcher.initial()] == [b"0"]
            if how == "killed":
                await kill(own_server)
            await restart(own_server)
            with trio.fail_after(SOON_S):
                await other.connection.wait_connected()
            for number in range(1, 20):
                await theirs.put("a", b"%d" % number)
            assert await values_until(watcher, b"19") == [b"%d" % n for n in range(1, 20)]
            await events.wait("reconnected")
            # And once more, idle.
            await restart(own_server)
            await events.wait("reconnected", 2)
            await kv.put("a", b"last")
            assert await values_until(watcher, b"last") == [b"last"]


# ------------------------------------------------------------------ PC-127


@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "made-anew"])
async def test_pc127_a_bucket_that_is_deleted_while_watched(
    own_server: ServerProcess, anew: bool
) -> None:
    async with connect(fast(own_server.url)) as js:
        kv = await js.create_kv(bucket="b")
        await kv.put("a", b"1")
        async with kv.watch(idle_heartbeat=0.2) as watcher:
            await watcher.initial()
            await js.delete_kv("b")
            if anew:
                again = await js.create_kv(bucket="b")
                await again.put("a", b"another")
            with trio.fail_after(SOON_S), pytest.raises(BucketNotFound):
                await watcher.receive()


# ------------------------------------------------------------------ PC-130


async def nothing_visible(store: ObjectStore) -> None:
    assert await store.list() == []
    with pytest.raises(ObjectNotFound):
        await store.get_bytes("big")


async def test_pc130_a_bucket_that_is_too_small(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue(), max_bytes=1 << 20)
        with pytest.raises(JetStreamError):
            await store.put("big", b"x" * (2 << 20))
        await nothing_visible(store)
        # Nor does what was refused use up the room.
        await store.put("small", b"x" * (1 << 19))
        assert len(await store.get_bytes("small")) == 1 << 19


async def test_pc130_a_server_with_a_small_payload() -> None:
    with ServerProcess(config="max_payload: 65536") as process:
        async with connect(fast(process.url)) as js:
            store = await js.create_object_store(bucket="b")
            data = bytes(range(256)) * 4096
            with pytest.raises(InvalidOption, match="max_payload, 65536"):
                await store.put("big", data)
            await nothing_visible(store)
            await store.put("big", data, chunk_size=32768)
            assert await store.get_bytes("big") == data
