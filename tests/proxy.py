"""A TCP proxy that can stop forwarding and keep its sockets: a black hole with a memory.

What is written into a frozen connection is not lost: it waits, here and in the kernels on the way,
and comes out when the connection is thawed, also when whoever wrote it has left meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import trio

_CHUNK = 65536


class Proxy:
    """`freeze` holds what the connections of this moment send, in the direction(s) named."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._gates: list[_Gates] = []
        self._frozen_for_new = False
        self.url = ""

    def freeze(self, *, up: bool = True, down: bool = True, new: bool = True) -> None:
        """`up`: towards the server. `new`: also connections that are made from now on."""
        self._frozen_for_new = new
        for gates in self._gates:
            if up:
                gates.up = trio.Event()
            if down:
                gates.down = trio.Event()

    def thaw(self) -> None:
        self._frozen_for_new = False
        for gates in self._gates:
            gates.up.set()
            gates.down.set()

    async def handle(self, client: trio.SocketStream) -> None:
        gates = _Gates(frozen=self._frozen_for_new)
        self._gates.append(gates)
        server = await trio.open_tcp_stream(*self._target)
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, client, server, gates, True)
            await self._pump(server, client, gates, False)
            await gates.up.wait()
            with trio.move_on_after(0.5):  # what the client had sent is still on its way
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, gates: _Gates, up: bool
    ) -> None:
        try:
            while True:
                data = await source.receive_some(_CHUNK)
                await (gates.up if up else gates.down).wait()
                if not data:
                    await sink.send_eof()
                    return
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            if up:
                # The client is gone; what it had sent goes on its way before the server hears it.
                await gates.up.wait()
                with trio.move_on_after(1):
                    await sink.send_eof()


class _Gates:
    def __init__(self, *, frozen: bool) -> None:
        self.up, self.down = trio.Event(), trio.Event()
        if not frozen:
            self.up.set()
            self.down.set()


@asynccontextmanager
async def open_proxy(url: str) -> AsyncIterator[Proxy]:
    """In front of the server at `url`."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    async with trio.open_nursery() as nursery:
        proxy = Proxy((parts.hostname, parts.port))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        proxy.url = f"nats://127.0.0.1:{port}"
        nursery.start_soon(trio.serve_listeners, proxy.handle, listeners)
        yield proxy
        nursery.cancel_scope.cancel()
