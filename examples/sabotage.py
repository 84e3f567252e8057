"""Crashes actors of a running program; what `--kill-something` of the actor examples does.

Beside each actor that is made breakable waits a task with a fuse. Lit, it raises, so the actor
crashes wherever it happens to be: in the middle of a request, of a write, of a wait.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from shove_actors import actors

M = TypeVar("M")
Start = Callable[[actors.Context[M]], Awaitable[None]]


class Sabotage(Exception):
    """What a victim dies of."""


class Saboteur:
    """Strikes `kills` times, evenly over the run by its progress; the seed chooses the victims."""

    def __init__(self, *, kills: int, seed: int) -> None:
        self.kills = kills
        self.killed = 0
        self.restarted = 0
        self._random = random.Random(seed)
        self._fuses: dict[str, trio.Event] = {}

    @classmethod
    def from_command_line(cls, doc: str | None, *, kills: int) -> Saboteur:
        parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
        parser.add_argument("--kill-something", action="store_true", help=f"crash {kills} actors")
        parser.add_argument("--seed", type=int, default=1, help="chooses the victims (default 1)")
        options = parser.parse_args()
        return cls(kills=kills if options.kill_something else 0, seed=options.seed)

    def breakable(self, start: Start[M]) -> Start[M]:
        """The same actor, with a fuse."""

        async def run(ctx: actors.Context[M]) -> None:
            fuse = self._fuses[ctx.path] = trio.Event()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_burn, fuse, ctx.path)
                    await start(ctx)
                    nursery.cancel_scope.cancel()
            finally:
                del self._fuses[ctx.path]

        return run

    def progress(self, done: int, total: int) -> None:
        """To be called as work gets done; now and then it is the moment to strike."""
        # One share of the run is left at the end, for the last victim to come back in.
        due = self.killed < self.kills and done >= total * (self.killed + 1) / (self.kills + 2)
        victims = sorted(path for path, fuse in self._fuses.items() if not fuse.is_set())
        if due and victims:
            self.killed += 1
            path = self._random.choice(victims)
            print(f"  killed {path}, with {done} of {total} done")
            self._fuses[path].set()

    def listen(self, event: actors.LifecycleEvent) -> None:
        """A lifecycle listener: tells what its supervisors made of it."""
        if isinstance(event, actors.Started) and event.incarnation > 1:
            self.restarted += 1
            print(f"  restarted {event.path}, run {event.incarnation}")
        elif isinstance(event, actors.Escalated):
            print(f"  {event.path or 'the root'} gave up: {event.error}")


async def _burn(fuse: trio.Event, path: str) -> None:
    await fuse.wait()
    raise Sabotage(path)
