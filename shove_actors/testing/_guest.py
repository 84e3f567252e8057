"""A Trio run that goes on only while somebody pumps it.

The run is a guest of a host loop that is nothing but a queue, emptied by `pump`.

*No thread, no wall clock* (PC-107). A guest run with nothing to do waits for I/O in a thread, and
comes back when that thread pleases. Here it always has something to do: one task, the pulse, lives
in `wait_all_tasks_blocked`, so an idle run returns at once to wake it, and the thread is never
needed. The pulse is the last of our tasks to go, because an ordered stop is idle at times, too.

*When is everything blocked?* A beat of the pulse says that nothing was runnable, no deadline had
passed and no event had come. But whoever else sat in `wait_all_tasks_blocked` woke up in the same
turn; so a beat counts only if nothing is runnable after it.

*Time* is a `MockClock` that only `move` moves (`still_clock`), and each deadline is met exactly:
`now + (deadline - now)` may miss it by rounding, and then it would not fire, or the times of a
model and of the run would differ in the last digit.

*Nothing stays* (PC-108). Trio allows one run per thread, so one that is left behind would break
all later ones. `end` therefore also ends a run whose tasks refuse to: what they wait for is made to
raise, and a task that never waits is taken apart together with the run.

Proof of each: `tests/testing/test_stepper*.py`.
"""

from __future__ import annotations

import gc
import math
import sys
import warnings
from collections import deque
from collections.abc import Callable

import outcome
import trio
import trio.testing

from shove_actors._errors import UsageError
from shove_actors._groups import unwrapped

#: Turns of the scheduler after which a task counts as one that never waits.
TURNS = 100_000
#: Deadlines that `end` lets pass, and tasks that it ends by force.
LAST_DEADLINES = 10_000
LAST_TASKS = 1_000


class EndedByForce(BaseException):
    """Raised where a task waits that did not end when it was cancelled."""


def still_clock() -> tuple[trio.testing.MockClock, list[float]]:
    """A clock that stands still, and what it shows (one number, to be set after each jump).

    A `MockClock` asks the real clock first, in case it has a rate, and a simulation asks it a dozen
    times for each message. The methods are its own, in the instance, because the class is final.
    """
    clock, shown = trio.testing.MockClock(), [0.0]

    def current_time() -> float:
        return shown[0]

    def deadline_to_sleep_time(deadline: float) -> float:
        return 0.0 if deadline <= shown[0] else math.inf

    vars(clock).update(current_time=current_time, deadline_to_sleep_time=deadline_to_sleep_time)
    return clock, shown


class GuestRun:
    """One run: made by `start`, over after `end` or by itself."""

    nursery: trio.Nursery

    def __init__(self) -> None:
        self.clock, self._shown = still_clock()
        self.over: outcome.Outcome[None] | None = None
        self.pumping = False
        self._closing = trio.Event()
        self._queue: deque[Callable[[], object]] = deque()
        self._beats = 0

    def start(self) -> None:
        """Begin, and run until everything is blocked."""
        trio.lowlevel.start_guest_run(
            self._root,
            run_sync_soon_threadsafe=self._queue.append,
            done_callback=self._done,
            # Signals need not wake up anything: the host never waits.
            host_uses_signal_set_wakeup_fd=True,
            clock=self.clock,
        )
        self.pump()

    def pump(self) -> None:
        """Run until every task is blocked, or the run is over."""
        self.pumping = True
        try:
            for _ in range(TURNS):
                if self.over is not None:
                    return
                beats = self._beats
                # Empty only while Trio waits in a thread, which the pulse prevents.
                self._queue.popleft()()
                if self._beats != beats and self.over is None:
                    statistics = trio.lowlevel.current_statistics()
                    if not (statistics.tasks_runnable or statistics.run_sync_soon_queue_size):
                        return
        finally:
            self.pumping = False
        raise UsageError(
            f"after {TURNS} turns some task still does not wait for anything. There are "
            f"{', '.join(sorted(task.name for task in self._tasks()))}."
        )

    @property
    def tampered(self) -> bool:
        """Somebody else has moved the clock, or made it move by itself."""
        clock = self.clock
        still = clock.rate == 0 and math.isinf(clock.autojump_threshold)
        return not still or trio.testing.MockClock.current_time(clock) != self._shown[0]

    def _jump(self, seconds: float) -> None:
        clock = self.clock
        clock.jump(seconds)
        self._shown[0] = trio.testing.MockClock.current_time(clock)

    def move(self, to: float) -> None:
        """Set the clock to exactly `to`, which does not lie behind."""
        while (now := self.clock.current_time()) < to:
            distance = to - now
            self._jump(distance if now + distance <= to else math.nextafter(distance, 0.0))

    def move_to_deadline(self, limit: float) -> bool:
        """Set the clock to exactly the next deadline; False if there is none up to `limit`."""
        now = self.clock.current_time()
        distance = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if math.isinf(distance) or now + distance > limit:
            return False
        while distance > now:
            # Far away the distance is rounded. From half of the way on a difference is exact.
            self._jump(distance * 0.75)
            now = self.clock.current_time()
            distance = trio.lowlevel.current_statistics().seconds_to_next_deadline
        self.move(now + distance)
        return True

    def end(self) -> list[str]:
        """Cancel everything and wait, letting time pass; names the tasks that had to be forced."""
        if self.over is not None:
            return []
        self._closing.set()
        forced: list[str] = []
        try:
            self._wait_for_the_end()
            forced = self._force()
        except UsageError:
            # A task that never waits.
            forced = sorted(task.name for task in self._tasks())
        finally:
            if self.over is None:
                self._take_apart()
        return forced

    # ------------------------------------------------------------------------- private

    async def _root(self) -> None:
        with unwrapped(layers=2):
            async with trio.open_nursery() as keeper:
                keeper.start_soon(self._pulse)
                try:
                    async with trio.open_nursery() as self.nursery:
                        await self._closing.wait()
                        self.nursery.cancel_scope.cancel()
                finally:
                    keeper.cancel_scope.cancel()

    async def _pulse(self) -> None:
        while True:
            await trio.testing.wait_all_tasks_blocked()
            self._beats += 1

    def _done(self, result: outcome.Outcome[None]) -> None:
        self.over = result

    def _tasks(self) -> list[trio.lowlevel.Task]:
        found: list[trio.lowlevel.Task] = []
        todo = list(self.nursery.child_tasks)
        while todo:
            found.append(todo.pop())
            todo += [t for nursery in found[-1].child_nurseries for t in nursery.child_tasks]
        return found

    def _wait_for_the_end(self) -> None:
        for _ in range(LAST_DEADLINES):
            self.pump()
            if self.over is not None or not self.move_to_deadline(math.inf):
                return

    def _force(self) -> list[str]:
        forced: list[str] = []
        while self.over is None and len(forced) < LAST_TASKS:
            # A task without children waits for something other than its nursery.
            task = next(
                t for t in self._tasks() if not any(n.child_tasks for n in t.child_nurseries)
            )
            forced.append(task.name)
            trio.lowlevel.reschedule(task, outcome.Error(EndedByForce()))
            self._wait_for_the_end()
        return forced

    def _take_apart(self) -> None:
        """Drop the run without its tasks' consent. Python's complaints would only repeat it."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._queue.clear()
                del self.nursery
                gc.collect()
        finally:
            sys.unraisablehook = hook
