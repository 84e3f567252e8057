"""nats-py on plain asyncio: writes what the order says, or reads it back and tells what it sees.

    python natspy.py write|read '<order as JSON>'

Started by `tests/jetstream/test_peers.py`; `node.js` does the same with Node's client.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import pathlib
import sys
from typing import Any

import nats
from nats.js import api

Told = dict[str, Any]


def content(item: Told) -> bytes:
    return pathlib.Path(item["path"]).read_bytes()


async def write(js: Any, order: Told) -> Told:
    stream, kv, objects = order["stream"], order["kv"], order["objects"]
    await js.add_stream(name=stream["name"], subjects=[f"{stream['name']}.>"])
    for message in stream["messages"]:
        await js.publish(
            message["subject"],
            base64.b64decode(message["data"]),
            headers=message["headers"] or None,
        )
    bucket = await js.create_key_value(bucket=kv["bucket"], history=kv["history"])
    for what, key, value in kv["operations"]:
        if what == "put":
            await bucket.put(key, base64.b64decode(value))
        elif what == "delete":
            await bucket.delete(key)
        else:
            await bucket.purge(key)
    store = await js.create_object_store(bucket=objects["bucket"])
    digests = {}
    for item in objects["objects"]:
        meta = api.ObjectMeta(
            name=item["name"],
            description=item["description"],
            headers=item["headers"],
            options=api.ObjectMetaOptions(max_chunk_size=item["chunk_size"]),
        )
        digests[item["name"]] = (await store.put(item["name"], content(item), meta=meta)).digest
    for name in objects["deleted"]:
        await store.delete(name)
    return {"digests": digests}


async def read(js: Any, order: Told) -> Told:
    stream, kv, objects = order["stream"], order["kv"], order["objects"]
    sub = await js.pull_subscribe(f"{stream['name']}.>", stream=stream["name"])
    messages = []
    for message in await sub.fetch(len(stream["messages"]), timeout=5):
        await message.ack()
        messages.append(
            {
                "subject": message.subject,
                "data": base64.b64encode(message.data).decode(),
                "headers": dict(message.headers or {}),
                "sequence": message.metadata.sequence.stream,
            }
        )
    bucket = await js.key_value(kv["bucket"])
    entries = {}
    for key in sorted({key for _, key, _ in kv["operations"]}):
        entries[key] = [
            [
                entry.operation or "PUT",
                base64.b64encode(entry.value or b"").decode(),
                entry.revision,
            ]
            for entry in await bucket.history(key)
        ]
    store = await js.object_store(objects["bucket"])
    found = {}
    for info in await store.list(ignore_deletes=True):
        data = (await store.get(info.name)).data if info.size else b""
        found[info.name] = {
            "size": info.size,
            "chunks": info.chunks,
            "sha256": hashlib.sha256(data).hexdigest(),
            "digest": info.digest,
            "description": info.description or "",
            "headers": info.headers or {},
            "link": None if info.options is None else _link(info.options.link),
        }
    status = await bucket.status()
    return {
        "messages": messages,
        "kv": entries,
        "history": status.history,
        "objects": found,
    }


def _link(link: Any) -> Any:
    return None if link is None else [link.bucket, link.name]


async def main() -> None:
    what, order = sys.argv[1], json.loads(sys.argv[2])
    nc = await nats.connect(order["url"])
    told = await (write if what == "write" else read)(nc.jetstream(), order)
    print(json.dumps(told))
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
