"""Other clients read what we write, and we read what they write: bytes, metadata, digests.

The peers run in processes of their own: nats-py on plain asyncio, and Node's packages
`@nats-io/jetstream`, `kv`, `obj` and `transport-node`, when `node` is there and finds them (in one
of the folders of `NODE_PATH`, in `node_modules` of this repository, or in npm's global one).
Without them those tests are skipped, and say so:

    npm install --prefix SCRATCH @nats-io/jetstream @nats-io/kv @nats-io/obj @nats-io/transport-node
    NODE_PATH=SCRATCH/node_modules python -m pytest tests/jetstream/test_peers.py

Node (3.4.0) spells an object's name on the wire in Latin-1, nats.go, nats-py and we in UTF-8: an
object with another name than ASCII is listed by everybody, but found by name only by its own kind.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream, KeyOperation, ObjectLink, ObjectStore, connect

from .kit import fast

Fresh = Callable[[], str]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ("jetstream", "kv", "obj", "transport-node")
PEERS = ["natspy", "node"]

CHUNK = 1000


@functools.cache
def node_modules() -> str | None:
    """The folder with Node's packages."""
    folders = [folder for folder in os.environ.get("NODE_PATH", "").split(os.pathsep) if folder]
    folders.append(str(ROOT / "node_modules"))
    if shutil.which("npm"):
        done = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True)
        folders.append(done.stdout.strip())
    for folder in folders:
        if folder and all((Path(folder) / "@nats-io" / name).is_dir() for name in PACKAGES):
            return folder
    return None


