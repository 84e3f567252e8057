"""Topics of FAIL_ALL, and what became of their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shove_actors import Broker, SequencedTopic, SequenceFailure, TopologyBuilder
from shove_actors.runtime._replay import KeyGate

from .world import Kept, Order, World


def ledger(
    world: World,
    *,
    shards: int = 1,
    hold: float = 0.2,
    build: Callable[[TopologyBuilder], TopologyBuilder] = lambda b: b.dlq(),
) -> SequencedTopic[Order]:
    builder = TopologyBuilder(world.fresh()).sequenced(SequenceFailure.FAIL_ALL)
    return SequencedTopic(
        Order,
        key=lambda o: o.key,
        topology=build(builder.routing_shards(shards).hold_queue(hold)).build(),
    )


def orders(*names: str, key: str = "k") -> list[Order]:
    return [Order(name, key) for name in names]


def story(letters: list[Kept]) -> list[tuple[str, str]]:
    """Name and reason of each dead letter."""
    return [
        (msgspec.json.decode(m.payload, type=Order).name, m.headers["Shove-Death-Reason"])
        for m in letters
    ]


async def settled(world: World, broker: Broker, topic: SequencedTopic[Order]) -> None:
    for shard in range(topic.topology.routing_shards):
        await world.until_settled(broker, topic.queue, topic.topology.shard_durable(shard))


def gate_of(run: Any) -> KeyGate:
    gate = run.group._registrations[0].gate
    assert isinstance(gate, KeyGate)
    return gate
