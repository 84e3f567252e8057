# runnable
"""An HTTP service and a consumer in one process: Hypercorn on Trio, and a clean shutdown.

`POST /orders` answers 202 once JetStream has the order; a group handles it. On SIGTERM (here: once
two orders are handled) first no new requests are taken, then the group drains, then the connection
is closed. `app` is plain ASGI, so Quart-Trio or Starlette can stand in its place.

    pip install 'hypercorn[trio]'
    python examples/embedding_http.py
"""

from __future__ import annotations

from functools import partial
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from shove_actors import (
    Broker,
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    embedded_server,
    open_broker,
)

ORDERS = Topic(str, TopologyBuilder("orders").hold_queue(5).dlq().build())


async def app(broker: Broker, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    status, body = 404, b"there is only POST /orders\n"
    if (scope["method"], scope["path"]) == ("POST", "/orders"):
        order = (await receive())["body"].decode()
        receipt = await broker.publisher().publish(ORDERS, order)
        status, body = 202, f"stored as {receipt.sequence}\n".encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def post(url: str, order: str) -> str:
    """A client of few words."""
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
    async with stream:
        head = f"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: {len(order)}\r\n"
        await stream.send_all(f"{head}Connection: close\r\n\r\n{order}".encode())
        answer = b"".join([chunk async for chunk in stream])
    return f"{answer.split()[1].decode()} {answer.splitlines()[-1].decode()}"


async def main() -> None:
    handled, enough = [], trio.Event()

    async def handle(order: str) -> Outcome:
        handled.append(order)
        if len(handled) == 2:
            enough.set()
        return Outcome.ACK

    http = Config()
    http.bind, http.errorlog = ["127.0.0.1:0"], None
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(ORDERS)
        group = broker.consumer_group()
        group.register(ORDERS, handle)
        async with trio.open_nursery() as consumers:
            await consumers.start(partial(group.serve, drain_timeout=10))
            async with trio.open_nursery() as web:
                # In a service: shutdown_trigger=None ends it on SIGTERM.
                start = partial(serve, partial(app, broker), http, shutdown_trigger=enough.wait)
                [url] = await web.start(start)
                for order in ("tea", "bread"):
                    print(await post(url, order))
            print("no more requests are taken")
            group.stop()
    print("handled", ", ".join(handled))


if __name__ == "__main__":
    trio.run(main)
