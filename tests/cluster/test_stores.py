"""Buckets with three replicas whose leader dies: watchers and readers miss nothing."""

from __future__ import annotations

import hashlib
import os

import pytest
import trio

from shove_actors._errors import KeyExists, UnavailableError
from shove_actors.jetstream import JetStream, NatsConfig, connect
from tests.clusters import Cluster

# Waits for elections; `pytest -m slow` (CI does).
pytestmark = pytest.mark.slow

LONG_S = 60.0


def config(cluster: Cluster) -> NatsConfig:
    return NatsConfig(cluster.urls, reconnect_wait=0.1, reconnect_jitter=0.1)


async def kill_leader(cluster: Cluster, js: JetStream, stream: str) -> None:
    answer = await js.api(f"STREAM.INFO.{stream}")
    await trio.to_thread.run_sync(cluster.node(answer["cluster"]["leader"]).kill)


@pytest.mark.limit(150)
async def test_c29_a_watcher_outlives_the_leader(cluster: Cluster) -> None:
    bucket = f"b-{os.urandom(3).hex()}"
    async with connect(config(cluster)) as js:
        kv = await js.create_kv(bucket=bucket, history=64, num_replicas=3)
        written: list[bytes] = []

        async def write() -> None:
            # Created with a value of its own each: tried again until it is stored, once.
            for number in range(300):
                if number == 100:
                    await kill_leader(cluster, js, f"KV_{bucket}")
                value = b"%d" % number
                while True:
                    try:
                        await kv.create(f"k{number}", value)
                        break
                    except KeyExists:
                        break
                    except UnavailableError:
                        await trio.sleep(0.1)
                written.append(value)

        async with kv.watch(idle_heartbeat=0.5) as watcher:
            assert await watcher.initial() == []
            with trio.fail_after(2 * LONG_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(write)
                    seen: list[tuple[int, bytes]] = []
                    while len(seen) < 300:
                        entry = await watcher.receive()
                        assert entry is not None
                        seen.append((entry.revision, entry.value))
        assert [value for _, value in seen] == written
        assert [revision for revision, _ in seen] == sorted({revision for revision, _ in seen})


@pytest.mark.limit(150)
async def test_c30_a_reader_outlives_the_leader(cluster: Cluster) -> None:
    bucket = f"o-{os.urandom(3).hex()}"
    content = hashlib.shake_128(b"cluster").digest(1 << 20) * 16
    async with connect(config(cluster)) as js:
        store = await js.create_object_store(bucket=bucket, num_replicas=3)
        await store.put("x", content)
        async with store.get("x") as reader:
            read = [await reader.receive_some() for _ in range(10)]
            await kill_leader(cluster, js, f"OBJ_{bucket}")
            with trio.fail_after(LONG_S):
                read += [chunk async for chunk in reader]
        assert b"".join(read) == content
        # Whoever begins to read asks the leader, and there may be none yet.
        with trio.fail_after(LONG_S):
            while True:
                try:
                    assert await store.get_bytes("x") == content
                    break
                except UnavailableError:
                    pass
