# runnable
"""Streams: make, change, look at, purge, delete.

python examples/jetstream/streams.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server, jetstream
from shove_actors.jetstream import MessageNotFound, StreamNameInUse


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        stream = await js.create_stream(name="ORDERS", subjects=["ORDERS.*"], allow_direct=True)
        try:
            await js.create_stream(name="ORDERS", subjects=["OTHERS.*"])
        except StreamNameInUse as exc:
            print("refused:", exc.err_code)

        # One setting changes, all others stay.
        await stream.edit(max_bytes=1_000_000)
        print(stream.config.subjects, stream.config.max_bytes)

        for number in range(4):
            await js.publish("ORDERS.new", f"order {number}")
        await js.publish("ORDERS.old", b"another", headers={"Source": "import"})

        info = await stream.info(subject_filter="ORDERS.*")
        print(info.messages, dict(sorted(info.state.subjects.items())))

        second = await stream.get_message(2)
        print(second.subject, second.sequence, second.data.decode())
        last = await stream.get_last_message("ORDERS.old")
        print(last.headers["Source"])

        await stream.delete_message(2)
        try:
            await stream.get_message(2)
        except MessageNotFound:
            print("message 2 is gone")

        print("purged:", await stream.purge(subject="ORDERS.new", keep=1))
        print([name async for name in js.stream_names()])
        await js.delete_stream("ORDERS")


if __name__ == "__main__":
    trio.run(main)
