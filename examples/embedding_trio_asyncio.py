# runnable
"""Inside an application that runs asyncio code in Trio by trio-asyncio.

The application's asyncio loop and the one below the NATS connection are two: a failure in one does
not end the other. Handlers are Trio functions in the context of the application, so they may call
its asyncio code with `aio_as_trio`, and its asyncio code may publish with `trio_as_aio`.

    python examples/embedding_trio_asyncio.py
"""

from __future__ import annotations

import asyncio
import warnings

import trio

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of a class that CPython 3.14 removed
    import trio_asyncio

from shove_actors import NatsConfig, Outcome, Topic, TopologyBuilder, embedded_server, open_broker

ORDERS = Topic(str, TopologyBuilder("orders").hold_queue(5).dlq().build())


async def price_of(order: str) -> int:
    """The asyncio part of the application: a client library, say."""
    await asyncio.sleep(0.01)
    return len(order)


async def main() -> None:
    prices: dict[str, int] = {}
    enough = trio.Event()

    async def handle(order: str) -> Outcome:
        prices[order] = await trio_asyncio.aio_as_trio(price_of)(order)
        if len(prices) == 3:
            enough.set()
        return Outcome.ACK

    async with embedded_server() as server, trio_asyncio.open_loop():
        async with open_broker(NatsConfig(server.url)) as broker, trio.open_nursery() as nursery:
            await broker.declare(ORDERS)
            group = broker.consumer_group()
            group.register(ORDERS, handle)
            await nursery.start(group.serve)
            publish = trio_asyncio.trio_as_aio(broker.publisher().publish)

            async def in_asyncio() -> None:
                for order in ("tea", "bread", "cheese"):
                    await publish(ORDERS, order)

            await trio_asyncio.aio_as_trio(in_asyncio)()
            await enough.wait()
            group.stop()
    for order, price in sorted(prices.items()):
        print(f"{order} costs {price}")


if __name__ == "__main__":
    trio.run(main)
