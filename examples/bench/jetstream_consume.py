"""The JetStream client's ways to consume, next to nats-py on plain asyncio, in one run.

    python examples/bench/jetstream_consume.py [--messages 20000] [--rounds 5] [--batch 100]

The messages are stored once; each round reads them with every way in turn, each with a consumer of
its own, acknowledging every message. The order alternates. Printed are messages per second of
wall-clock time and microseconds of the client's processor time per message (medians), and for each
way the median of its ratios to nats-py's `fetch` loop, which is that client's documented idiom.

Each reading is a process of its own: trio-asyncio changes asyncio's event loop policy on import,
which would slow nats-py down. The server is started here, with memory storage, so that disks play
no part.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shove_actors.jetstream import Consumer, Message, Stream

STREAM, SUBJECT = "BENCH", "bench.a"
PAYLOAD = b'{"id":12345,"published_at_ns":1790000000000000000}'


async def store(stream: Stream, count: int) -> None:
    from shove_actors.jetstream import pub

    connection = stream._js.connection
    for number in range(count - 1):
        connection.write(pub(SUBJECT.encode(), b"", PAYLOAD))
        if number % 1000 == 0:
            await connection.flush()
    await connection.request(SUBJECT, PAYLOAD)


Took = tuple[float, float]


def now() -> Took:
    """Wall-clock and processor seconds."""
    return time.perf_counter(), time.process_time()


def since(began: Took) -> Took:
    wall, work = now()
    return wall - began[0], work - began[1]


# ------------------------------------------------------------------ ours


async def by_fetch(consumer: Consumer, count: int, batch: int) -> None:
    left = count
    while left:
        async with consumer.fetch(min(batch, left), max_wait=5.0) as messages:
            async for message in messages:
                await message.ack()
                left -= 1


async def by_iterator(consumer: Consumer, count: int, batch: int) -> None:
    async with consumer.messages(max_messages=batch * 2, stop_after=count) as messages:
        async for message in messages:
            await message.ack()


async def by_callback(consumer: Consumer, count: int, batch: int) -> None:
    async def handle(message: Message) -> None:
        await message.ack()

    async with consumer.consume(handle, max_messages=batch * 2, stop_after=count) as loop:
        await loop.wait_closed()


Way = Callable[["Consumer", int, int], Awaitable[None]]
OURS: dict[str, Way] = {
    "fetch": by_fetch,
    "iterator": by_iterator,
    "callback": by_callback,
}


async def ours(url: str, way: Way, name: str, count: int, batch: int) -> Took:
    from shove_actors.jetstream import connect

    async with connect(url) as js:
        consumer = await js.create_consumer(STREAM, durable_name=name, max_ack_pending=-1)
        began = now()
        await way(consumer, count, batch)
        await js.connection.flush()
        took = since(began)
        assert (await consumer.info()).num_pending == 0
        await js.delete_consumer(STREAM, name)
        return took


# ------------------------------------------------------------------ nats-py


async def natspy_fetch(url: str, name: str, count: int, batch: int) -> Took:
    import nats
    import nats.js.api

    client = await nats.connect(url)
    js = client.jetstream()
    config = nats.js.api.ConsumerConfig(durable_name=name, name=name, max_ack_pending=-1)
    await js.add_consumer(STREAM, config)
    reader = await js.pull_subscribe_bind(name, STREAM)
    left = count
    began = now()
    while left:
        for message in await reader.fetch(min(batch, left), timeout=5):
            await message.ack()
            left -= 1
    await client.flush()
    took = since(began)
    await js.delete_consumer(STREAM, name)
    await client.close()
    return took


async def natspy_callback(url: str, name: str, count: int, batch: int) -> Took:
    """Its push subscription with a callback, the closest that it has to `consume`."""
    import nats
    import nats.js.api

    client = await nats.connect(url)
    js = client.jetstream()
    left = count
    over = asyncio.Event()

    async def handle(message: nats.aio.msg.Msg) -> None:
        nonlocal left
        await message.ack()
        left -= 1
        if not left:
            over.set()

    config = nats.js.api.ConsumerConfig(max_ack_pending=batch * 2)
    began = now()
    await js.subscribe(SUBJECT, durable=name, cb=handle, manual_ack=True, config=config)
    await over.wait()
    await client.flush()
    took = since(began)
    await js.delete_consumer(STREAM, name)
    await client.close()
    return took


# ------------------------------------------------------------------ the run


LABELS = ("nats-py fetch", "nats-py callback", *OURS)


def one(label: str, url: str, name: str, messages: int, batch: int) -> Took:
    """In this process."""
    if label == "nats-py fetch":
        return asyncio.run(natspy_fetch(url, name, messages, batch))
    if label == "nats-py callback":
        return asyncio.run(natspy_callback(url, name, messages, batch))
    import trio

    return trio.run(ours, url, OURS[label], name, messages, batch)


def measure(url: str, messages: int, rounds: int, batch: int) -> dict[str, list[Took]]:
    found: dict[str, list[Took]] = {label: [] for label in LABELS}
    for number in range(rounds):
        for label in LABELS if number % 2 == 0 else reversed(LABELS):
            name = f"{label.replace(' ', '-')}-{number}"
            arguments = [label, url, name, str(messages), str(batch)]
            done = subprocess.run(
                [sys.executable, __file__, "--one", *arguments], check=True, stdout=subprocess.PIPE
            )
            wall, work = json.loads(done.stdout)
            found[label].append((wall, work))
    return found


async def prepare(url: str, messages: int) -> None:
    from shove_actors.jetstream import connect

    async with connect(url) as js:
        stream = await js.create_stream(name=STREAM, subjects=["bench.*"], storage="memory")
        await store(stream, messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        label, url, name, messages, batch = arguments.one
        print(json.dumps(one(label, url, name, int(messages), int(batch))))
        return
    import trio

    from shove_actors.embedded import ServerProcess

    count = arguments.messages
    with ServerProcess() as server:
        trio.run(prepare, server.url, count)
        found = measure(server.url, count, arguments.rounds, arguments.batch)
    base = found["nats-py fetch"]
    print(f"{count} messages, batch {arguments.batch}, {arguments.rounds} rounds")
    for label, took in found.items():
        rate = statistics.median(count / wall for wall, _ in took)
        cost = statistics.median(work / count * 1e6 for _, work in took)
        ratio = statistics.median(b[0] / a[0] for a, b in zip(took, base, strict=True))
        print(
            f"{label:>18}  {rate:8.0f} msg/s  {cost:6.1f} us of CPU per message  "
            f"{ratio:5.2f} x nats-py fetch"
        )


if __name__ == "__main__":
    main()
