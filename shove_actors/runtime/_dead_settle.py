"""Settling dead letters: the end of the line, where nothing may be destroyed."""

from __future__ import annotations

import logging

from shove_actors._log import about
from shove_actors.backends import Delivery
from shove_actors.messaging import DeathReason, Discard, Verdict

from ._settle import Settler

logger = logging.getLogger("shove_actors.dead_letters")


class DeadSettler(Settler):
    """As `Settler`, but giving up leaves the dead letter in its stream and says so.

    The dead-letter stream keeps messages by its limits, not until they are acknowledged: an
    acknowledgement moves the durable on, so that one unreadable letter neither blocks the others
    nor comes back for ever, and the letter stays to be inspected, exported and replayed (PC-083,
    PC-084, SW-14).
    """

    async def carry_out(self, delivery: Delivery, verdict: Verdict, retry_count: int) -> bool:
        if isinstance(verdict, Discard):
            what = (
                "does not decode"
                if verdict.reason is DeathReason.UNDECODABLE
                else f"could not be handled ({verdict.reason}: {verdict.detail or verdict.cause})"
            )
            logger.error(
                "dead letter %s:%d %s; it stays in the stream %s under that sequence. It can be "
                "exported and replayed from there; `handle_undecodable` of the handler would get "
                "what does not decode",
                delivery.stream,
                delivery.sequence,
                what,
                delivery.stream,
                extra=about(
                    "dead_letter_kept",
                    queue=delivery.stream,
                    sequence=delivery.sequence,
                    reason=verdict.reason.value,
                ),
            )
            delivery.lane.ack(delivery)
            if self.observer is not None:
                self.observer.settled(verdict)
            self.counts["kept"] = self.counts.get("kept", 0) + 1
            return True
        return await super().carry_out(delivery, verdict, retry_count)
