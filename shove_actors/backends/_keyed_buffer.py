"""`LaneBuffer` for a keyed lane: what waits for a worker waits per key (`_key_lanes.py`).

A worker takes the next delivery whose key has nothing in flight. What it has taken is in flight
until `done` or `again`; the lane says when. Waking is that of `LaneBuffer`: one worker at a time.
"""

from __future__ import annotations

from collections.abc import Hashable

import trio

from ._delivery import Delivery
from ._key_lanes import KeyLanes
from ._lane_buffer import BUSY_S, PAUSE_S, LaneBuffer


class KeyedBuffer(LaneBuffer):
    """Deliveries by key, and the workers that wait for one."""

    __slots__ = ("_keys", "_max")

    def __init__(self, max_in_flight: int) -> None:
        super().__init__()
        self._max = max_in_flight
        self._keys: KeyLanes[Hashable, Delivery] = KeyLanes(max_in_flight)

    def __len__(self) -> int:
        """What waits: for a worker, for its key, or for its next try."""
        return self._keys.waiting

    @property
    def in_flight(self) -> int:
        return self._keys.in_flight

    @property
    def keys(self) -> int:
        """How many keys are in memory."""
        return len(self._keys.keys())

    @property
    def next_due(self) -> float:
        return self._keys.next_due

    def push(self, delivery: Delivery) -> None:
        self._keys.push(delivery.key, delivery)
        self._offer()

    def push_front(self, delivery: Delivery) -> None:
        raise NotImplementedError("a keyed lane gives nothing back to the front: see `again`")

    def settling(self, delivery: Delivery) -> None:
        """It was in flight, and its handler has ended."""
        self._keys.settling(delivery.key)

    def done(self, delivery: Delivery) -> None:
        """It was in flight or settling, and is settled: the next of its key may come."""
        self._keys.done(delivery.key)
        self._offer()

    def again(self, before: Delivery, after: Delivery, due: float) -> None:
        """It was in flight, and is to be tried again, as `after`."""
        self._keys.replace(before.key, after)
        self._keys.again(before.key, due)

    def ripen(self, now: float) -> None:
        if self._keys.ripen(now):
            self._offer()

    def _offer(self) -> None:
        if not self._woken and self._lot and self._keys.startable:
            self._wake_one()

    def receive_nowait(self) -> Delivery:
        delivery = self._keys.take()
        if delivery is not None:
            return delivery
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        raise trio.WouldBlock

    async def receive(self) -> Delivery:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            delivery = self._keys.take()
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
        if self._woken or not self._keys.startable:
            return True
        if self._lot:
            self._wake_one()
            return True
        return False

    def take_all(self) -> list[Delivery]:
        """Everything that waits; what is in flight stays in flight."""
        return self._keys.drop_waiting()

    def reset(self) -> list[Delivery]:
        """Everything that waits; what is in flight is nobody's any more."""
        waiting = self._keys.drop_waiting()
        self._keys = KeyLanes(self._max)
        return waiting
