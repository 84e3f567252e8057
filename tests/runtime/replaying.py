"""Keys that are poisoned, and released."""

from __future__ import annotations

import trio
import trio.testing

from shove_actors import Broker, Outcome, Reject, SequencedTopic

from .poisoning import settled
from .world import Order, Script, World, consuming


async def poison(
    world: World, broker: Broker, topic: SequencedTopic[Order], *names: str, key: str = "k"
) -> None:
    """The first of these is rejected, so all of them are dead letters afterwards."""
    before = len(await world.kept(broker, topic.topology.dlq))
    for name in names:
        await broker.publisher().publish(topic, Order(name, key), message_id=f"id-{name}")

    async def reject(order: Order) -> Outcome:
        return Reject(reason="not yet")

    async with consuming(broker, topic, reject):
        await world.until_kept(broker, topic.topology.dlq, before + len(names))
        await settled(world, broker, topic)


async def until_released(broker: Broker, topic: SequencedTopic[Order]) -> None:
    with trio.fail_after(20):
        while await broker.poisoned(topic):  # noqa: ASYNC110 - the server tells nobody
            await trio.sleep(0.02)


def names(script: Script) -> list[str]:
    return [name for name, _ in script.journal.entries]
