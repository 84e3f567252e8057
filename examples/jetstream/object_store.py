# runnable
"""An object store: files of any size, in and out, checked.

python examples/jetstream/object_store.py
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from shove_actors import embedded_server, jetstream
from shove_actors.jetstream import ObjectExists, ObjectNotFound


async def readings() -> AsyncIterator[bytes]:
    """Content that is not in memory at once."""
    for number in range(100_000):
        if number % 1000 == 0:
            await trio.lowlevel.checkpoint()
        yield b"%d\n" % number


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        store = await js.create_object_store(bucket="files", description="what we keep")
        info = await store.put("readings", readings(), metadata={"unit": "mV"})
        print(info.name, info.size, "bytes in", info.chunks, "chunks")

        # As a stream: the last chunk is handed out once the digest has been compared.
        size = 0
        async with store.get("readings") as reader:
            async for chunk in reader:
                size += len(chunk)
        print("read", size, "bytes of", reader.info.metadata["unit"])

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "copy.txt")
            await store.get_file("readings", path)
            again = await store.put_file(path, "copy", headers={"Content-Type": "text/plain"})
        print("the same content:", again.digest == info.digest)

        await store.update_meta("copy", new_name="copies/1", description="a copy")
        await store.add_link("latest", await store.info("copies/1"))
        async with store.get("latest") as reader:
            print("latest is", reader.info.name)
        try:
            await store.add_link("readings", again)
        except ObjectExists:
            print("an object is not replaced by a link")

        await store.delete("readings")
        try:
            await store.get_bytes("readings")
        except ObjectNotFound:
            print("deleted")
        print([info.name for info in await store.list()])
        await store.seal()
        print("sealed:", (await store.status()).sealed)


if __name__ == "__main__":
    trio.run(main)
