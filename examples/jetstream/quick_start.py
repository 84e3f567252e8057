# runnable
"""From a stream to its messages: publish, fetch, a callback, an iterator.

python examples/jetstream/quick_start.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server, jetstream
from shove_actors.jetstream import Message


async def main() -> None:
    counter = 0
    all_processed = trio.Event()

    async def received(message: Message, how: str) -> None:
        nonlocal counter
        await message.ack()
        counter += 1
        if counter in (1, 11, 91):
            print(f"Received a JetStream message via {how}: {message.data.decode()}")
        if counter == 100:
            all_processed.set()

    # There is no context argument: a scope bounds whatever is inside.
    with trio.fail_after(30):
        async with embedded_server() as server, jetstream.connect(server.url) as js:
            # Create a stream
            s = await js.create_stream(name="ORDERS", subjects=["ORDERS.*"])

            # Publish some messages
            for i in range(100):
                await js.publish("ORDERS.new", f"hello message {i}")
            print("Published 100 messages")

            # Create durable consumer
            c = await s.create_or_update_consumer(durable_name="CONS", ack_policy="explicit")

            # Get 10 messages from the consumer
            async with c.fetch(10) as batch:
                async for message in batch:
                    await received(message, "fetch")
            if batch.error is not None:
                print("Error during fetch:", batch.error)
            print(f"Received {counter} messages")

            # Receive messages continuously in a callback
            async def handle(message: Message) -> None:
                await received(message, "callback")

            async with c.consume(handle, stop_after=80) as cons:
                await cons.wait_closed()

            # Iterate over messages continuously
            async with c.messages() as it:
                for _ in range(10):
                    message = await it.next()
                    await received(message, "iterator")

            # Block until all 100 published messages have been processed
            await all_processed.wait()
            print(f"Processed {counter} messages")


if __name__ == "__main__":
    trio.run(main)