async def peer(name: str, what: str, order: dict[str, Any]) -> dict[str, Any]:
    """Have the peer do it; what it tells."""
    environment = dict(os.environ)
    if name == "node":
        environment["NODE_PATH"] = node_modules() or ""
        command = ["node", str(HERE / "peers" / "node.js")]
    else:
        command = [sys.executable, str(HERE / "peers" / "natspy.py")]
    done = await trio.run_process(
        [*command, what, json.dumps(order)],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr.decode()
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture
def with_node() -> str:
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    if node_modules() is None:
        pytest.skip(f"node has no packages @nats-io/{', '.join(PACKAGES)}; see NODE_PATH")
    return "node"


@pytest.fixture(params=PEERS)
def peer_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return str(request.getfixturevalue("with_node")) if name == "node" else name


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def content(size: int) -> bytes:
    return hashlib.shake_128(b"%d" % size).digest(size)


def odd_name(peer_name: str) -> str:
    return "folder/plain?.bin" if peer_name == "node" else "folder/ünïcode?.bin"


def order_for(url: str, tag: str, folder: Path, peer_name: str) -> dict[str, Any]:
    """What is to be written: values of all sizes, every operation, names with odd characters."""
    objects = []
    for number, (name, size) in enumerate(
        {
            "empty": 0,
            "one byte": 1,
            "exactly one chunk": CHUNK,
            odd_name(peer_name): 3 * CHUNK + 7,
            "gone": 2 * CHUNK,
        }.items()
    ):
        path = folder / f"{number}.bin"
        path.write_bytes(content(size))
        objects.append(
            {
                "name": name,
                "path": str(path),
                "size": size,
                "description": f"object number {number}",
                "headers": {"X-Number": [str(number)], "X-Many": ["a", "b"]},
                "metadata": {"number": str(number)},
                "chunk_size": CHUNK,
            }
        )
    # A default chunk size, too: several chunks of 128 KiB.
    path = folder / "large.bin"
    path.write_bytes(content(300_000))
    objects.append({**objects[0], "name": "large", "path": str(path), "chunk_size": 128 * 1024})
    objects[-1]["size"] = 300_000
    stream = f"S-{tag}"
    return {
        "url": url,
        "stream": {
            "name": stream,
            "messages": [
                {"subject": f"{stream}.empty", "data": "", "headers": {}},
                {
                    "subject": f"{stream}.binary",
                    "data": text64(bytes(range(256)) * 5),
                    "headers": {"X-One": "1", "x-lower": "äöü"},
                },
                {"subject": f"{stream}.a.b", "data": text64(b"text"), "headers": {"N": "v"}},
            ],
        },
        "kv": {
            "bucket": f"b-{tag}",
            "history": 5,
            "operations": [
                ["put", "plain", text64(b"value 1")],
                ["put", "plain", text64(b"value 2")],
                ["put", "a.b/c=d_e-f", text64(bytes(range(256)))],
                ["put", "empty", ""],
                ["put", "deleted", text64(b"was here")],
                ["delete", "deleted", ""],
                ["put", "purged", text64(b"was here")],
                ["purge", "purged", ""],
            ],
        },
        "objects": {
            "bucket": f"o-{tag}",
            "objects": objects,
            "deleted": ["gone"],
            "links": {"link": odd_name(peer_name)},
        },
    }


#: Operation, value and revision of every kept revision, by key.
ENTRIES = {
    "plain": [["PUT", text64(b"value 1"), 1], ["PUT", text64(b"value 2"), 2]],
    "a.b/c=d_e-f": [["PUT", text64(bytes(range(256))), 3]],
    "empty": [["PUT", "", 4]],
    "deleted": [["PUT", text64(b"was here"), 5], ["DEL", "", 6]],
    "purged": [["PURGE", "", 8]],
}


async def write(js: JetStream, order: dict[str, Any]) -> ObjectStore:
    """Our side of what `peers/natspy.py` and `peers/node.js` do."""
    stream, kv, objects = order["stream"], order["kv"], order["objects"]
    await js.create_stream(name=stream["name"], subjects=[f"{stream['name']}.>"])
    for message in stream["messages"]:
        await js.publish(
            message["subject"], base64.b64decode(message["data"]), headers=message["headers"]
        )
    bucket = await js.create_kv(bucket=kv["bucket"], history=kv["history"])
    for what, key, value in kv["operations"]:
        if what == "put":
            await bucket.put(key, base64.b64decode(value))
        elif what == "delete":
            await bucket.delete(key)
        else:
            await bucket.purge(key)
    store = await js.create_object_store(bucket=objects["bucket"])
    for item in objects["objects"]:
        await store.put_file(
            item["path"],
            item["name"],
            description=item["description"],
            headers=item["headers"],
            metadata=item["metadata"],
            chunk_size=item["chunk_size"],
        )
    for name in objects["deleted"]:
        await store.delete(name)
    for name, target in objects["links"].items():
        await store.add_link(name, await store.info(target))
    return store


def digest_of(size: int) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(content(size)).digest()).decode()


