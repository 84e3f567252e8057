"""What the demonstration's consumers do with a flight and with a dead letter."""

from __future__ import annotations

import trio

from shove_actors import DeadMetadata, MessageMetadata, Outcome, Reject

from ._flights import Flight
from ._journal import Dead, Ended, Journal, Started, now

NEVER_DEPARTED = Reject(reason="never departed")


class FlightHandler:
    """Rejects what never departed; takes `work_s` seconds for each flight."""

    def __init__(self, journal: Journal, work_s: float = 0.0) -> None:
        self._journal = journal
        self._work_s = work_s

    async def handle(self, flight: Flight, metadata: MessageMetadata) -> Outcome:
        sequence, shard = metadata.sequence, metadata.shard
        assert shard is not None
        write = self._journal.write
        write(
            Started(
                row=flight.row,
                key=flight.tailnum,
                sequence=sequence,
                shard=shard,
                delivered=metadata.num_delivered,
                at=now(),
            )
        )
        name, woke = "interrupted", 0
        try:
            if self._work_s > 0:
                await trio.sleep(self._work_s)
                woke = now()
            outcome = Outcome.ACK if flight.departed else NEVER_DEPARTED
            name = outcome.name
        finally:
            write(Ended(row=flight.row, sequence=sequence, outcome=name, at=now(), woke=woke))
        return outcome


class DeadHandler:
    """Notes every dead letter; they stay in their stream."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def handle_dead(self, flight: Flight, metadata: DeadMetadata) -> Outcome:
        self._journal.write(
            Dead(
                row=flight.row,
                sequence=metadata.original_sequence or 0,
                reason=metadata.reason,
                at=now(),
            )
        )
        return Outcome.ACK
