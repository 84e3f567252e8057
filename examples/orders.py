# runnable
"""Orders: retries through a durable hold queue, rejects into the dead-letter queue.

Starts its own nats-server, publishes five orders, and ends when each has its place. Run it:

    python examples/orders.py
"""

from __future__ import annotations

import msgspec
import trio

from shove_actors import (
    DeadMetadata,
    MessageMetadata,
    NatsConfig,
    Outcome,
    Reject,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)


class Order(msgspec.Struct):
    order_id: str
    amount: float


ORDERS = Topic(Order, TopologyBuilder("orders").hold_queue(1).hold_queue(5).dlq().build())


class Shop:
    """Shared by all handlers of the group: the `context`."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.done: dict[str, str] = {}
        self.finished = trio.Event()

    def settle(self, order: Order, how: str) -> None:
        self.done[order.order_id] = how
        print(f"{order.order_id}: {how}")
        if len(self.done) == self.expected:
            self.finished.set()


async def handle(order: Order, metadata: MessageMetadata, shop: Shop) -> Outcome:
    if order.amount < 0:
        return Reject(reason="a negative amount")
    if order.order_id == "ORD-3" and metadata.retry_count == 0:
        print("ORD-3: the payment service does not answer; again in a second")
        return Outcome.RETRY
    shop.settle(order, f"paid {order.amount:.2f}, retries {metadata.retry_count}")
    return Outcome.ACK


async def handle_dead(order: Order, metadata: DeadMetadata, shop: Shop) -> Outcome:
    shop.settle(order, f"dead: {metadata.reason} ({metadata.detail})")
    return Outcome.ACK


async def main() -> int:
    amounts = [9.5, -1.0, 20.0, 3.25, 100.0]
    shop = Shop(expected=len(amounts))
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(ORDERS)
        publisher = broker.publisher()
        for number, amount in enumerate(amounts, start=1):
            receipt = await publisher.publish(ORDERS, Order(f"ORD-{number}", amount))
            print(f"ORD-{number} is stored as {receipt.stream}:{receipt.sequence}")
        group = broker.consumer_group(context=shop)
        group.register(ORDERS, handle, consumers=2, prefetch=10)
        group.register_dlq(ORDERS, handle_dead)
        outcome = await group.run_until(shop.finished.wait, drain_timeout=10)
    return outcome.exit_code


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
