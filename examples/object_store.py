# runnable
"""Large content beside small messages: the object store keeps it, the message says where.

A message may take a megabyte, and a retry carries all of it. So the content is stored first,
checked by its digest when it is read, and deleted once the message is done. Run it:

    python examples/object_store.py
"""

from __future__ import annotations

import hashlib

import msgspec
import trio

from shove_actors import (
    MessageMetadata,
    MessageTooLarge,
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    embedded_server,
    jetstream,
    open_broker,
)


class Scan(msgspec.Struct):
    """`content`: the name of an object."""

    patient: str
    content: str


SCANS = Topic(Scan, TopologyBuilder("scans").hold_queue(0.2).dlq().build())


async def main() -> None:
    done = trio.Event()
    picture = b"\x00\x01\x02\x03" * 1_000_000

    async with (
        embedded_server() as server,
        jetstream.connect(server.url) as js,
        open_broker(NatsConfig(server.url)) as broker,
    ):
        store = await js.create_object_store(bucket="scans", description="until they are read")

        async def handle(scan: Scan, metadata: MessageMetadata) -> Outcome:
            # As a stream: 128 KiB at a time are in memory, and the digest is compared at the end.
            digest = hashlib.sha256()
            async with store.get(scan.content) as reader:
                async for chunk in reader:
                    digest.update(chunk)
            if metadata.retry_count == 0:
                print(f"{scan.patient}: the archive is busy; the message waits, not the content")
                return Outcome.RETRY
            same = digest.digest() == hashlib.sha256(picture).digest()
            print(f"{scan.patient}: {reader.info.size:,} bytes, as they were: {same}")
            await store.delete(scan.content)
            done.set()
            return Outcome.ACK

        await broker.declare(SCANS)
        try:
            await broker.publisher().publish(SCANS, Scan("ada", picture.decode()))
        except MessageTooLarge:
            print("too large for a message")
        # The content first: a message never points to what is not there yet.
        info = await store.put("ada/2024-03-01", picture, metadata={"unit": "8 bit grey"})
        print(f"stored in {info.chunks} chunks")
        await broker.publisher().publish(SCANS, Scan("ada", info.name))
        group = broker.consumer_group()
        group.register(SCANS, handle)
        await group.run_until(done.wait, drain_timeout=10)
        print(f"objects left: {len(await store.list())}")


if __name__ == "__main__":
    trio.run(main)
