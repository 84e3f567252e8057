"""C27: key-value buckets and their values, on a real server."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from shove_actors._errors import (
    BadBucket,
    BucketExists,
    BucketNotFound,
    FilterError,
    InvalidKey,
    InvalidOption,
    JetStreamError,
    KeyExists,
    KeyNotFound,
    KeyRevisionMismatch,
    MessageTooLarge,
    WrongLastSequence,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    JetStream,
    KeyValueConfig,
    StreamConfig,
    connect,
)
from shove_actors.jetstream._stream_parts import RePublish, StreamSource
from shove_actors.jetstream._times import to_datetime
from tests.support import wait_until

from .kit import SOON_S, fast
from .stores import DELETE, PURGE, PUT, Fresh, seen, take, until


async def test_c27_values(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), history=3)
        before = datetime.now(timezone.utc)
        assert await kv.put("a", "one") == 1
        assert await kv.put("a", b"two") == 2
        assert await kv.put("empty", b"") == 3
        entry = await kv.get("a")
        assert (entry.bucket, entry.key, entry.value, entry.revision, entry.delta) == (
            kv.bucket,
            "a",
            b"two",
            2,
            0,
        )
        assert entry.operation is PUT
        assert abs((entry.created - before).total_seconds()) < 60
        assert "two" not in repr(entry)
        assert (await kv.get("a", revision=1)).value == b"one"
        assert (await kv.get("empty")).value == b""
        for wrong in (3, 99):
            with pytest.raises(KeyNotFound):
                await kv.get("a", revision=wrong)
        with pytest.raises(KeyNotFound):
            await kv.get("never")
        await kv.delete("a")
        with pytest.raises(KeyNotFound):
            await kv.get("a")
        with pytest.raises(KeyNotFound):
            await kv.get("a", revision=4)  # the marker's own


async def test_c27_compare_and_set(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), history=10)
        first = await kv.create("a", b"1")
        with pytest.raises(KeyExists) as exists:
            await kv.create("a", b"2")
        assert isinstance(exists.value.__cause__, WrongLastSequence)
        second = await kv.update("a", b"2", first)
        with pytest.raises(KeyRevisionMismatch) as stale:
            await kv.update("a", b"3", first)
        assert isinstance(stale.value.__cause__, WrongLastSequence)
        assert (await kv.get("a")).value == b"2"
        assert await kv.update("new", b"", 0) > second
        with pytest.raises(KeyRevisionMismatch):
            await kv.delete("a", last_revision=first)
        with pytest.raises(KeyRevisionMismatch):
            await kv.purge("a", last_revision=first)
        deleted = await kv.delete("a", last_revision=second)
        assert await kv.create("a", b"again") > deleted
        await kv.purge("a")
        assert [seen(e) for e in await kv.history("a")] == [("a", b"", PURGE)]
        await kv.create("a", b"once more")
        await kv.delete("unknown")  # leaves a marker all the same
        assert [seen(e) for e in await kv.history("unknown")] == [("unknown", b"", DELETE)]


async def test_c27_a_value_that_expires_leaves_a_marker(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), limit_marker_ttl=60.0)
        async with kv.watch(updates_only=True) as watcher:
            await kv.create("a", b"1", ttl=1.0)
            assert await take(watcher, 1) == [("a", b"1", PUT)]
            # Whatever the server writes when it expires is not a value.
            assert await take(watcher, 1) == [("a", b"", PURGE)]
        with pytest.raises(KeyNotFound):
            await kv.get("a")
        await kv.create("a", b"2")
        assert (await kv.get("a")).value == b"2"
        await kv.purge("a", ttl=1.0)
        with pytest.raises(InvalidOption, match="ttl"):
            await kv.create("b", b"", ttl=0.5)

        async def values() -> int:
            return (await kv.status()).values

        await until(values, 0)


async def test_c27_a_bucket_is_what_nats_go_makes(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """nats.go's own words, field by field: the server says that it is the same stream."""
    async with connect(fast(server.url)) as js:
        bucket = fresh_queue()
        mine = await (await js.create_kv(bucket=bucket)).status()
        raw = {
            "name": f"KV_{bucket}",
            "subjects": [f"$KV.{bucket}.>"],
            "retention": "limits",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "discard": "new",
            "max_age": 0,
            "max_msgs_per_subject": 1,
            "max_msg_size": -1,
            "storage": "file",
            "num_replicas": 1,
            "duplicate_window": 120_000_000_000,
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            "compression": "none",
            "allow_direct": True,
            "mirror_direct": False,
            "consumer_limits": {},
        }
        made = await js.call(f"STREAM.CREATE.KV_{bucket}", raw)
        assert to_datetime(made["created"]) == mine.stream_info.created
        other = fresh_queue()
        markers = {
            **raw,
            "name": f"KV_{other}",
            "subjects": [f"$KV.{other}.>"],
            "max_msgs_per_subject": 64,
            "max_age": 60_000_000_000,
            "duplicate_window": 60_000_000_000,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": 5_000_000_000,
            "compression": "s2",
            "storage": "memory",
        }
        await js.call(f"STREAM.CREATE.KV_{other}", markers)
        await js.create_kv(
            bucket=other,
            history=64,
            ttl=60.0,
            limit_marker_ttl=5.0,
            compression=True,
            storage="memory",
        )


