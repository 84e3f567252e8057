"""The lane of a consumer that runs."""

from __future__ import annotations

from shove_actors import SequencedTopic, SequenceFailure, TopologyBuilder
from tests.runtime.world import Order


def one_lane(builder: TopologyBuilder) -> SequencedTopic[Order]:
    topology = builder.sequenced(SequenceFailure.SKIP).routing_shards(1)
    return SequencedTopic(
        Order, key=lambda o: o.key, topology=topology.hold_queue(0.2).dlq().build()
    )
