"""The same disturbances on both backends, for the conformance checks of faults.

In memory they are the model's fault hooks; on a real server a proxy per process, signals to the
server process, and JetStream's own API.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import trio

from shove_actors.backends import Backend
from shove_actors.backends.memory import MemoryServer
from shove_actors.backends.nats import NatsConfig
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream, connect

from .proxy import Proxy, ProxyMaker


class Disturbance(Protocol):
    """`backend` is one that `create` has made."""

    async def create(self) -> Backend: ...

    async def disconnect(self, backend: Backend) -> None:
        """The connection breaks, with what is on its way; not mended until `reconnect`."""
        ...

    async def reconnect(self, backend: Backend) -> None: ...

    async def stall(self, backend: Backend, direction: str) -> None:
        """`up`, `down` or `both`: nothing passes, nobody is told."""
        ...

    async def unstall(self, backend: Backend) -> None: ...

    async def restart(self, *, killed: bool) -> None: ...

    async def limit(self, stream: str, max_messages: int | None) -> None: ...

    async def delete_durable(self, stream: str, durable: str) -> None: ...


class MemoryDisturbance:
    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def create(self) -> Backend:
        from shove_actors.backends.memory import MemoryConfig

        return MemoryConfig(server=self._server).create_backend()

    async def disconnect(self, backend: Backend) -> None:
        self._server.faults.disconnect(backend)

    async def reconnect(self, backend: Backend) -> None:
        self._server.faults.reconnect(backend)

    async def stall(self, backend: Backend, direction: str) -> None:
        self._server.faults.stall(backend, direction)  # type: ignore[arg-type]

    async def unstall(self, backend: Backend) -> None:
        self._server.faults.unstall(backend)

    async def restart(self, *, killed: bool) -> None:
        self._server.faults.restart(killed=killed)

    async def limit(self, stream: str, max_messages: int | None) -> None:
        self._server.edit_stream(stream, max_messages=max_messages)

    async def delete_durable(self, stream: str, durable: str) -> None:
        self._server.delete_durable(stream, durable)


class NatsDisturbance:
    """On a server of its own."""

    def __init__(self, server: ServerProcess, proxies: ProxyMaker) -> None:
        self._server = server
        self._proxies = proxies
        self._of: dict[Backend, Proxy] = {}

    async def create(self) -> Backend:
        proxy = await self._proxies.one()
        config = NatsConfig(proxy.url, reconnect_wait=0.02, reconnect_jitter=0.0)
        backend = config.create_backend()
        self._of[backend] = proxy
        return backend

    async def disconnect(self, backend: Backend) -> None:
        await self._of[backend].cut()

    async def reconnect(self, backend: Backend) -> None:
        self._of[backend].mend()

    async def stall(self, backend: Backend, direction: str) -> None:
        self._of[backend].stall(direction)

    async def unstall(self, backend: Backend) -> None:
        self._of[backend].unstall()

    async def restart(self, *, killed: bool) -> None:
        await trio.to_thread.run_sync(self._server.kill if killed else self._server.terminate)
        await trio.to_thread.run_sync(self._server.restart)

    async def limit(self, stream: str, max_messages: int | None) -> None:
        async with connect(self._server.url) as js:
            await _limit(js, stream, -1 if max_messages is None else max_messages)

    async def delete_durable(self, stream: str, durable: str) -> None:
        async with connect(self._server.url) as js:
            await js.delete_consumer(stream, durable)


async def _limit(js: JetStream, stream: str, most: int) -> None:
    config = (await js.stream_info(stream)).config
    await js.update_stream(replace(config, max_msgs=most))