async def test_they_read_what_we_write(
    peer_name: str, server: ServerProcess, fresh_queue: Fresh, tmp_path: Path
) -> None:
    order = order_for(server.url, fresh_queue(), tmp_path, peer_name)
    async with connect(fast(server.url)) as js:
        store = await write(js, order)
        if peer_name == "natspy":
            # It follows a link only into another bucket's handle of itself, and lists it as empty.
            await store.delete("link")
        told = await peer(peer_name, "read", order)
    messages = [
        {**message, "sequence": number}
        for number, message in enumerate(order["stream"]["messages"], 1)
    ]
    assert told["messages"] == messages
    assert told["kv"] == ENTRIES
    assert told["history"] == 5
    wanted = {item["name"]: item for item in order["objects"]["objects"] if item["name"] != "gone"}
    link = told["objects"].pop("link", None)
    assert set(told["objects"]) == set(wanted)
    for name, item in wanted.items():
        found = told["objects"][name]
        size = item["size"]
        assert found["size"] == size
        assert found["chunks"] == -(-size // item["chunk_size"])
        assert found["sha256"] == hashlib.sha256(content(size)).hexdigest()
        assert found["digest"] == digest_of(size)
        assert found["description"] == item["description"]
        assert found["headers"] == item["headers"]
        assert found["link"] is None
        if peer_name == "node":  # nats-py does not know metadata
            assert found["metadata"] == item["metadata"]
    if peer_name == "node":
        assert link["link"] == [order["objects"]["bucket"], odd_name(peer_name)]
        assert link["sha256"] == hashlib.sha256(content(3 * CHUNK + 7)).hexdigest()


async def test_we_read_what_they_write(
    peer_name: str, server: ServerProcess, fresh_queue: Fresh, tmp_path: Path
) -> None:
    order = order_for(server.url, fresh_queue(), tmp_path, peer_name)
    told = await peer(peer_name, "write", order)
    async with connect(fast(server.url)) as js:
        stream = await js.stream(order["stream"]["name"])
        consumer = await stream.create_consumer(durable_name="reader")
        wanted_messages = order["stream"]["messages"]
        async with consumer.fetch(len(wanted_messages), max_wait=5.0) as batch:
            fetched = [message async for message in batch]
        for number, (wanted, message) in enumerate(zip(wanted_messages, fetched, strict=True), 1):
            stored = await stream.get_message(number)
            assert (stored.subject, stored.data) == (message.subject, message.data)
            assert (message.subject, text64(message.data)) == (wanted["subject"], wanted["data"])
            assert dict(message.headers) == dict(stored.headers) == wanted["headers"]
            assert message.metadata.stream_sequence == stored.sequence == number
            await message.double_ack()

        kv = await js.kv(order["kv"]["bucket"])
        found = {
            key: [
                [entry.operation.value, text64(entry.value), entry.revision]
                for entry in await kv.history(key)
            ]
            for key in ENTRIES
        }
        assert found == ENTRIES
        assert await kv.keys() == ["a.b/c=d_e-f", "empty", "plain"]
        assert (await kv.get("empty")).value == b""
        assert (await kv.status()).history == 5
        async with kv.watch() as watcher:
            newest = {entry.key: entry.operation for entry in await watcher.initial()}
        assert newest["deleted"] is KeyOperation.DELETE
        assert newest["purged"] is KeyOperation.PURGE
        # And we can go on with it.
        await kv.create("deleted", b"again")
        await kv.update("plain", b"value 3", 2)

        store = await js.object_store(order["objects"]["bucket"])
        names = {info.name for info in await store.list()}
        items = {item["name"]: item for item in order["objects"]["objects"]}
        assert names - {"link"} == set(items) - {"gone"}
        for name in names - {"link"}:
            item = items[name]
            async with store.get(name) as reader:
                assert await reader.read_all() == content(item["size"])
                info = reader.info
            assert info.digest == told["digests"][name] == digest_of(item["size"])
            assert (info.size, info.description) == (item["size"], item["description"])
            assert {k: list(v) for k, v in info.headers.items()} == item["headers"]
            assert info.chunk_size == item["chunk_size"]
            if peer_name == "node":
                assert info.metadata == item["metadata"]
        assert (await store.info("gone", show_deleted=True)).deleted
        if peer_name == "node":
            link = (await store.info("link")).link
            assert link == ObjectLink(bucket=store.bucket, name=odd_name(peer_name))
            assert await store.get_bytes("link") == content(3 * CHUNK + 7)
        await store.update_meta("one byte", description="ours now")
        await store.put("exactly one chunk", b"ours now")
        assert await store.get_bytes("exactly one chunk") == b"ours now"


async def test_node_finds_our_buckets_as_its_own(
    with_node: str, server: ServerProcess, fresh_queue: Fresh, tmp_path: Path
) -> None:
    """Creating them again is no error: they are what it would have made (unlike nats-py, V05)."""
    order = order_for(server.url, fresh_queue(), tmp_path, with_node)
    async with connect(fast(server.url)) as js:
        ours = await js.create_kv(bucket=order["kv"]["bucket"], history=5)
        before = (await ours.status()).stream_info
        order["stream"]["messages"] = []
        order["objects"] = {**order["objects"], "objects": [], "deleted": [], "links": {}}
        await js.create_object_store(bucket=order["objects"]["bucket"])
        await peer(with_node, "write", order)
        after = (await ours.status()).stream_info
        assert after.created == before.created
        assert after.config == before.config
        assert (await ours.get("plain")).value == b"value 2"
