"""What a publisher has sent."""

from __future__ import annotations

from collections.abc import Sequence

from shove_actors import Broker, SequencedTopic, SequenceFailure, TopologyBuilder
from shove_actors.backends import Post

from .world import Order, World


def ledger(world: World) -> SequencedTopic[Order]:
    builder = TopologyBuilder(world.fresh()).sequenced(SequenceFailure.SKIP).routing_shards(2)
    return SequencedTopic(Order, key=lambda o: o.key, topology=builder.hold_queue(1).dlq().build())


def count_posts(broker: Broker) -> list[int]:
    """The size of each batch that is handed to the backend from now on."""
    sizes: list[int] = []
    post = broker.backend.post

    def counting(batch: Sequence[Post]) -> None:
        sizes.append(len(batch))
        if len(sizes) > 5000:
            # In virtual time a hot loop would never come to an end by itself.
            raise RuntimeError("a hot loop")
        post(batch)

    broker.backend.post = counting  # type: ignore[method-assign]
    return sizes
