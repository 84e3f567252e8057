"""The consumers of one registration inside their pool, as the autoscaler and the group see them.

Consumers are numbered; a number is free again when its consumer has ended for good. All of them
share one lane, whose credit (messages this process may hold) follows their number: before more
consumers start, and after some have stopped, so that what was pulled for a consumer is never more
than the rest can hold.
"""

from __future__ import annotations

from typing import Any

import trio

from shove_actors.actors import ActorRef, DynamicSupervisor
from shove_actors.backends import Backend, Backlog

from ._registration import Registration


class ScaledPool:
    """Satisfies `_autoscaler.Scalable`."""

    def __init__(
        self,
        registration: Registration,
        pool: DynamicSupervisor,
        backend: Backend,
        drain_timeout: float,
    ) -> None:
        self._registration = registration
        self._pool = pool
        self._backend = backend
        self._drain_timeout = drain_timeout
        self._running: dict[int, ActorRef[Any]] = {}

    @property
    def name(self) -> str:
        return self._registration.name

    @property
    def limits_of_scale(self) -> tuple[int, int]:
        return self._registration.options.consumers

    @property
    def takes(self) -> int:
        return self._registration.options.takes

    def count(self) -> int:
        for number, ref in list(self._running.items()):
            if ref.ended:
                del self._running[number]
        return len(self._running)

    async def backlog(self) -> Backlog | None:
        [spec] = self._registration.lane_specs()
        return await self._backend.backlog(spec.stream, spec.durable)

    async def grow(self, number: int) -> None:
        """Start `number` consumers; cancelled, those that are up stay."""
        wanted = self.count() + number
        self._set_credit(wanted)
        index = 0
        try:
            while self.count() < wanted:
                while index in self._running:
                    index += 1
                spec = self._registration.spec(index, self._drain_timeout)
                self._running[index] = await self._pool.start_child(spec)
        finally:
            # Of those that could not be started nothing is to be pulled.
            self._set_credit(self.count())

    async def shrink(self, number: int) -> int:
        # The newest first, so that the numbers stay low and the oldest stay warm.
        idle = [
            (index, ref)
            for index, ref in sorted(self._running.items(), reverse=True)
            if not ref.ended and not self._registration.is_busy(index)
        ][:number]
        async with trio.open_nursery() as nursery:
            for _, ref in idle:
                nursery.start_soon(self._pool.stop_child, ref)
        self._set_credit(self.count())
        return len(idle)

    def _set_credit(self, consumers: int) -> None:
        for lane in self._registration.lanes:
            lane.set_credit(self._registration.options.prefetch * consumers)
