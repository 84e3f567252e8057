"""`shove_actors.actors`, as its documentation says to use it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from shove_actors import actors

NAME = "shove_actors"


def version() -> str:
    return importlib.metadata.version("shove-actors")


class Station:
    def __init__(self) -> None:
        self.ref: actors.ActorRef[Any]
        self.echo: actors.ActorRef[Any]
        self._seen = 0
        self._until = 0
        self._done = trio.Event()

    async def actor(self, ctx: actors.Context[object]) -> None:
        ctx.started()
        async for _ in ctx:
            self._seen += 1
            if self._seen == self._until:
                self._done.set()

    async def tell(self, count: int) -> None:
        self._until, self._done = self._seen + count, trio.Event()
        tell = self.ref.tell
        for number in range(count):
            await tell(number)
        await self._done.wait()

    async def ask(self, count: int) -> None:
        ask = self.echo.ask
        for number in range(count):
            await ask(number)


async def _echo(ctx: actors.Context[object]) -> None:
    ctx.started()
    async for message in ctx:
        ctx.reply(message)


@asynccontextmanager
async def station(capacity: int) -> AsyncIterator[Station]:
    made = Station()
    mailbox = actors.MailboxSpec(capacity=capacity)
    children = [
        actors.ChildSpec(id="counter", start=made.actor, mailbox=mailbox),
        actors.ChildSpec(id="echo", start=_echo, mailbox=mailbox),
    ]
    async with actors.open_actor_system(children=children) as system:
        made.ref, made.echo = system.ref("counter"), system.ref("echo")
        yield made


async def _idle(ctx: actors.Context[object]) -> None:
    ctx.started()
    async for _ in ctx:
        pass


class Crowd:
    """A pool, filled one by one: each start is waited for, as with the bare nursery."""

    def __init__(
        self, system: actors.ActorSystem, pool: actors.DynamicSupervisor, capacity: int
    ) -> None:
        self._system = system
        self._pool = pool
        self._mailbox = actors.MailboxSpec(capacity=capacity)

    async def spawn(self, count: int) -> None:
        for number in range(count):
            spec = actors.ChildSpec(id=f"a{number}", start=_idle, mailbox=self._mailbox)
            await self._pool.start_child(spec)

    def snapshot(self) -> int:
        return sum(1 for _ in self._system.snapshot().walk())

    async def stop(self) -> None:
        self._system.stop()
        report = await self._system.wait_stopped()
        assert report.clean
        assert not report.killed


@asynccontextmanager
async def crowd(capacity: int) -> AsyncIterator[Crowd]:
    pool = actors.DynamicSupervisor()
    async with actors.open_actor_system(children=[pool.spec(id="pool")]) as system:
        yield Crowd(system, pool, capacity)


async def static(count: int, stop: list[float], clock: Any) -> None:
    """A static tree of `count` actors; writes the clock before, between and after into `stop`."""
    children = [actors.ChildSpec(id=f"a{n}", start=_idle) for n in range(count)]
    stop.append(clock())
    async with actors.open_actor_system(children=children):
        stop.append(clock())
    stop.append(clock())


async def storm(count: int, *, budget: bool = False) -> None:
    """One actor that crashes whenever it has started, under a supervisor with one other child.

    The pause between restarts is a microsecond, because unlimited restarts need one; `budget`
    instead counts every restart against a budget that is just large enough.
    """
    done = trio.Event()

    async def crash(ctx: actors.Context[object]) -> None:
        ctx.started()
        await trio.lowlevel.checkpoint()
        if ctx.incarnation > count:
            done.set()
            await ctx.stop_requested.wait()
            return
        raise ValueError("again")

    pause = None if budget else actors.Backoff(initial_s=1e-6, max_s=1e-6)
    limit = actors.Intensity(max_restarts=count if budget else None, period_s=3600)
    children = [
        actors.ChildSpec(id="other", start=_idle, backoff=actors.Backoff(initial_s=1, max_s=1)),
        actors.ChildSpec(id="crash", start=crash, backoff=pause),
    ]
    async with actors.open_actor_system(children=children, intensity=limit):
        await done.wait()
