"""The lease keeper: every message in hand stays ours, or its handler is stopped in time.

The server gives a delivered message to somebody else `ack_wait` after the last sign of life. The
keeper renews each delivery in hand (waiting or in a handler) after a third of that, with a
confirmed `+WPI`: `leased_at` moves only when the server has answered. When no confirmation comes
(cut off, or the durable is gone), the handler is cancelled at three quarters, so that it has a
quarter of `ack_wait` to unwind before anybody else could start: at most one in flight, across
processes. A lane refuses a settle after the lease (`InHand.release`).

Numbers: a tick is a twelfth of the shortest ack_wait, so "a third" is at most 5/12 and "three
quarters" at most 10/12. They are in `backends/_margins.py`, with their reasons.

A tick that comes late means that something blocked the event loop, or that the whole process was
stopped. No timer can prevent that. What can be had is that nothing goes on afterwards as if it had
not happened: so the keeper is a Trio instrument too, and after such a pause looks at every lease
*before* any task runs. A handler that was asleep does not wake up but is cancelled where it slept,
and what waited in a lane is not begun (`tests/durability/test_fencing.py`). The one thing left is a
handler that was runnable already, in the same pass as the one that blocked: it goes on to its next
checkpoint. The pause is reported (`test_pc019_*`), a pass of the scheduler that took a second
also where no lease is in danger: who blocks the loop should hear of it on the first day.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from shove_actors._log import about
from shove_actors._real_clock import under_mock_clock
from shove_actors.actors import Context
from shove_actors.backends import Delivery, KeyedLane, Lane, margins

logger = logging.getLogger("shove_actors.lease")

CANCEL_SHARE: Final = margins.CANCEL_SHARE
RENEW_SHARE: Final = margins.RENEW_SHARE
RESEND_SHARE: Final = margins.RESEND_SHARE
TICKS_PER_LEASE: Final = margins.TICKS_PER_LEASE
#: A tick this many ticks late is looked after by the instrument, before any task runs.
LATE_TICKS: Final = 2
#: Seconds that one pass over the runnable tasks may take before somebody is told.
BLOCKED_S: Final = 1.0
_NEVER: Final = float("inf")


class LeaseKeeper(trio.abc.Instrument):
    """All open lanes of one broker; its `run` is an actor's body."""

    def __init__(self) -> None:
        # In the order of their coming, so that a simulation does the same each time (PC-107).
        self._lanes: dict[Lane, None] = {}
        self._changed = trio.Event()
        #: When the next tick is so late that something has stood still.
        self._late_at = _NEVER
        #: When the tasks of this pass began to run; when such a pass was last reported.
        self._pass_began = _NEVER
        self._told_at = -_NEVER
        self._virtual = False
        self.renewed = 0
        self.lost = 0
        self.late_ticks = 0

    def add(self, lane: Lane) -> None:
        self._lanes[lane] = None
        self._changed.set()

    def remove(self, lane: Lane) -> None:
        self._lanes.pop(lane, None)

    async def run(self, ctx: Context[None]) -> None:
        ctx.started()
        self._virtual = under_mock_clock()
        trio.lowlevel.add_instrument(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep)
                await ctx.stop_requested.wait()
                nursery.cancel_scope.cancel()
        finally:
            trio.lowlevel.remove_instrument(self)

    def after_io_wait(self, timeout: float) -> None:
        """From Trio, once per scheduler pass, before deadlines fire and before any task runs."""
        self._pass_began = now = trio.current_time()
        if now < self._late_at:
            return
        self._late_at = _NEVER  # until the tick itself, which is about to run
        self._tend_all(now)

    def before_io_wait(self, timeout: float) -> None:
        """From Trio, when all tasks of the pass have run.

        A mock clock jumps meanwhile, and nobody is blocked.
        """
        if self._virtual:
            return
        blocked = trio.current_time() - self._pass_began
        if blocked > BLOCKED_S:
            self._tell(blocked)

    def _tell(self, seconds: float) -> None:
        self._told_at = trio.current_time()
        logger.warning(
            "the event loop was blocked for about %.1f s; while it is, no lease is renewed, and "
            "messages may be delivered to another process. A handler that blocks should be a "
            "plain function (`def`, not `async def`), which runs in a thread",
            seconds,
            extra=about("loop_blocked", seconds=round(seconds, 3)),
        )

    async def _keep(self) -> None:
        while True:
            if not self._lanes:
                self._late_at = _NEVER
                self._changed = trio.Event()
                await self._changed.wait()
                continue
            shortest = min(lane.spec.ack_wait_s for lane in self._lanes)
            tick = shortest / TICKS_PER_LEASE
            before = trio.current_time()
            self._late_at = before + LATE_TICKS * tick
            self._changed = trio.Event()
            with trio.move_on_after(tick):
                # A new lane may have a shorter lease than the tick that is under way.
                await self._changed.wait()
            now = trio.current_time()
            if now - before > max(4 * tick, 0.5):
                self.late_ticks += 1
                if self._told_at < before:
                    self._tell(now - before - tick)
            self._tend_all(now)

    def _tend_all(self, now: float) -> None:
        for lane in self._lanes:
            if lane.held:
                self.tend(lane, now)

    def tend(self, lane: Lane, now: float) -> None:
        """Renew what is a third old; cancel what could not be renewed."""
        if isinstance(lane, KeyedLane):
            lane.tend(now)  # one lease for all of it, which it renews itself
            return
        ack_wait = lane.spec.ack_wait_s
        for delivery in list(lane.held.values()):
            age = now - delivery.leased_at
            if age < ack_wait * RENEW_SHARE or delivery.lost:
                continue
            if age >= ack_wait * CANCEL_SHARE:
                self._lose(delivery)
                continue
            sent = delivery.renewing
            if sent is not None and now - sent >= ack_wait * RESEND_SHARE:
                delivery.renewing = None
            if delivery.renewing is None:
                self.renewed += 1
                lane.renew(delivery)

    def _lose(self, delivery: Delivery) -> None:
        self.lost += 1
        delivery.lost = True
        logger.warning(
            "the lease of %s:%d could not be renewed; %s",
            delivery.stream,
            delivery.sequence,
            "its handler is cancelled" if delivery.on_lost else "it is given up unhandled",
            extra=about("lease_lost", queue=delivery.stream, sequence=delivery.sequence),
        )
        if delivery.on_lost is not None:
            delivery.on_lost()
