"""A handler that takes as long as the test says."""

from __future__ import annotations

import trio
import trio.testing

from shove_actors import Outcome

from .world import Journal, Order


class Slow:
    """A handler that waits until it is let go; and whether it was cancelled."""

    def __init__(self) -> None:
        self.started: Journal[str] = Journal()
        self.let_go = trio.Event()
        self.cancelled: list[str] = []
        self.finished: list[str] = []

    async def handle(self, message: Order) -> Outcome:
        self.started.add(message.name)
        try:
            await self.let_go.wait()
        except trio.Cancelled:
            self.cancelled.append(message.name)
            raise
        self.finished.append(message.name)
        return Outcome.ACK
