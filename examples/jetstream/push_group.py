# runnable
"""A push consumer whose readers form a queue group.

python examples/jetstream/push_group.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server, jetstream
from shove_actors.jetstream import Message

seen: dict[str, int] = {"first": 0, "second": 0}
all_seen = trio.Event()


def count(name: str) -> None:
    seen[name] += 1
    if sum(seen.values()) == 40:
        all_seen.set()


async def first(msg: Message) -> None:
    await msg.ack()
    count("first")


async def second(msg: Message) -> None:
    await msg.ack()
    count("second")


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        s = await js.create_stream(name="ORDERS", subjects=["ORDERS.*"])

        cons = await s.create_or_update_push_consumer(
            durable_name="notify",
            deliver_subject="deliver.orders",
            deliver_group="workers",
            idle_heartbeat=5.0,
        )
        # A handle is read once at a time; the second member takes one of its own.
        other = await s.push_consumer("notify")

        async with cons.consume(first), other.consume(second):
            for number in range(40):
                await js.publish("ORDERS.new", f"order {number}")
            await all_seen.wait()
        print("pushed:", sum(seen.values()), "both worked:", all(seen.values()))


if __name__ == "__main__":
    trio.run(main)
