"""Stopping many incarnations at once: one task, one timer, whatever their number.

It does to each what `stop_child` does to one (ask, wait for the grace, cancel, wait again and
report each `overrun_s`), without a task, a scope and a deadline for each: those took more than
twice the time of the stop itself, and their memory at the worst moment.

*How it knows.* Every incarnation reports its end to its supervisor synchronously, which calls
`ended`; that queues the slot and wakes the one waiting task. Nothing is polled, and a wake-up
costs what has ended since the last one, not what still runs.

*The races.* (1) An end between looking at the queue and beginning to wait would be slept over. It
cannot happen: there is no checkpoint between the two, and ends come only from other tasks. But
the event waited for must be made anew *before* the queue is looked at, or an end in between two
turns sets an event nobody will wait for. (2) An end and the expiry of its grace in one turn: the
queue is read before the timers, so a child that is gone is neither reported as expired nor listed
as killed. (3) The hard stop takes every grace at once but not the overruns: with nothing but
overruns left the wait must not watch it, or it would spin. Proofs, in this order:
`test_race_ends_in_every_turn_are_all_seen`, `test_race_end_and_expiry_in_one_turn`,
`test_race_hard_stop_with_a_child_that_will_not_end`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

import trio

from ._child import Incarnation
from ._core import HardStop
from ._lifecycle import GraceExpired, Overrun
from ._slot import Slot
from ._spec import Kind

_Timers = list[tuple[float, int, Incarnation]]


class StopMany:
    """One stop of many. `on_ended` is called once for each, soon after it has ended."""

    def __init__(self, hard: HardStop, on_ended: Callable[[Slot], None]) -> None:
        self._hard = hard
        self._on_ended = on_ended
        self._waiting: set[Incarnation] = set()
        self._ends: deque[Incarnation] = deque()
        self._wake = trio.Event()
        self._graces: _Timers = []
        self._overruns: _Timers = []
        self._count = 0

    def stop(self, incarnation: Incarnation, final: bool, grace_s: float) -> None:
        """Ask it, or carry on where another stop was given up. Returns at once."""
        self._waiting.add(incarnation)
        if not incarnation.up:
            self._kill(incarnation)
        elif grace_s > 0:
            incarnation.request_stop(final, grace_s)
            if incarnation.slot.spec.kind is Kind.WORKER:
                assert incarnation.asked_at is not None
                self._push(self._graces, incarnation.asked_at + grace_s, incarnation)
        else:
            self._kill_out_loud(incarnation)

    def ended(self, incarnation: Incarnation) -> None:
        """It has ended. Called by its supervisor, for any child."""
        self._ends.append(incarnation)
        self._wake.set()

    async def wait(self) -> None:
        """Wait until all have ended, however long that takes."""
        while True:
            self._wake = trio.Event()
            while self._ends:
                incarnation = self._ends.popleft()
                # Everybody who runs when the stop begins is asked, and nobody is started after.
                self._waiting.remove(incarnation)
                self._on_ended(incarnation.slot)
            self._run_timers()
            if not self._waiting:
                return
            overrun_at = self._overruns[0][0] if self._overruns else math.inf
            if self._graces:
                with self._hard.grace(min(self._graces[0][0], overrun_at)):
                    await self._wake.wait()
            else:
                with trio.move_on_at(overrun_at):
                    await self._wake.wait()

    def _run_timers(self) -> None:
        now = trio.current_time()
        while self._graces and (self._graces[0][0] <= now or self._hard.is_set):
            incarnation = heappop(self._graces)[2]
            if incarnation not in self._waiting:
                continue
            if incarnation.killed_at is None:
                incarnation.slot.core.listeners.emit(
                    GraceExpired(path=incarnation.slot.path, at=now, incarnation=incarnation.number)
                )
            self._kill_out_loud(incarnation)
        while self._overruns and self._overruns[0][0] <= now:
            due, _, incarnation = heappop(self._overruns)
            if incarnation not in self._waiting:
                continue
            slot = incarnation.slot
            assert incarnation.killed_at is not None
            since_s = now - incarnation.killed_at
            slot.core.listeners.emit(
                Overrun(path=slot.path, at=now, incarnation=incarnation.number, since_s=since_s)
            )
            self._push(self._overruns, due + slot.spec.overrun_s, incarnation)

    def _kill_out_loud(self, incarnation: Incarnation) -> None:
        if incarnation.killed_at is None:
            incarnation.slot.core.killed[incarnation.slot.path] = None
        self._kill(incarnation)

    def _kill(self, incarnation: Incarnation) -> None:
        incarnation.kill()
        spec = incarnation.slot.spec
        if spec.kind is Kind.WORKER:
            assert incarnation.killed_at is not None
            report_at = incarnation.killed_at + spec.overrun_s
            # Carrying on from another stop: reports that are due already were made.
            while report_at < trio.current_time():
                report_at += spec.overrun_s
            self._push(self._overruns, report_at, incarnation)

    def _push(self, timers: _Timers, due: float, incarnation: Incarnation) -> None:
        # The count keeps the heap from ever comparing two incarnations.
        self._count += 1
        heappush(timers, (due, self._count, incarnation))
