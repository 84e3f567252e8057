# runnable
"""nats.go's legacy management calls, one to one.

python examples/jetstream/legacy_management.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server
from shove_actors.jetstream import legacy


async def main() -> None:
    # Connect to NATS and create JetStream Context
    async with embedded_server() as server, legacy.connect(server.url) as js:
        # Create a Stream
        await js.add_stream(name="ORDERS", subjects=["ORDERS.*"])

        # Update a Stream. As in Go this replaces everything: the subjects are gone.
        info = await js.update_stream(name="ORDERS", max_bytes=8)
        print(info.config.subjects, info.config.max_bytes)

        # Create a Consumer. As in Go it does not track acknowledgements.
        consumer = await js.add_consumer("ORDERS", durable_name="MONITOR")
        print(consumer.name, consumer.config.ack_policy)

        # Delete Consumer
        await js.delete_consumer("ORDERS", "MONITOR")

        # Delete Stream
        await js.delete_stream("ORDERS")
        print([name async for name in js.stream_names()])


if __name__ == "__main__":
    trio.run(main)
