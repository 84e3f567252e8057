"""What a topic has on a server: streams that can be full, durables that can be deleted."""

from __future__ import annotations

from typing import Any

from shove_actors.backends.memory import MemoryServer
from shove_actors.messaging import Topic, bucket_stream, poison_bucket


def streams_of(topic: Topic[Any]) -> list[str]:
    """Its queue, hold queues and dead letters, and its poisoned keys."""
    topology = topic.topology
    found = [topology.queue, *(hold.name for hold in topology.holds)]
    if topology.dlq is not None:
        found.append(topology.dlq)
    if topology.fails_all:
        found.append(bucket_stream(poison_bucket(topology.queue)))
    return found


def durables_of(server: MemoryServer, topic: Topic[Any]) -> list[tuple[str, str]]:
    """Of which stream, and its name."""
    streams = server.streams
    return [(s, name) for s in streams_of(topic) if s in streams for name in streams[s].durables]
