"""Publishes the flights in order, and keeps the server's receipts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

from shove_actors import Publisher, SequencedTopic

from ._flights import Flight
from ._journal import Journal, Published, now

#: Flights per batch. The server takes one connection's messages in turn, so acknowledgements of the
#: consumers wait behind a batch: with 512 they got a third of the rate that they get with 128.
BATCH: Final = 128


async def publish_flights(
    publisher: Publisher,
    topic: SequencedTopic[Flight],
    flights: Sequence[Flight],
    journal: Journal,
) -> None:
    """Returns when the server has acknowledged all of them.

    In batches and not through a pipeline: a batch returns a receipt for each message, which is
    the evidence, and it never has two messages of one key under way, so that not even a server
    that is killed in between can make the second be stored first.

    Raises `BatchError` when flights could not be stored within the broker's `publish_timeout`.
    """
    for first in count(0, BATCH):
        batch = flights[first : first + BATCH]
        if not batch:
            return
        receipts = await publisher.publish_batch(topic, batch)
        at = now()
        journal.write(
            *(
                Published(row=flight.row, key=flight.tailnum, sequence=receipt.sequence, at=at)
                for flight, receipt in zip(batch, receipts, strict=True)
            )
        )
