# runnable
"""Connecting to a cluster: several servers, the reconnect policy, and what happens meanwhile.

python examples/jetstream/connecting.py
"""

from __future__ import annotations

import trio

from shove_actors import embedded_server, jetstream
from shove_actors.jetstream import ConnectionEvent


def got_disconnected(event: ConnectionEvent) -> None:
    print(f"Got disconnected! Reason: {type(event.error).__name__}")


def got_reconnected(event: ConnectionEvent) -> None:
    print(f"Got reconnected to {event.server}!")


def closed(event: ConnectionEvent) -> None:
    print(f"Connection closed. Reason: {event.error}")


async def main() -> None:
    async with embedded_server() as server:
        # The first of them is down: the next one is taken.
        servers = f"nats://127.0.0.1:1, {server.url}"

        async with jetstream.connect(
            servers,
            max_reconnect_attempts=5,
            reconnect_wait=0.2,
            reconnect_jitter=0.05,
            reconnect_jitter_tls=0.5,
            on_disconnected=got_disconnected,
            on_reconnected=got_reconnected,
            on_closed=closed,
        ) as js:
            print("connected to", js.connection.server)
            async with js.connection.events() as events:
                await server.restart()
                # The same events, waited for.
                async for event in events:
                    if event.kind == "reconnected":
                        break

        # Fully in hand: the order, and the pause before each round.
        async with jetstream.connect(
            servers,
            dont_randomize=True,
            custom_reconnect_delay=lambda rounds: min(0.1 * 2**rounds, 5.0),
        ) as js:
            print("again:", (await js.account_info()).limits.max_streams)


if __name__ == "__main__":
    trio.run(main)
