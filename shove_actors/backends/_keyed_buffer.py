"""`LaneBuffer` for a keyed lane: what waits for a worker waits per key (`_key_lanes.py`).

A worker takes the next delivery whose key has nothing in flight. What it has taken is in flight
until `ended`, `drop` or `again`; the lane says when. Waking is that of `LaneBuffer`: one worker at
a time.
"""

from __future__ import annotations

from collections.abc import Hashable

import trio

from shove_actors._errors import UsageError

from ._delivery import Delivery
from ._key_lanes import KeyLanes
from ._lane_buffer import BUSY_S, PAUSE_S, LaneBuffer


class KeyedBuffer(LaneBuffer):
    """Deliveries by key, and the workers that wait for one."""

    __slots__ = ("_max", "lanes")

    def __init__(self, max_in_flight: int) -> None:
        super().__init__()
        self._max = max_in_flight
        #: To be asked, and told, of proofs.
        self.lanes: KeyLanes[Hashable, Delivery] = KeyLanes(max_in_flight)

    def __len__(self) -> int:
        """What waits: for a worker, for its key, or for its next try."""
        return self.lanes.waiting

    @property
    def most_in_flight(self) -> int:
        return self._max

    @property
    def in_flight(self) -> int:
        return self.lanes.in_flight

    @property
    def keys(self) -> int:
        """How many keys are in memory."""
        return len(self.lanes.keys())

    @property
    def next_due(self) -> float:
        return self.lanes.next_due

    def push(self, delivery: Delivery) -> None:
        lanes = self.lanes
        lanes.push(delivery.key, delivery)
        if not self._woken and self._lot and lanes.startable:
            self._wake_one()

    def push_front(self, delivery: Delivery) -> None:
        raise UsageError("a keyed lane gives nothing back to the front: see `again`")

    def ended(self, delivery: Delivery) -> None:
        """It was in flight, and is settled. Its worker looks for the next one itself."""
        self.lanes.ended(delivery.key)

    def drop(self, delivery: Delivery) -> None:
        """It was in flight, and is nobody's any more."""
        self.lanes.drop(delivery.key)
        self._offer()

    def answered(self) -> None:
        """What was asked for is read: keys that have waited for that may go on."""
        self.lanes.answered()
        self._offer()

    def proven(self, key: Hashable) -> None:
        self.lanes.proven(key)
        self._offer()

    def again(self, before: Delivery, after: Delivery, due: float) -> None:
        """It was in flight, and is to be tried again, as `after`."""
        self.lanes.replace(before.key, after)
        self.lanes.again(before.key, due)

    def ripen(self, now: float) -> None:
        if self.lanes.ripen(now):
            self._offer()

    def wind_down(self) -> None:
        """Start nothing more of the keys that have something in flight now."""
        self.lanes.wind_down()

    def go_on(self) -> None:
        """All keys again."""
        self.lanes.go_on()
        self._offer()

    def _offer(self) -> None:
        if not self._woken and self._lot and self.lanes.startable:
            self._wake_one()

    def receive_nowait(self) -> Delivery:
        delivery = self.lanes.take()
        if delivery is not None:
            return delivery
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        raise trio.WouldBlock

    async def receive(self) -> Delivery:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            delivery = self.lanes.take()
            if delivery is not None:
                return delivery
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            await self._lot.park()
            if self._woken:
                self._woken -= 1
                now = trio.current_time()
                if now - self._woken_at > BUSY_S:
                    self.busy_until = now + PAUSE_S

    def wake_next(self) -> bool:
        if self._woken or not self.lanes.startable:
            return True
        if self._lot:
            self._wake_one()
            return True
        return False

    def take_all(self) -> list[Delivery]:
        """Everything that waits; what is in flight stays in flight."""
        return self.lanes.drop_waiting()

    def reset(self) -> list[Delivery]:
        """Everything that waits; what is in flight is nobody's any more."""
        waiting = self.lanes.drop_waiting()
        self.lanes = KeyLanes(self._max)
        return waiting