async def test_c27_buckets(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        bucket = fresh_queue()
        with pytest.raises(BucketNotFound):
            await js.kv(bucket)
        with pytest.raises(BucketNotFound):
            await js.update_kv(bucket=bucket)
        with pytest.raises(BucketNotFound):
            await js.delete_kv(bucket)
        config = KeyValueConfig(bucket=bucket, history=2, description="mine")
        await js.create_kv(config)
        await js.create_kv(config)
        with pytest.raises(BucketExists):
            await js.create_kv(config, history=3)
        await js.create_or_update_kv(config, history=3, metadata={"owner": "ops"})
        kv = await js.kv(bucket)
        await kv.put("a", b"1234")
        status = await kv.status()
        assert (status.bucket, status.values, status.history, status.ttl) == (bucket, 1, 3, 0.0)
        assert status.bytes > 4
        assert (status.compressed, status.limit_marker_ttl) == (False, None)
        assert status.metadata["owner"] == "ops"
        assert status.config.description == "mine"
        await js.update_kv(status.config, ttl=30.0)
        assert (await kv.status()).ttl == 30.0
        assert bucket in [name async for name in js.kv_names()]
        assert bucket in [found.bucket async for found in js.kv_statuses()]
        await js.delete_kv(bucket)
        with pytest.raises(BucketNotFound):
            await kv.status()
        with pytest.raises(BucketNotFound):
            await kv.get("a")
        for write in (
            kv.put("a", b""),
            kv.create("a", b""),
            kv.update("a", b"", 1),
            kv.delete("a"),
            kv.purge("a"),
        ):
            with pytest.raises(BucketNotFound):
                await write
        with pytest.raises(BucketNotFound):
            async with kv.watch():
                pass
        fresh = await js.create_or_update_kv(bucket=bucket)
        assert await fresh.keys() == []
        no_bucket = fresh_queue()
        await js.create_stream(StreamConfig(name=f"KV_{no_bucket}", subjects=(no_bucket,)))
        with pytest.raises(BadBucket):
            await js.kv(no_bucket)


async def test_c27_an_older_bucket_is_brought_up_to_date(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """Before 2.9 clients set discard and direct otherwise; nothing else may differ."""
    async with connect(fast(server.url)) as js:
        config = KeyValueConfig(bucket=fresh_queue(), history=4)
        raw = {**config.stream().wire(), "discard": "old", "allow_direct": False}
        await js.call(f"STREAM.CREATE.{raw['name']}", raw)
        kv = await js.create_kv(config)
        stream = (await kv.status()).stream_info.config
        assert (stream.discard, stream.allow_direct) == ("new", True)
        await kv.put("a", b"1")
        assert (await kv.get("a")).value == b"1"


async def test_c27_keys_and_history(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), history=5)
        assert await kv.keys() == []
        for key in ("z", "orders.2", "orders.1", "orders.1.lines", "z"):
            await kv.put(key, key)
        await kv.delete("z")
        assert await kv.keys() == ["orders.1", "orders.1.lines", "orders.2"]
        assert await kv.keys("orders.*") == ["orders.1", "orders.2"]
        assert await kv.keys("orders.*.lines", "z") == ["orders.1.lines"]
        async with kv.list_keys("orders.>") as keys:
            assert sorted([key async for key in keys]) == [
                "orders.1",
                "orders.1.lines",
                "orders.2",
            ]
        async with kv.list_keys() as keys:
            async for _ in keys:
                break
        assert [seen(e) for e in await kv.history("z")] == [
            ("z", b"z", PUT),
            ("z", b"z", PUT),
            ("z", b"", DELETE),
        ]
        with pytest.raises(KeyNotFound):
            await kv.history("never")
        with pytest.raises(FilterError):
            await kv.keys("orders.>", "orders.1")
        with pytest.raises(InvalidKey):
            await kv.keys("orders*")


async def test_c27_deleted_keys_are_removed(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), history=5)
        for key in ("a", "b", "c"):
            await kv.put(key, b"1")
            await kv.put(key, b"2")
        await kv.delete("a")
        await kv.purge("b")
        assert await kv.purge_deletes() == 2  # the history of a; b's is gone already
        assert [seen(e) for e in await kv.history("a")] == [("a", b"", DELETE)]
        assert await kv.purge_deletes(older_than=None) == 2
        assert (await kv.status()).values == 2
        assert await kv.keys() == ["c"]


