# runnable
"""Retries and holds: each way in which an attempt can end, and where the message waits meanwhile.

A message that is retried or deferred waits in a hold queue, which is a stream on the server: not in
the memory of a process, and not among the messages in flight. Run it:

    python examples/retries.py
"""

from __future__ import annotations

import logging

import trio

from shove_actors import (
    DeadMetadata,
    Defer,
    MessageMetadata,
    NatsConfig,
    Outcome,
    Reject,
    Retry,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)

ORDERS = Topic(str, TopologyBuilder("orders").hold_queue(0.2).hold_queue(0.5).dlq().build())


class Story:
    """What became of each order, attempt by attempt: the `context` of the handlers."""

    def __init__(self, *orders: str) -> None:
        self.attempts: dict[str, list[str]] = {order: [] for order in orders}
        self.begun: dict[str, float] = {}
        self.open = set(orders)
        self.complete = trio.Event()

    def end(self, order: str, how: str) -> None:
        self.attempts[order].append(how)
        self.open.discard(order)
        if not self.open:
            self.complete.set()


async def handle(order: str, metadata: MessageMetadata, story: Story) -> Outcome:
    attempts = story.attempts[order]
    first = not attempts
    story.begun.setdefault(order, trio.current_time())
    if first and order == "the card machine is busy":
        attempts.append("RETRY")  # to the first hold queue; the next retry to the second
        return Outcome.RETRY
    if first and order == "the card machine is off":
        attempts.append("RETRY after half a second")
        return Retry(after=0.5)
    if first and order == "not before noon":
        attempts.append("DEFER")  # waits like a retry, and is not counted as one
        return Defer(after=0.2)
    if first and order == "the handler hangs":
        attempts.append("timed out")
        await trio.sleep_forever()
    if order == "the handler fails":
        attempts.append("raised")
        raise OSError("no disk")
    if order == "nobody wants it":
        return Reject(reason="out of stock")
    waited = trio.current_time() - story.begun[order]
    if attempts[0].endswith("second"):
        assert waited >= 0.5
    story.end(order, f"ACK, retries {metadata.retry_count}")
    return Outcome.ACK


async def handle_dead(order: str, metadata: DeadMetadata, story: Story) -> Outcome:
    story.end(order, f"dead: {metadata.reason}, {metadata.detail}")
    return Outcome.ACK


async def main() -> int:
    story = Story(
        *("the card machine is busy", "the card machine is off", "not before noon"),
        *("the handler hangs", "the handler fails", "nobody wants it"),
    )
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(ORDERS)
        await broker.publisher().publish_batch(ORDERS, list(story.attempts))
        group = broker.consumer_group(context=story)
        group.register(ORDERS, handle, max_retries=2, handler_timeout=2)
        group.register_dlq(ORDERS, handle_dead)
        outcome = await group.run_until(story.complete.wait, drain_timeout=10)
    for order, attempts in story.attempts.items():
        print(f"{order}: {', '.join(attempts)}")
    return outcome.exit_code


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # a handler that raises is an error in the log, with a traceback
    raise SystemExit(trio.run(main))
