"""Topics that are audited, and a sink that keeps what it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shove_actors import AuditRecord, SequencedTopic, SequenceFailure, Topic, TopologyBuilder

from .world import Journal, Order, World

KINDS = ["holds", "no holds", "sequenced"]


def topic_of(world: World, kind: str) -> Topic[Order]:
    if kind == "sequenced":
        topology = (
            TopologyBuilder(world.fresh())
            .sequenced(SequenceFailure.SKIP)
            .routing_shards(1)
            .hold_queue(0.1)
            .dlq()
            .build()
        )
        return SequencedTopic(Order, key=lambda o: o.key, topology=topology)
    return world.topic() if kind == "holds" else world.topic(lambda b: b.dlq())


@dataclass
class Sink:
    """Keeps records; fails as often as it is told first."""

    failures: int = 0
    records: Journal[AuditRecord[Any]] = field(default_factory=Journal)
    calls: int = 0

    async def audit(self, record: AuditRecord[Any]) -> None:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the audit database is down")
        self.records.add(record)

    def outcomes(self) -> list[tuple[str, str]]:
        return [(r.outcome.name, r.cause) for r in self.records.entries]

    def traces(self) -> set[str]:
        return {r.trace_id for r in self.records.entries}
