"""triotp: OTP's generic server and dynamic supervisor on Trio. Release 0.3 needs Python 3.13.

Its mailboxes are rendezvous channels: their capacity is always 0, so every `cast` waits until the
server has taken the message. Its actors have no names here, because it searches all names for each
actor that ends.
"""

from __future__ import annotations

import importlib.metadata
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import logbook
import peer_trio
import trio
from triotp import dynamic_supervisor, gen_server, mailbox, supervisor

if tuple(map(int, importlib.metadata.version("triotp").split(".")[:2])) < (0, 3):
    raise ImportError("triotp below 0.3 (that is, below Python 3.13) needs Trio 0.19")

NAME = "triotp"


def version() -> str:
    return importlib.metadata.version("triotp")


def prepare() -> None:
    """What `node.run` does before it starts anything, which wants to own `trio.run`."""
    logbook.NullHandler().push_application()
    mailbox._init()


class Station:
    def __init__(self) -> None:
        self._seen = 0
        self._until = 0
        self._done = trio.Event()
        self.ready = trio.Event()

    def server(self) -> types.ModuleType:
        async def init(_: Any) -> None:
            self.ready.set()

        async def handle_cast(message: Any, state: Any) -> Any:
            self._seen += 1
            if self._seen == self._until:
                self._done.set()
            return gen_server.NoReply(), state

        async def handle_call(message: Any, caller: Any, state: Any) -> Any:
            return gen_server.Reply(message), state

        module = types.ModuleType("station")
        vars(module).update(init=init, handle_cast=handle_cast, handle_call=handle_call)
        return module

    async def tell(self, count: int) -> None:
        self._until, self._done = self._seen + count, trio.Event()
        for number in range(count):
            await gen_server.cast("station", number)
        await self._done.wait()

    async def ask(self, count: int) -> None:
        for number in range(count):
            await gen_server.call("station", number)


@asynccontextmanager
async def station(capacity: int) -> AsyncIterator[Station]:
    made = Station()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gen_server.start, made.server(), None, "station")
        await made.ready.wait()
        yield made
        nursery.cancel_scope.cancel()


class Crowd:
    def __init__(self, host: peer_trio.Host) -> None:
        self._host = host
        self._up = 0
        self._until = 0
        self._all_up = trio.Event()
        self._module = types.ModuleType("idle")
        vars(self._module).update(init=self._init)

    async def _init(self, _: Any) -> None:
        self._up += 1
        if self._up == self._until:
            self._all_up.set()

    async def _supervise(self, *, task_status: trio.TaskStatus[Any]) -> None:
        await dynamic_supervisor.start(supervisor.options(), "crowd", task_status)

    async def spawn(self, count: int) -> None:
        self._until = self._up + count
        await self._host.nursery.start(self._supervise)
        for number in range(count):
            spec = supervisor.child_spec(
                id=f"a{number}", task=gen_server.start, args=[self._module, None]
            )
            await dynamic_supervisor.start_child("crowd", spec)
        await self._all_up.wait()

    async def stop(self) -> None:
        self._host.nursery.cancel_scope.cancel()
        await self._host.wait_gone()


@asynccontextmanager
async def crowd(capacity: int) -> AsyncIterator[Crowd]:
    async with trio.open_nursery() as nursery:
        host = peer_trio.Host()
        await nursery.start(host.run)
        yield Crowd(host)
        nursery.cancel_scope.cancel()


async def storm(count: int) -> None:
    done = trio.Event()
    crashes = 0

    async def crash() -> None:
        nonlocal crashes
        await trio.lowlevel.checkpoint()
        if crashes == count:
            done.set()
            await trio.sleep_forever()
        crashes += 1
        raise ValueError("again")

    spec = supervisor.child_spec(id="crash", task=crash, args=[])
    async with trio.open_nursery() as nursery:
        options = supervisor.options(max_restarts=10**9, max_seconds=5)
        await nursery.start(supervisor.start, [spec], options)
        await done.wait()
        nursery.cancel_scope.cancel()
