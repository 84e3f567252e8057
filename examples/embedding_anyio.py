# runnable
"""From anyio, on its Trio backend: a group is started in anyio's task group as in a nursery.

What anyio offers (cancel scopes, its streams, `to_thread`) works in handlers. On anyio's asyncio
backend there is no Trio, so nothing of this package runs there.

    pip install anyio
    python examples/embedding_anyio.py
"""

from __future__ import annotations

import anyio

from shove_actors import NatsConfig, Outcome, Topic, TopologyBuilder, embedded_server, open_broker

ORDERS = Topic(str, TopologyBuilder("orders").hold_queue(5).dlq().build())


async def main() -> None:
    send, receive = anyio.create_memory_object_stream[str](10)

    async def handle(order: str) -> Outcome:
        with anyio.fail_after(5):
            await anyio.sleep(0.01)
        await send.send(order)
        return Outcome.ACK

    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(ORDERS)
        async with anyio.create_task_group() as tasks, send, receive:
            group = broker.consumer_group()
            group.register(ORDERS, handle)
            await tasks.start(group.serve)
            for number in range(3):
                await broker.publisher().publish(ORDERS, f"order {number}")
            handled = sorted([await receive.receive() for _ in range(3)])
            group.stop()
    print("handled", ", ".join(handled))


if __name__ == "__main__":
    anyio.run(main, backend="trio")
