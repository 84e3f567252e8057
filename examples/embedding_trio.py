# runnable
"""One supervised subsystem inside a Trio application that has other things to do.

`orders()` is the subsystem: `await nursery.start(orders)` returns when every consumer is ready. It
drains when the application leaves: nothing that was published is lost or half done.

    python examples/embedding_trio.py
"""

from __future__ import annotations

from functools import partial

import trio

from shove_actors import (
    Broker,
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)

ORDERS = Topic(str, TopologyBuilder("orders").hold_queue(5).dlq().build())


async def orders(
    url: str, *, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED
) -> None:
    """Hands its broker to whoever starts it, for publishing. Ends when it is cancelled."""

    async def handle(order: str) -> Outcome:
        await trio.sleep(0.05)
        print("handled", order)
        return Outcome.ACK

    async with open_broker(NatsConfig(url)) as broker, trio.open_nursery() as nursery:
        await broker.declare(ORDERS)
        group = broker.consumer_group()
        group.register(ORDERS, handle, consumers=2)
        await nursery.start(partial(group.serve, drain_timeout=10))
        task_status.started(broker)


async def main() -> None:
    async with embedded_server() as server, trio.open_nursery() as nursery:
        broker = await nursery.start(orders, server.url)
        print("the subsystem is ready; the application goes on with its own work")
        for number in range(3):
            await broker.publisher().publish(ORDERS, f"order {number}")
        await trio.sleep(0.02)
        print("the application leaves")
        nursery.cancel_scope.cancel()  # handlers that run are let finish, up to drain_timeout
    print("nothing is left running")


if __name__ == "__main__":
    trio.run(main)
