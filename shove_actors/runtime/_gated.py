"""A worker's side of the gate that stands before the handlers of FAIL_ALL topics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

from shove_actors._errors import ShoveError
from shove_actors.backends import Delivery, Lane
from shove_actors.messaging import Verdict

from ._handler import Resolved
from ._job import Gate, Job

if TYPE_CHECKING:
    from ._worker import Worker


class Gated(ABC):
    """Part of `Worker`. What is poisoned and how a control message is obeyed the gate knows
    (`_poison.py`, `_replay.py`); here is what becomes of the delivery in hand.
    """

    _job: Job
    _lane: Lane
    _shard: int | None
    _handler: Resolved
    _current: Delivery | None
    #: What handles messages on behalf of a control message that is in hand.
    _inner: Worker | None
    stopping: bool

    async def _look_up(
        self, gate: Gate, delivery: Delivery, message: object, retry_count: int
    ) -> tuple[Delivery, Verdict, int] | Literal[True] | None:
        """True: its key is not poisoned. Else what `_take_until_slow` is to return."""
        try:
            found = await gate.look_up(delivery, message, retry_count)
        except ShoveError as exc:
            await self._unmark()
            self._not_now(delivery, exc)
            return None
        if is_lost(delivery):
            return self._interrupted(delivery, None)
        return True if found is None else (delivery, *found)

    async def _obey(self, gate: Gate, control: Delivery) -> tuple[Delivery, Verdict, int] | None:
        """It keeps the lane closed, and its lease, while what it asks for is done."""
        control.on_lost = self._lease_lost
        done = False
        try:
            if control.num_delivered > 1 and not await self._is_ours(control):
                control.lost = True
            else:
                done = await gate.obey(control, self._shard, self._handler, self._begun)
        except ShoveError as exc:
            self._job.settler.stay(control, exc)
        finally:
            control.on_lost = None
            self._inner = None
        if is_lost(control):
            return self._interrupted(control, None)
        self._current = None
        if done:
            self._job.settler.forget(control.sequence)
            self._lane.ack(control)
        elif not control.settled:
            self._lane.nak(control)
        return None

    def _begun(self, inner: Worker) -> None:
        self._inner = inner
        if self.stopping:
            inner.stop()

    # ------------------------------------------------------------------ the worker's

    @abstractmethod
    def _lease_lost(self) -> None: ...

    @abstractmethod
    def _interrupted(
        self, delivery: Delivery, failure: Exception | None
    ) -> tuple[Delivery, Verdict, int] | None: ...

    @abstractmethod
    def _not_now(self, delivery: Delivery, error: ShoveError) -> None: ...

    @abstractmethod
    async def _unmark(self) -> None: ...

    @abstractmethod
    async def _is_ours(self, delivery: Delivery) -> bool: ...


def is_lost(delivery: Delivery) -> bool:
    # Asked again after the handler has run: the keeper may have marked it meanwhile, which a type
    # checker that remembers the first answer cannot know.
    return delivery.lost
