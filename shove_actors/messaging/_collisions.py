"""Two topics must not share a stream, a durable or a subject (PC-070).

A topic named `orders-dlq` is the same stream and the same durable as the dead letters of
`orders`: each would consume, and acknowledge, the other's messages. Sharing one dead-letter queue
is the same mistake under a better name (SW-15).
"""

from __future__ import annotations

from collections.abc import Iterable

from shove_actors._errors import TopologyError

from ._names import bucket_stream, bucket_subject, shown
from ._subjects import is_literal, overlap
from ._topology import Topology


def check_collisions(topologies: Iterable[Topology]) -> None:
    """Raises `TopologyError` naming both queues and what they share; returns nothing.

    A topology that is given twice is one topology. Durables are named within their stream, so two
    topics that share no stream share no durable.
    """
    distinct = list(dict.fromkeys(topologies))
    streams: dict[str, Topology] = {}
    for topology in distinct:
        for name in (*topology.stream_names(), *topology.note_streams()):
            other = streams.setdefault(name, topology)
            if other is not topology:
                raise TopologyError(_shared_stream(name, other, topology))
    literals: dict[str, Topology] = {}
    patterns: list[tuple[str, Topology]] = []
    for topology in distinct:
        buckets = (topology.poison_bucket, topology.owners_bucket)
        own = tuple(bucket_subject(bucket, ">") for bucket in buckets if bucket is not None)
        for subject in (*topology.publish_subjects, *topology.stream_names()[1:], *own):
            if not is_literal(subject):
                patterns.append((subject, topology))
                continue
            other = literals.setdefault(subject, topology)
            if other is not topology:
                raise TopologyError(_shared_subject(subject, other, subject, topology))
    for index, (pattern, topology) in enumerate(patterns):
        for subject, other in (*literals.items(), *patterns[index + 1 :]):
            if other is not topology and overlap(pattern, subject):
                raise TopologyError(_shared_subject(pattern, topology, subject, other))


def _role(name: str, topology: Topology) -> str:
    if name == topology.queue:
        return "the main stream"
    if topology.poison_bucket is not None and name == bucket_stream(topology.poison_bucket):
        return "the bucket of poisoned keys"
    if topology.owners_bucket is not None and name == bucket_stream(topology.owners_bucket):
        return "the bucket of owners"
    if name in topology.note_streams():
        return "the stream for attempts"
    return "the dead-letter queue" if name == topology.dlq else "a hold queue"


def _shared_stream(name: str, one: Topology, other: Topology) -> str:
    if one.queue == other.queue:
        return (
            f"queue {shown(name)} is declared twice with different topologies: "
            "give both topics the same topology, or different queue names"
        )
    return (
        f"stream {shown(name)} is {_role(name, one)} of queue {shown(one.queue)} and "
        f"{_role(name, other)} of queue {shown(other.queue)}: each would consume the other's "
        "messages. Rename one of them (a dead-letter queue with dlq_named(...))"
    )


def _shared_subject(subject: str, one: Topology, same: str, other: Topology) -> str:
    return (
        f"subject {shown(subject)} of queue {shown(one.queue)} overlaps {shown(same)} of queue "
        f"{shown(other.queue)}: the server binds a subject once. Narrow one of them"
    )
