"""The limit: tasks in a nursery and memory channels, with no actor library at all.

No addresses, no supervision, no restart policy, no report: what remains is what Trio itself costs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

NAME = "trio"


def version() -> str:
    return trio.__version__


class Station:
    """One consumer behind one channel."""

    def __init__(self, capacity: int) -> None:
        self._send, self._receive = trio.open_memory_channel[object](capacity)
        self._asks, self._questions = trio.open_memory_channel[
            tuple[object, trio.MemorySendChannel[object]]
        ](capacity)
        self._seen = 0
        self._until = 0
        self._done = trio.Event()

    async def consume(self) -> None:
        async for _ in self._receive:
            self._seen += 1
            if self._seen == self._until:
                self._done.set()

    async def answer(self) -> None:
        async for message, port in self._questions:
            port.send_nowait(message)
            port.close()

    async def tell(self, count: int) -> None:
        self._until, self._done = self._seen + count, trio.Event()
        send = self._send.send
        for number in range(count):
            await send(number)
        await self._done.wait()

    async def ask(self, count: int) -> None:
        for number in range(count):
            port, answer = trio.open_memory_channel[object](1)
            await self._asks.send((number, port))
            with answer:
                await answer.receive()


@asynccontextmanager
async def station(capacity: int) -> AsyncIterator[Station]:
    async with trio.open_nursery() as nursery:
        made = Station(capacity)
        nursery.start_soon(made.consume)
        nursery.start_soon(made.answer)
        yield made
        nursery.cancel_scope.cancel()


async def _idle(
    receive: trio.MemoryReceiveChannel[object], *, task_status: trio.TaskStatus[None]
) -> None:
    with receive:
        task_status.started()
        async for _ in receive:
            pass


class Host:
    """A nursery that can be ended and waited for from outside, without polling."""

    nursery: trio.Nursery

    def __init__(self) -> None:
        self._leave = trio.Event()
        self._gone = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as self.nursery:
            task_status.started()
            await self._leave.wait()
        self._gone.set()

    async def wait_gone(self) -> None:
        self._leave.set()
        await self._gone.wait()


class Crowd:
    """Many idle consumers, each with a channel of its own."""

    def __init__(self, host: Host, capacity: int) -> None:
        self._host = host
        self._capacity = capacity
        self._ends: list[trio.MemorySendChannel[object]] = []

    async def spawn(self, count: int) -> None:
        for _ in range(count):
            send, receive = trio.open_memory_channel[object](self._capacity)
            await self._host.nursery.start(_idle, receive)
            self._ends.append(send)

    async def stop(self) -> None:
        for end in self._ends:
            end.close()
        await self._host.wait_gone()


@asynccontextmanager
async def crowd(capacity: int) -> AsyncIterator[Crowd]:
    async with trio.open_nursery() as nursery:
        host = Host()
        await nursery.start(host.run)
        yield Crowd(host, capacity)
        nursery.cancel_scope.cancel()


async def _crash() -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError("again")


async def storm(count: int) -> None:
    """A new task for each crash, started by the task that hears of the crash."""
    send, receive = trio.open_memory_channel[None](1)

    async def once() -> None:
        try:
            await _crash()
        except ValueError:
            send.send_nowait(None)

    async with trio.open_nursery() as nursery:
        for _ in range(count + 1):
            nursery.start_soon(once)
            await receive.receive()
