# runnable
"""Publishing: with an id, with expectations, without waiting, all or nothing, later.

python examples/jetstream/publishing.py
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import trio

from shove_actors import embedded_server, jetstream
from shove_actors.jetstream import At, WrongLastSequence


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        stream = await js.create_stream(
            name="ORDERS", subjects=["ORDERS.*"], allow_atomic=True, allow_msg_schedules=True
        )

        # The id makes it safe to publish again.
        ack = await js.publish("ORDERS.new", b"hello", msg_id="order-1")
        again = await js.publish("ORDERS.new", b"hello", msg_id="order-1")
        print(ack.sequence, again.sequence, again.duplicate)

        # Only if nobody was faster.
        try:
            await js.publish("ORDERS.new", b"late", expect_last_sequence=0)
        except WrongLastSequence as exc:
            print("refused:", exc.err_code)

        # Without waiting for each acknowledgement.
        futures = [await js.publish_async("ORDERS.new", b"hello") for _ in range(500)]
        await js.publish_async_complete()
        print("stored:", (await futures[-1].wait()).sequence)

        # All or nothing.
        async with js.batch() as batch:
            for number in range(3):
                await batch.add("ORDERS.new", f"part {number}")
        assert batch.ack is not None
        print("batch of", batch.ack.count)

        # Later.
        due = datetime.now(timezone.utc) + timedelta(seconds=1)
        await js.publish("ORDERS.plan", b"wake up", schedule=At(due), schedule_target="ORDERS.due")
        consumer = await stream.create_consumer(filter_subject="ORDERS.due")
        message = await consumer.next(max_wait=10.0)
        print(message.subject, message.data.decode())


if __name__ == "__main__":
    trio.run(main)
