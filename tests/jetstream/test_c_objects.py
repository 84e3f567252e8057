"""C30: object stores on a real server."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from shove_actors._errors import (
    BadObjectMeta,
    BucketExists,
    BucketNotFound,
    CantGetBucket,
    InvalidOption,
    NoLinkToDeleted,
    NoLinkToLink,
    ObjectCorrupt,
    ObjectExists,
    ObjectNotFound,
    StreamSealed,
    UpdateMetaDeleted,
)
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import (
    ObjectLink,
    ObjectStoreConfig,
    connect,
)
from shove_actors.jetstream._times import to_datetime

from .kit import fast
from .stores import LARGE, SMALL, Fresh, chunk_subjects, messages


async def test_c30_round_trip(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        put = await store.put(
            "big/ünïcode name.bin",
            LARGE,
            description="five",
            headers={"X-One": "1", "X-Many": ["a", "b"]},
            metadata={"owner": "ops"},
        )
        digest = base64.urlsafe_b64encode(hashlib.sha256(LARGE).digest()).decode()
        assert (put.size, put.chunks, put.digest) == (len(LARGE), 40, f"SHA-256={digest}")
        info = await store.info("big/ünïcode name.bin")
        assert info.modified is not None
        assert put.modified is not None
        assert abs((info.modified - put.modified).total_seconds()) < 5
        assert (info.description, info.metadata) == ("five", {"owner": "ops"})
        assert info.headers == {"X-One": ("1",), "X-Many": ("a", "b")}
        assert (info.chunk_size, info.revision, info.nuid) == (131072, put.revision, put.nuid)
        async with store.get("big/ünïcode name.bin") as reader:
            assert reader.info == info
            chunks = [chunk async for chunk in reader]
            assert await reader.receive_some() == b""
        assert [len(chunk) for chunk in chunks] == [131072] * 40
        assert b"".join(chunks) == LARGE
        assert await store.get_bytes("big/ünïcode name.bin") == LARGE
        # And it is what nats.go would have written.
        raw = await js.get_last_message(
            f"OBJ_{store.bucket}",
            f"$O.{store.bucket}.M."
            + base64.urlsafe_b64encode("big/ünïcode name.bin".encode()).decode(),
        )
        assert json.loads(raw.data) == {
            "name": "big/ünïcode name.bin",
            "description": "five",
            "headers": {"X-One": ["1"], "X-Many": ["a", "b"]},
            "metadata": {"owner": "ops"},
            "options": {"max_chunk_size": 131072},
            "bucket": store.bucket,
            "nuid": put.nuid,
            "size": len(LARGE),
            "mtime": "0001-01-01T00:00:00Z",
            "chunks": 40,
            "digest": f"SHA-256={digest}",
        }
        assert raw.headers["Nats-Rollup"] == "sub"


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 25])
async def test_c30_sizes_around_a_chunk(
    size: int, server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue(), storage="memory")
        content = LARGE[:size]
        info = await store.put("x", content, chunk_size=10)
        assert (info.size, info.chunks) == (size, -(-size // 10))
        assert await store.get_bytes("x") == content
        async with store.get("x") as reader:
            with pytest.raises(ValueError, match="max_bytes"):
                await reader.receive_some(0)
            pieces = []
            while piece := await reader.receive_some(3):
                assert len(piece) <= 3
                pieces.append(piece)
            assert b"".join(pieces) == content


async def test_c30_sources(server: ServerProcess, fresh_queue: Fresh, tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(SMALL), 1000):
            await trio.lowlevel.checkpoint()
            yield SMALL[start : start + 1000]

    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        path = tmp_path / "source.bin"
        path.write_bytes(SMALL)
        digests = {
            (await store.put("x", source)).digest
            for source in (SMALL, bytearray(SMALL), memoryview(SMALL), pieces(), path)
        }
        with path.open("rb") as file:
            digests.add((await store.put("x", file)).digest)
        digests.add((await store.put("x", io.BytesIO(SMALL))).digest)
        digests.add((await store.put_file(path, "x")).digest)
        assert len(digests) == 1
        assert (await store.put_file(str(path))).name == str(path)
        await store.put("text", "grüße")
        assert await store.get_string("text") == "grüße"
        for wrong in (5, None, io.StringIO("x"), [b"x"]):
            with pytest.raises(InvalidOption, match="source"):
                await store.put("y", wrong)  # type: ignore[arg-type]
        with pytest.raises(FileNotFoundError):
            await store.put_file(tmp_path / "missing")
        assert [info.name for info in await store.list()] == ["x", str(path), "text"]


async def test_c30_files(server: ServerProcess, fresh_queue: Fresh, tmp_path: Path) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        target = tmp_path / "target.bin"
        target.write_bytes(LARGE)
        await store.put("x", SMALL)
        info = await store.get_file("x", target)
        assert info.size == len(SMALL)
        assert target.read_bytes() == SMALL  # nothing of the longer one is left
        await store.put("gone", LARGE)
        await js.purge_stream(
            f"OBJ_{store.bucket}",
            subject=f"$O.{store.bucket}.C.{(await store.info('gone')).nuid}",
        )
        with pytest.raises(ObjectCorrupt):
            await store.get_file("gone", target)
        with pytest.raises(ObjectNotFound):
            await store.get_file("never", target)
        with pytest.raises(OSError):  # noqa: PT011
            await store.get_file("x", tmp_path / "no" / "such" / "folder")
        assert target.read_bytes() == SMALL
        assert os.listdir(tmp_path) == ["target.bin"]


async def test_c30_overwriting_removes_the_old_chunks(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        first = await store.put("x", LARGE)
        second = await store.put("x", SMALL)
        assert await store.get_bytes("x") == SMALL
        assert first.nuid != second.nuid
        assert await chunk_subjects(js, store) == {f"$O.{store.bucket}.C.{second.nuid}": 2}
        assert await messages(store) == 3


async def test_c30_two_writers_leave_one_object(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Whoever is later removes the other's chunks, also when both have seen the same former one."""
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue(), storage="memory")
        await store.put("x", SMALL)
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(store.put, "x", SMALL + b"%d" % number)
        info = await store.info("x")
        assert await chunk_subjects(js, store) == {f"$O.{store.bucket}.C.{info.nuid}": 2}
        assert len(await store.get_bytes("x")) == len(SMALL) + 1


