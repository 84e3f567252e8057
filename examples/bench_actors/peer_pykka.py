"""pykka: one thread per actor, no supervision, unbounded mailboxes.

Its calls block, so they block the loop this benchmark runs in; nothing else runs there meanwhile.
CPU time is that of the whole process, so its threads are counted.
"""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pykka

NAME = "pykka"
# Beyond this the machine's limit of threads decides, not the library.
MOST_ACTORS = 1000


def version() -> str:
    return importlib.metadata.version("pykka")


class _Counter(pykka.ThreadingActor):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, threading.Event):
            message.set()
        self.seen += 1
        return message


class Station:
    def __init__(self) -> None:
        self._ref = _Counter.start()

    async def tell(self, count: int) -> None:
        for number in range(count):
            self._ref.tell(number)
        done = threading.Event()
        self._ref.tell(done)
        done.wait()

    async def ask(self, count: int) -> None:
        for number in range(count):
            self._ref.ask(number)

    def close(self) -> None:
        self._ref.stop()


@asynccontextmanager
async def station(capacity: int) -> AsyncIterator[Station]:
    made = Station()
    try:
        yield made
    finally:
        made.close()


class Crowd:
    def __init__(self) -> None:
        self._refs: list[pykka.ActorRef[_Counter]] = []

    async def spawn(self, count: int) -> None:
        if count > MOST_ACTORS:
            raise NotImplementedError(f"one thread each: not tried beyond {MOST_ACTORS}")
        self._refs = [_Counter.start() for _ in range(count)]

    async def stop(self) -> None:
        pykka.get_all([ref.stop(block=False) for ref in self._refs])


@asynccontextmanager
async def crowd(capacity: int) -> AsyncIterator[Crowd]:
    made = Crowd()
    try:
        yield made
    finally:
        pykka.ActorRegistry.stop_all()


async def storm(count: int) -> None:
    raise NotImplementedError("has no restarts")
