# runnable
"""Consumers: make and change, settle messages, pause, reset, read in order.

python examples/jetstream/consumers.py
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import trio

from shove_actors import embedded_server, jetstream
from shove_actors.jetstream import JetStream, Stream


async def manage(s: Stream) -> None:
    c = await s.create_consumer(durable_name="billing", ack_wait=10.0, filter_subject="ORDERS.new")
    # An update replaces the whole configuration: start from what there is.
    c = await s.update_consumer(replace(c.config, description="writes invoices"))
    print(c.config.description, c.config.ack_wait)

    print("waiting:", (await c.info()).num_pending)
    print([name async for name in s.consumer_names()])


async def settle(s: Stream) -> None:
    c = await s.consumer("billing")
    first, second, third, fourth = await c.fetch_list(4)
    await first.ack()
    await first.double_ack()  # the server has confirmed it
    await second.nak(delay=0.1)
    await third.in_progress()
    await third.term("no such customer")
    await fourth.ack()

    again = await c.next(max_wait=5.0)
    print(again.data.decode(), "delivered", again.metadata.num_delivered, "times")
    await again.ack()


async def pause_and_reset(s: Stream) -> None:
    until = datetime.now(timezone.utc) + timedelta(minutes=5)
    state = await s.pause_consumer("billing", until)
    print("paused:", state.paused)
    await s.resume_consumer("billing")

    c = await s.consumer("billing")
    print("starts over at", await s.reset_consumer("billing", seq=1))
    print((await c.next()).metadata.stream_sequence)


async def in_order(js: JetStream) -> None:
    async with js.ordered_consumer("ORDERS", filter_subjects=["ORDERS.new"]) as ordered:
        async with ordered.messages(stop_after=4) as it:
            print([msg.metadata.stream_sequence async for msg in it])


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        s = await js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
        for number in range(1, 5):
            await js.publish("ORDERS.new", f"order {number}")
        await manage(s)
        await settle(s)
        await pause_and_reset(s)
        await in_order(js)
        await s.delete_consumer("billing")


if __name__ == "__main__":
    trio.run(main)
