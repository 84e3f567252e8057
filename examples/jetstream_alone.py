# runnable
"""The JetStream client without a broker: a stream, and a look at what it holds.

python examples/jetstream_alone.py

More of it is in examples/jetstream/.
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server, jetstream


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        stream = await js.create_stream(name="EVENTS", subjects=["events.*"])
        for number in range(3):
            ack = await js.publish(f"events.{number}", f"number {number}")
            print("stored:", ack.stream, ack.sequence)
        info = await stream.info()
        print(f"{stream.name} holds {info.messages} messages, {info.bytes} bytes")
        message = await stream.get_message(2)
        print(message.subject, message.data)


if __name__ == "__main__":
    trio.run(main)