async def test_c27_wrong_keys_and_values(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        kv = await js.create_kv(bucket=fresh_queue(), max_value_size=10)
        for key in ("", ".a", "a.", "a..b", "a b", "a*", "a\n", "é"):
            with pytest.raises(InvalidKey):
                await kv.put(key, b"")
            with pytest.raises(InvalidKey):
                await kv.get(key)
        with pytest.raises(JetStreamError):
            await kv.put("a", b"0123456789-")
        with pytest.raises(MessageTooLarge):
            await kv.put("a", bytes(js.connection.max_payload + 1))
        assert js.connection.connected
        with pytest.raises(InvalidOption):
            await kv.get("a", revision=0)
        with pytest.raises(InvalidOption):
            await kv.update("a", b"", -1)


async def test_c27_republish_and_sources(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        origin, both, mirror, told = (fresh_queue() for _ in range(4))
        heard: list[tuple[bytes, bytes]] = []
        sid = js.connection.subscribe(
            f"{told}.>".encode(), lambda subject, _r, _h, payload: heard.append((subject, payload))
        )
        kv = await js.create_kv(
            bucket=origin, republish=RePublish(src=">", dest=f"{told}.>"), history=3
        )
        await kv.put("a", b"1")
        await wait_until(lambda: heard, SOON_S)
        assert heard == [(f"{told}.$KV.{origin}.a".encode(), b"1")]
        await js.connection.unsubscribe(sid)

        gathering = await js.create_kv(bucket=both, sources=(StreamSource(name=origin),))
        copy = await js.create_kv(bucket=mirror, mirror=StreamSource(name=origin))
        for other in (gathering, copy):
            await until(other.keys, ["a"])
            assert (await other.get("a")).value == b"1"
        assert await copy.put("b", b"2") == 2  # the origin's revision
        assert (await kv.get("b")).value == b"2"
        names = [name async for name in js.kv_names()]
        assert both in names
        assert mirror not in names


async def test_c27_a_bucket_in_another_domain(fresh_queue: Fresh) -> None:
    with ServerProcess(config='jetstream { domain: "hub" }\n') as process:
        async with connect(fast(process.url)) as js:
            far = JetStream(js.connection, domain="hub")
            kv = await far.create_kv(bucket="b")
            await kv.put("a", b"1")
            async with kv.watch() as watcher:
                assert await take(watcher, 2) == [("a", b"1", PUT), None]
            assert (await kv.get("a")).value == b"1"
            store = await far.create_object_store(bucket="o")
            await store.put("x", b"content")
            assert await store.get_bytes("x") == b"content"
