# runnable
"""nats.go's legacy publishing and subscribing, one to one.

python examples/jetstream/legacy_publishing.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server
from shove_actors.jetstream import Message, legacy


async def main() -> None:
    async with (
        embedded_server() as server,
        # Connect to NATS and create JetStream Context
        legacy.connect(server.url, publish_async_max_pending=256) as js,
    ):
        await js.add_stream(name="ORDERS", subjects=["ORDERS.*"])

        # Simple Stream Publisher
        await js.publish("ORDERS.scratch", b"hello")

        # Simple Async Stream Publisher
        for _ in range(500):
            await js.publish_async("ORDERS.scratch", b"hello")
        with trio.move_on_after(5) as scope:
            await js.publish_async_complete()
        if scope.cancelled_caught:
            print("Did not resolve in time")

        # Simple Async Ephemeral Consumer
        received = trio.Event()

        def callback(m: Message) -> None:
            if not received.is_set():
                print(f"Received a JetStream message: {m.data.decode()}")
                received.set()

        async with js.subscribe("ORDERS.*", callback):
            await received.wait()

        # Simple Sync Durable Consumer
        async with js.subscribe_sync("ORDERS.*", durable="MONITOR", max_deliver=3) as sub:
            m = await sub.next_msg(timeout=5.0)
            print(m.metadata.stream_sequence)

        # Simple Pull Consumer
        async with js.pull_subscribe("ORDERS.*", "MONITOR") as sub:
            msgs = await sub.fetch(10)
            print(len(msgs))

            # Drain, and unsubscribe: the consumer was made here, so it is deleted.
            await sub.drain()
            await sub.unsubscribe()


if __name__ == "__main__":
    trio.run(main)
