"""What happens to one run of the flights, and when: kills and stops of the server and of workers.

A plan is made of its seed alone and kept to by the clock, so a seed can be run again. What it meets
is another matter: which handler is running at that moment depends on the machine.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

import trio

from shove_actors.cli._chaos import Chaos, Worker, WorkerFailed, _freeze
from shove_actors.cli._journal import Journal, Killed, Paused, Resumed, now

Kind = Literal["kill server", "kill worker", "stop server", "stop worker"]
KINDS: Final[tuple[Kind, ...]] = ("kill server", "kill worker", "stop server", "stop worker")
#: The last blow falls at the latest so long after the first message.
SPAN_S: Final = 4.5
#: A stop is shorter than the lease (nobody may notice) or longer (somebody else takes over).
SHORT_S: Final = (0.05, 0.8)
LONG_S: Final = (1.1, 2.0)
RESTARTS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Blow:
    """`for_s`: how long a stop lasts. `pick`: which worker, from 0 to 1."""

    at_s: float
    what: Kind
    for_s: float = 0.0
    pick: float = 0.0

    def __str__(self) -> str:
        length = f" for {self.for_s:.2f} s" if self.for_s else ""
        return f"{self.at_s:.2f} s {self.what}{length}"


def plan(seed: int, lease_s: float) -> list[Blow]:
    """One blow of each kind, and one or two more of any."""
    rng = random.Random(seed)
    kinds: list[Kind] = [*KINDS, *rng.choices(KINDS, k=rng.randint(1, 2))]
    blows = []
    for kind in kinds:
        for_s = 0.0
        if kind.startswith("stop"):
            low, high = rng.choice([SHORT_S, LONG_S])
            for_s = rng.uniform(low, high) * (lease_s if low > 1 else 1.0)
        blows.append(Blow(at_s=rng.uniform(0.2, SPAN_S), what=kind, for_s=for_s, pick=rng.random()))
    return sorted(blows, key=lambda blow: blow.at_s)


class Storm(Chaos):
    """Consumer processes under a plan of blows. `finished` once the last of them is over.

    Three, so that two are left to take over from one another while a killed one starts again.
    """

    workers = 3

    async def rage(self, blows: list[Blow]) -> None:
        lock = trio.Lock()
        begun = trio.current_time()
        with Journal(self._journals, "chaos") as journal:
            async with trio.open_nursery() as nursery:
                for blow in blows:
                    nursery.start_soon(self._strike, blow, begun, lock, journal)
        self.finished = True

    async def _strike(self, blow: Blow, begun: float, lock: trio.Lock, journal: Journal) -> None:
        await trio.sleep_until(begun + blow.at_s)
        if blow.what.endswith("server"):
            # One thing at a time with the server: one that is stopped is not killed as well.
            async with lock:
                if blow.what == "kill server":
                    await self._server.kill()
                    journal.write(Killed(who=Killed.SERVER, at=now()))
                    await self._server.restart()
                else:
                    await self._stop_server(blow.for_s, journal)
            return
        worker = await self._pick(blow.pick)
        if blow.what == "stop worker":
            await self._stop_for(worker, blow.for_s, journal)
            return
        worker.ending = True
        worker.process.kill()
        await worker.process.wait()
        journal.write(Killed(who=worker.name, at=now()))
        await self._forget(worker)
        await self._replace()

    async def _pick(self, pick: float) -> Worker:
        """One that is at work: a process that has not started yet is no consumer."""
        while True:
            ready = [worker for worker in self._workers if worker.ready and not worker.ending]
            if ready:
                return ready[int(pick * len(ready))]
            await trio.sleep(0.02)

    async def _replace(self) -> None:
        """As whatever runs services would: again, if it met a server that was down."""
        for _ in range(RESTARTS):
            try:
                await self._start_worker()
                return
            except WorkerFailed:
                self._workers.pop()
                await trio.sleep(0.3)
        await self._start_worker()

    async def _stop_server(self, for_s: float, journal: Journal) -> None:
        self._server.pause()
        try:
            journal.write(Paused(who=Killed.SERVER, at=now()))
            await trio.sleep(for_s)
        finally:
            journal.write(Resumed(who=Killed.SERVER, at=now()))
            self._server.resume()

    async def _stop_for(self, worker: Worker, for_s: float, journal: Journal) -> None:
        pid = worker.process.pid
        _freeze(pid)
        try:
            journal.write(Paused(who=worker.name, at=now()))
            await trio.sleep(for_s)
        finally:
            if worker.process.poll() is None:
                journal.write(Resumed(who=worker.name, at=now()))
                os.kill(pid, signal.SIGCONT)

    @classmethod
    @asynccontextmanager
    async def over(cls, **options: object) -> AsyncIterator[Storm]:
        async with cls.open(**options) as chaos:  # type: ignore[arg-type]
            assert isinstance(chaos, Storm)
            yield chaos
