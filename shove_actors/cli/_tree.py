"""`shove-actors tree`: what the supervision tree of a broker with a group looks like."""

from __future__ import annotations

import trio

from shove_actors import MemoryConfig, Outcome, open_broker

from ._flights import Flight, flights_topic
from ._render import tree_lines


async def _acknowledge(flight: Flight) -> Outcome:
    return Outcome.ACK


async def _acknowledge_dead(flight: Flight) -> Outcome:
    return Outcome.ACK


async def tree_of_a_broker(shards: int) -> list[str]:
    """Starts a broker in memory with the demonstration's consumers, and draws its tree.

    Raises `UsageError` when `shards` is out of range.
    """
    topic = flights_topic(shards)
    async with open_broker(MemoryConfig()) as broker, trio.open_nursery() as nursery:
        await broker.declare(topic)
        group = broker.consumer_group()
        group.register(topic, _acknowledge)
        group.register_dlq(topic, _acknowledge_dead)
        await nursery.start(group.serve)
        lines = tree_lines(broker.snapshot())
        group.stop()
    return lines
