# runnable
"""The JetStream client without a broker: streams, and a look at what they hold.

python examples/jetstream_alone.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server, jetstream


async def main() -> None:
    async with embedded_server() as server, jetstream.connect(server.url) as js:
        await js.create_stream(jetstream.StreamConfig(name="EVENTS", subjects=("events.*",)))
        for number in range(3):
            reply = await js.connection.request(f"events.{number}", b"number %d" % number)
            print("stored:", reply.payload.decode())
        info = await js.stream_info("EVENTS")
        print(f"{info.config.name} holds {info.messages} messages, {info.bytes} bytes")
        message = await js.get_message("EVENTS", 2)
        print(message.subject, message.data)


if __name__ == "__main__":
    trio.run(main)
