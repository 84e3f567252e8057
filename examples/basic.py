# runnable
"""The smallest whole program: a topic, a publisher, a handler, an orderly end.

Starts its own nats-server, handles four orders and ends. Run it:

    pip install 'shove-actors[server]'
    python examples/basic.py
"""

from __future__ import annotations

import msgspec
import trio

from shove_actors import (
    MessageMetadata,
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)


class Order(msgspec.Struct):
    order_id: str
    amount: float


#: A queue, a hold queue for what is retried, a dead-letter queue for what is given up.
ORDERS = Topic(Order, TopologyBuilder("orders").hold_queue(5).dlq().build())


async def main() -> int:
    handled = trio.Event()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        print(f"handled {order.order_id} over {order.amount:.2f}, sequence {metadata.sequence}")
        if order.order_id == "ORD-4":
            handled.set()
        return Outcome.ACK

    # With a server of your own: NatsConfig("nats://localhost:4222"), and no embedded_server.
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(ORDERS)
        publisher = broker.publisher()
        for number, amount in enumerate((9.5, 20.0, 3.25), start=1):
            # Returns when JetStream has stored it. From then on it cannot get lost.
            receipt = await publisher.publish(ORDERS, Order(f"ORD-{number}", amount))
            print(f"stored as {receipt.stream}:{receipt.sequence}")
        # A publish that is repeated with the same id is stored once.
        for _ in range(2):
            receipt = await publisher.publish(ORDERS, Order("ORD-4", 1.0), message_id="ORD-4")
        print(f"published twice, a duplicate: {receipt.duplicate}")
        group = broker.consumer_group()
        group.register(ORDERS, handle, concurrent_processing=False)
        # A service leaves the signal out: then SIGINT or SIGTERM begin the drain.
        outcome = await group.run_until(handled.wait, drain_timeout=10)
    print(f"ended in order: {outcome.is_clean}")
    return outcome.exit_code


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
