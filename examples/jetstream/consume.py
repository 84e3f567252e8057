# runnable
"""The callback form, the iterator form, and how several readers share one consumer.

python examples/jetstream/consume.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server, jetstream
from shove_actors.jetstream import JetStream, Message


async def handle(msg: Message) -> None:
    print(f"Received: {msg.data.decode()}")
    await msg.ack()


async def with_a_callback(js: JetStream) -> None:
    s = await js.stream("ORDERS")
    cons = await s.create_or_update_consumer(durable_name="processor", filter_subject="ORDERS.*")

    async with cons.consume(handle) as cc:
        await js.publish("ORDERS.new", "one")
        await js.publish("ORDERS.new", "two")
        await trio.sleep(0.2)
        # What has been sent is handled, nothing more is asked for. Leaving the block
        # without this is Stop: the handler at work finishes, the rest is delivered again.
        await cc.drain()
        await cc.wait_closed()


async def with_an_iterator(js: JetStream) -> None:
    cons = await js.consumer("ORDERS", "processor")
    for number in range(5):
        await js.publish("ORDERS.new", f"order {number}")

    async with cons.messages(max_messages=100, stop_after=5) as it:
        async for msg in it:
            await msg.ack()
    print("iterated over", msg.data.decode())


async def sharing(js: JetStream) -> None:
    """Several readers of one durable consumer share its messages, in one process or in many."""
    cons = await js.consumer("ORDERS", "processor")
    handled = {"first": 0, "second": 0}

    async def work(name: str) -> None:
        async with cons.messages(max_messages=5) as it:
            async for msg in it:
                handled[name] += 1
                await msg.ack()

    async with trio.open_nursery() as nursery:
        for name in handled:
            nursery.start_soon(work, name)
        for number in range(50):
            await js.publish("ORDERS.new", f"order {number}")
        while sum(handled.values()) < 50:  # noqa: ASYNC110
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    print("shared:", sum(handled.values()), "both worked:", all(handled.values()))


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        await js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
        await with_a_callback(js)
        await with_an_iterator(js)
        await sharing(js)


if __name__ == "__main__":
    trio.run(main)