async def test_c30_descriptions(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        await store.put("x", b"content", description="old", headers={"A": "1"})
        await store.put("taken", b"other")
        changed = await store.update_meta("x", description="new", metadata={"m": "1"})
        assert (changed.description, changed.headers, changed.metadata) == (
            "new",
            {"A": ("1",)},
            {"m": "1"},
        )
        renamed = await store.update_meta("x", new_name="y", headers={})
        assert (renamed.name, renamed.headers) == ("y", {})
        assert await store.get_bytes("y") == b"content"
        with pytest.raises(ObjectNotFound):
            await store.info("x", show_deleted=True)
        with pytest.raises(ObjectExists):
            await store.update_meta("y", new_name="taken")
        await store.delete("taken")
        await store.update_meta("y", new_name="taken")
        assert await store.get_bytes("taken") == b"content"
        for missing in ("x", "never"):
            with pytest.raises(UpdateMetaDeleted):
                await store.update_meta(missing, description="?")
        await store.delete("taken")
        with pytest.raises(UpdateMetaDeleted):
            await store.update_meta("taken", description="?")


async def test_c30_deleting(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        await store.put("x", SMALL, description="kept")
        await store.delete("x")
        await store.delete("x")  # no error
        with pytest.raises(ObjectNotFound):
            await store.delete("never")
        with pytest.raises(ObjectNotFound):
            await store.info("x")
        with pytest.raises(ObjectNotFound):
            await store.get_bytes("x")
        gone = await store.info("x", show_deleted=True)
        assert (gone.deleted, gone.size, gone.chunks, gone.digest) == (True, 0, 0, "")
        assert gone.description == "kept"
        assert await store.get_bytes("x", show_deleted=True) == b""
        assert await messages(store) == 1
        assert await store.list() == []
        assert [info.name for info in await store.list(show_deleted=True)] == ["x"]
        await store.put("x", b"again")
        assert await store.get_bytes("x") == b"again"


async def test_c30_links(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        other = await js.create_object_store(bucket=fresh_queue())
        here = await store.put("here", b"near")
        there = await other.put("there", LARGE)
        link = await store.add_link("link", here)
        assert link.link == ObjectLink(bucket=store.bucket, name="here")
        assert (await store.info("link")).is_link
        await store.add_link("far", there)
        assert await store.get_bytes("link") == b"near"
        async with store.get("far") as reader:
            assert (reader.info.bucket, reader.info.name) == (other.bucket, "there")
            assert await reader.read_all() == LARGE
        await store.add_bucket_link("bucket", other)
        assert (await store.info("bucket")).link == ObjectLink(bucket=other.bucket)
        with pytest.raises(CantGetBucket):
            await store.get_bytes("bucket")
        await store.add_link("link", there)  # a link may be replaced
        assert await store.get_bytes("link") == LARGE
        with pytest.raises(NoLinkToLink):
            await store.add_link("to-link", await store.info("link"))
        with pytest.raises(ObjectExists):
            await store.add_link("here", there)
        await store.delete("here")
        with pytest.raises(ObjectExists):
            await store.add_bucket_link("here", other)
        with pytest.raises(NoLinkToDeleted):
            await store.add_link("dead", await store.info("here", show_deleted=True))
        await other.delete("there")
        with pytest.raises(ObjectNotFound):
            await store.get_bytes("link")
        await js.delete_object_store(other.bucket)
        with pytest.raises(BucketNotFound):
            await store.get_bytes("link")
        await store.delete("link")
        await store.put("bucket", b"now an object")
        assert await store.get_bytes("bucket") == b"now an object"


async def test_c30_wrong_arguments(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        with pytest.raises(BadObjectMeta):
            await store.put("", b"")
        with pytest.raises(InvalidOption, match="headers: of 'A'"):
            await store.put("x", b"", headers={"A": [1]})  # type: ignore[list-item]
        for size in (0, -1, js.connection.max_payload + 1):
            with pytest.raises(InvalidOption):
                await store.put("x", b"1", chunk_size=size)
        await js.connection.request(f"$O.{store.bucket}.M.eA==", b"no json")
        with pytest.raises(BadObjectMeta):
            await store.info("x")
        assert await store.list() == []


async def test_c30_sealed(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        store = await js.create_object_store(bucket=fresh_queue())
        await store.put("x", SMALL)
        await store.seal()
        assert (await store.status()).sealed
        with pytest.raises(StreamSealed):
            await store.put("y", SMALL)
        with pytest.raises(StreamSealed):
            await store.update_meta("x", description="?")
        with pytest.raises(StreamSealed):
            await store.delete("x")
        assert await store.get_bytes("x") == SMALL


async def test_c30_buckets(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with connect(fast(server.url)) as js:
        bucket = fresh_queue()
        for call in (js.object_store, js.delete_object_store):
            with pytest.raises(BucketNotFound):
                await call(bucket)
        with pytest.raises(BucketNotFound):
            await js.update_object_store(bucket=bucket)
        config = ObjectStoreConfig(bucket=bucket, description="mine", storage="memory")
        store = await js.create_object_store(config)
        first = await store.status()
        # nats.go's own words: the server says that it is the same stream.
        again = await js.call(
            f"STREAM.CREATE.OBJ_{bucket}",
            {
                "name": f"OBJ_{bucket}",
                "description": "mine",
                "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
                "retention": "limits",
                "max_consumers": 0,
                "max_msgs": 0,
                "max_bytes": -1,
                "discard": "new",
                "max_age": 0,
                "max_msgs_per_subject": 0,
                "storage": "memory",
                "num_replicas": 1,
                "allow_rollup_hdrs": True,
                "compression": "none",
                "allow_direct": True,
                "mirror_direct": False,
                "consumer_limits": {},
            },
        )
        assert to_datetime(again["created"]) == first.stream_info.created
        with pytest.raises(BucketExists):
            await js.create_object_store(config, max_bytes=1000)
        store = await js.create_or_update_object_store(config, max_bytes=10_000_000)
        await store.put("x", SMALL)
        status = await store.status()
        assert (status.bucket, status.description, status.storage) == (bucket, "mine", "memory")
        assert (status.ttl, status.num_replicas, status.sealed) == (0.0, 1, False)
        assert (status.compressed, status.config.max_bytes) == (False, 10_000_000)
        assert status.size > len(SMALL)
        assert bucket in [name async for name in js.object_store_names()]
        assert bucket in [found.bucket async for found in js.object_store_statuses()]
        assert await (await js.object_store(bucket)).get_bytes("x") == SMALL
        await js.delete_object_store(bucket)
        with pytest.raises(BucketNotFound):
            await store.status()
        with pytest.raises(BucketNotFound):
            await store.list()
