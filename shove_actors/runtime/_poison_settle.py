"""Settling on a FAIL_ALL topic: the key is poisoned before its message goes anywhere."""

from __future__ import annotations

import trio

from shove_actors._errors import PublishRefused, ShoveError
from shove_actors.backends import Delivery
from shove_actors.messaging import Dead, Discard, Topology, Verdict

from ._poison import PoisonGate
from ._publish_service import PublishService
from ._settle import SETTLE_BUDGET_S, Settler


class PoisonSettler(Settler):
    """As `Settler`; each final end is recorded first. See `_poison.py` for the order and why."""

    def __init__(self, topology: Topology, publisher: PublishService, gate: PoisonGate) -> None:
        super().__init__(topology, publisher)
        self._gate = gate

    async def carry_out(self, delivery: Delivery, verdict: Verdict, retry_count: int) -> bool:
        if isinstance(verdict, Discard):
            # Nothing to store, for want of a dead-letter queue; the key fails all the same.
            failure: Exception = TimeoutError(f"no answer within {SETTLE_BUDGET_S:g} s")
            with trio.move_on_after(SETTLE_BUDGET_S, shield=True) as scope:
                try:
                    verdict, retry_count, _ = await self._gate.condemn(
                        delivery, verdict, retry_count
                    )
                except ShoveError as exc:
                    failure = exc
                    scope.cancel()
            if scope.cancel_called:
                self.stay(delivery, failure)
                return False
        return await super().carry_out(delivery, verdict, retry_count)

    async def _bury(
        self, delivery: Delivery, verdict: Dead, retry_count: int, key: str | None = None
    ) -> None:
        condemned, retry_count, key = await self._gate.condemn(delivery, verdict, retry_count)
        assert isinstance(condemned, Dead)  # the topic has a dead-letter queue
        if delivery.lost:
            # While the record was on its way. Somebody else may have settled the message since,
            # and a letter of a message that went well would be handled again by a replay.
            raise PublishRefused(
                "its lease was lost while its key was poisoned; whoever has the message next "
                "finds the record"
            )
        await super()._bury(delivery, condemned, retry_count, key)
