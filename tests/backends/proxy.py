"""A TCP proxy between a backend and a real server: the network, to be disturbed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

_CHUNK = 65536


class Proxy:
    """One process's way to the server. `url` is what its backend connects to."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._own_port = 0
        self._streams: set[trio.SocketStream] = set()
        self._refuses = False
        self._flows = {"up": trio.Event(), "down": trio.Event()}
        for event in self._flows.values():
            event.set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._own_port}"

    async def cut(self) -> None:
        """Every connection breaks, and no other is accepted until `mend`."""
        self._refuses = True
        for stream in list(self._streams):
            await trio.aclose_forcefully(stream)

    def mend(self) -> None:
        self._refuses = False

    def stall(self, direction: str = "both") -> None:
        """Nothing passes that way any more, and nobody is told. What the proxy has taken up
        before a cut is lost with it."""
        for name, event in self._flows.items():
            if direction in (name, "both") and event.is_set():
                self._flows[name] = trio.Event()

    def unstall(self) -> None:
        for event in self._flows.values():
            event.set()

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self._own_port = listeners[0].socket.getsockname()[1]
            task_status.started()
            await trio.serve_listeners(self._accept, listeners, handler_nursery=nursery)

    async def _accept(self, client: trio.SocketStream) -> None:
        if self._refuses:
            await trio.aclose_forcefully(client)
            return
        try:
            server = await trio.open_tcp_stream(self._host, self._port)
        except OSError:
            await trio.aclose_forcefully(client)
            return
        ends = {client, server}
        self._streams |= ends
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, client, server, "up", nursery.cancel_scope)
                nursery.start_soon(self._pump, server, client, "down", nursery.cancel_scope)
        finally:
            self._streams -= ends
            for end in ends:
                await trio.aclose_forcefully(end)

    async def _pump(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        direction: str,
        scope: trio.CancelScope,
    ) -> None:
        try:
            while True:
                data = await source.receive_some(_CHUNK)
                await self._flows[direction].wait()
                if not data:
                    break
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def open_proxies(host: str, port: int) -> AsyncIterator[ProxyMaker]:
    """Makes proxies to one server; they end with the block."""
    async with trio.open_nursery() as nursery:
        yield ProxyMaker(nursery, host, port)
        nursery.cancel_scope.cancel()


class ProxyMaker:
    def __init__(self, nursery: trio.Nursery, host: str, port: int) -> None:
        self._nursery, self._host, self._port = nursery, host, port

    async def one(self) -> Proxy:
        proxy = Proxy(self._host, self._port)
        await self._nursery.start(proxy.serve)
        return proxy
