# runnable
"""A stream of somebody else: read in order to act on it, and never changed.

The stream, its limits and its producers are another team's. Ours are the durable, the hold queue
and the dead letters. Run it:

    python examples/external_stream.py
"""

from __future__ import annotations

from typing import TypedDict

import trio

from shove_actors import (
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    TopologyError,
    embedded_server,
    jetstream,
    open_broker,
)


class Price(TypedDict):
    symbol: str
    price: float


#: The queue's name is that of the stream and of the subject that is read.
PRICES = Topic(Price, TopologyBuilder("prices").nats_external_stream().hold_queue(1).dlq().build())


async def main() -> int:
    seen: list[str] = []
    complete = trio.Event()

    async def handle(price: Price) -> Outcome:
        print(f"{price['symbol']} costs {price['price']}")
        seen.append(price["symbol"])
        if len(seen) == 2:
            complete.set()
        return Outcome.ACK

    async with (
        embedded_server() as server,
        jetstream.connect(server.url) as theirs,
        open_broker(NatsConfig(server.url)) as broker,
    ):
        try:
            await broker.declare(PRICES)
        except TopologyError as error:
            print(str(error).partition(";")[0])
        # What the other team does, by whatever means.
        config = jetstream.StreamConfig(
            name="prices", subjects=("prices", "prices.audit"), max_age=3600.0
        )
        before = (await theirs.create_stream(config)).config
        await theirs.publish("prices", b'{"symbol": "tea", "price": 3.5}')
        await theirs.publish("prices", b"not for machines")
        await theirs.publish("prices.audit", b"not for us")
        await theirs.publish("prices", b'{"symbol": "bread", "price": 2.0}')

        await broker.declare(PRICES)
        group = broker.consumer_group()
        group.register(PRICES, handle, concurrent_processing=False)
        outcome = await group.run_until(complete.wait, drain_timeout=10)
        async for letter in broker.dead_letters(PRICES):
            print(f"dead: {letter.payload.decode()!r}, {letter.metadata.reason}")
        print(f"their stream is as it was: {(await theirs.stream_info('prices')).config == before}")
        streams = sorted([name async for name in theirs.stream_names()])
        print("streams:", ", ".join(streams))
    return outcome.exit_code


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
