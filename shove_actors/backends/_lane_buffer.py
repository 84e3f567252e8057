"""What waits between a backend and the workers of one lane.

Why not a memory channel: a channel hands each message to a parked receiver of its own, so a burst
of 32 messages wakes 32 tasks, and a scheduler pass per message costs as much as the message. Here
a burst wakes *one* worker. It goes on taking messages without waiting for as long as its handlers
finish without waiting; the moment a handler really waits, the worker calls `wake_next` and the
next worker goes on. So handlers run as concurrently as their waiting allows, and a handler that
never waits costs no task switch (`test_burst_of_sync_handlers_wakes_one_worker`).

Invariant: whenever a delivery waits and a worker is parked, one worker has been woken and has not
run yet, or some worker is running and will call `receive_nowait` or `wake_next` before it waits.
"""

from __future__ import annotations

from collections import deque

import trio

from shove_actors._errors import UnavailableError

from ._delivery import Delivery

#: A worker that runs this long after it was woken says that the event loop is busy ...
BUSY_S = 0.0005
#: ... and for this long nobody starts more handlers at once than there are (`runtime/_pacer.py`).
PAUSE_S = 0.01
#: One that runs this long after it was woken has slept through something: a pass of the scheduler
#: does not take as long, and leases may have run out meanwhile.
STOOD_STILL_S = 0.1


class LaneClosed(UnavailableError):
    """The lane was closed; nothing more will come."""


class LaneBuffer:
    """Deliveries that wait for a worker, and the workers that wait for a delivery."""

    __slots__ = ("_ended", "_lot", "_waiting", "_woken", "_woken_at", "busy_until")

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._woken = 0
        self._woken_at = 0.0
        #: Until then the event loop counts as busy: a worker ran late after being woken.
        self.busy_until = float("-inf")
        self._ended: Exception | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def parked(self) -> int:
        return len(self._lot)

    def push(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        if not self._woken and self._lot:
            self._wake_one()

    def push_front(self, delivery: Delivery) -> None:
        self._waiting.appendleft(delivery)
        if not self._woken and self._lot:
            self._wake_one()

    def _wake_one(self) -> None:
        self._woken += len(self._lot.unpark())
        self._woken_at = trio.current_time()

    def receive_nowait(self) -> Delivery:
        if self._waiting:
            return self._waiting.popleft()
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        raise trio.WouldBlock

    async def receive(self) -> Delivery:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._waiting:
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            # Cancelled while parked: `unpark` never chose us, so there is nothing to undo. Chosen
            # and cancelled before running: `park` returns, and we return with the delivery.
            await self._lot.park()
            if self._woken:
                self._woken -= 1
                now = trio.current_time()
                if now - self._woken_at > BUSY_S:
                    self.busy_until = now + PAUSE_S
                if now - self._woken_at > STOOD_STILL_S:
                    # The process was stopped, or somebody blocked, between the wake-up and our
                    # turn: the lease keeper looks first, which it does between two passes.
                    await trio.lowlevel.cancel_shielded_checkpoint()
        return self._waiting.popleft()

    def wake_next(self) -> bool:
        if not self._waiting or self._woken:
            return True
        if self._lot:
            self._wake_one()
            return True
        return False

    def take_all(self) -> list[Delivery]:
        """Everything that waits, for giving it back."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def end(self, error: Exception | None = None) -> None:
        """Nothing more will come: parked workers raise once the buffer is empty."""
        if self._ended is None:
            self._ended = error if error is not None else LaneClosed("the lane is closed")
            self._woken += len(self._lot.unpark_all())
