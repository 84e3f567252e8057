"""Time-outs of handlers: one timer for all of a registration, however many run.

All handlers of a registration have the same time-out, so in the order in which they began to wait
they also run out. A dict keeps that order; one task sleeps until the first of them is due. A
handler that begins and ends costs one insertion and one deletion, where a deadline of its own on a
cancel scope costs two trips through Trio's timer heap.

The task wakes at most once per time-out length while handlers come and go, and not at all while
none runs (`test_handler_clock_*`).
"""

from __future__ import annotations

from typing import Protocol

import trio


class Timed(Protocol):
    def time_out(self) -> None: ...


class HandlerClock:
    """`begin` when a handler first waits, `end` when it is over. `timeout_s=None`: no limit."""

    __slots__ = ("_parked", "_running", "timeout_s")

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._running: dict[Timed, float] = {}
        self._parked: trio.lowlevel.Task | None = None

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, worker: Timed) -> None:
        if self.timeout_s is None:
            return
        self._running[worker] = trio.current_time() + self.timeout_s
        if self._parked is not None:
            task, self._parked = self._parked, None
            trio.lowlevel.reschedule(task)

    def end(self, worker: Timed) -> None:
        self._running.pop(worker, None)

    async def run(self) -> None:
        """The timer. Without it running, nothing times out."""
        if self.timeout_s is None:
            await trio.sleep_forever()
        while True:
            head = next(iter(self._running), None)
            if head is None:
                self._parked = trio.lowlevel.current_task()

                def abort(_: object) -> trio.lowlevel.Abort:
                    self._parked = None
                    return trio.lowlevel.Abort.SUCCEEDED

                await trio.lowlevel.wait_task_rescheduled(abort)
                continue
            due = self._running[head]
            if due > trio.current_time():
                await trio.sleep_until(due)
            elif self._running.pop(head, None) is not None:
                head.time_out()
