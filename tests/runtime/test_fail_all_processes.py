"""FAIL_ALL: a key that one process poisoned is poisoned for all, and stays it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from shove_actors import MemoryConfig, Outcome, open_broker

from .fixtures import Clock
from .poisoning import gate_of, ledger, orders, settled, story
from .world import Journal, Order, Script, World, consuming


async def test_poisoned_by_one_process_refused_by_the_other(world: World, clock: Clock) -> None:
    """The race that the look-up is for.

    Both processes know the key as clean: A handled "1" of it, B handled "2". A rejects "3"; the
    next message of the key goes to B. B must not trust what it knew.
    """
    topic = ledger(world)
    runs: Journal[tuple[str, str]] = Journal()

    def handler(who: str) -> Callable[[Order], Any]:
        async def handle(order: Order) -> Outcome:
            runs.add((who, order.name))
            return Outcome.REJECT if order.name == "bad" else Outcome.ACK

        return handle

    async with world.broker(topic) as one, world.broker() as two:
        publisher = one.publisher()
        # B first, alone; then A alone: each has handled a message of the key.
        async with consuming(two, topic, handler("B")) as b:
            await publisher.publish(topic, Order("1", "k"))
            await runs.until(1)
            async with consuming(one, topic, handler("A")):
                sent = 1
                while {who for who, _ in runs.entries} != {"A", "B"}:
                    sent += 1
                    await publisher.publish(topic, Order(str(sent), "k"))
                    await runs.until(sent)
                # B is held off while A poisons the key: whoever takes "bad", the other goes on.
                await publisher.publish(topic, Order("bad", "k"))
                await world.until_kept(one, topic.topology.dlq, 1)
                for number in range(8):
                    await publisher.publish(topic, Order(f"late-{number}", "k"))
                letters = await world.until_kept(one, topic.topology.dlq, 9)
            assert gate_of(b).reads >= 1
    assert [name for _, name in runs.entries if name.startswith("late")] == []
    assert story(letters)[0] == ("bad", "rejected")
    assert {reason for _, reason in story(letters)[1:]} == {"sequence_failed"}


async def test_clean_is_forgotten_when_somebody_else_was_given_a_message(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The same race, step by step: B knows the key as clean, stops asking for a while, A poisons
    it, B goes on with the next message. Without the end of the tenure B would handle it.
    """
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.REJECT if order.name == "bad" else Outcome.ACK

    async with (
        open_broker(MemoryConfig(server=memory, name="A")) as one,
        open_broker(MemoryConfig(server=memory, name="B")) as two,
    ):
        await one.declare(topic)
        async with consuming(two, topic, handle) as b:
            await one.publisher().publish_batch(topic, orders("1", "2", "3"))
            await seen.until(3)
            gate = gate_of(b)
            assert gate.reads == 1, "within a tenure a key is looked up once"
            lane = b.group._registrations[0].lanes[0]
            lane.set_credit(0)
            await trio.sleep(1)
            async with consuming(one, topic, handle):
                await one.publisher().publish(topic, Order("bad", "k"))
                await seen.until(4)
                await memory_world.until_kept(one, topic.topology.dlq, 1)
            lane.set_credit(1)
            await one.publisher().publish(topic, Order("late", "k"))
            letters = await memory_world.until_kept(one, topic.topology.dlq, 2)
            assert gate.reads == 2
    assert seen.entries == ["1", "2", "3", "bad"]
    assert story(letters) == [("bad", "rejected"), ("late", "sequence_failed")]


async def test_poison_outlives_every_process(world: World, clock: Clock) -> None:
    topic = ledger(world)
    script = Script(outcomes={"2": [Outcome.REJECT]})
    for number in range(3):
        async with world.broker(topic) as broker:
            names = ("1", "2") if not number else (str(2 * number + 1), str(2 * number + 2))
            await broker.publisher().publish_batch(topic, orders(*names))
            async with consuming(broker, topic, script):
                await settled(world, broker, topic)
            letters = await world.kept(broker, topic.topology.dlq)
    assert [name for name, _ in script.journal.entries] == ["1", "2"]
    assert [name for name, _ in story(letters)] == ["2", "3", "4", "5", "6"]


async def test_a_stream_made_anew_does_not_forgive(world: World, clock: Clock) -> None:
    """Sequences start over: message 1 of the new stream is not message 1 that poisoned the key."""
    topic = ledger(world)
    script = Script(outcomes={"bad": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        async with consuming(broker, topic, script):
            await publisher.publish(topic, Order("bad", "k"))
            await world.until_kept(broker, topic.topology.dlq, 1)
        await world.delete_stream(broker, topic.queue)
        await broker.declare(topic)
        await publisher.publish(topic, Order("2", "k"))
        async with consuming(broker, topic, script):
            letters = await world.until_kept(broker, topic.topology.dlq, 2)
    assert story(letters) == [("bad", "rejected"), ("2", "sequence_failed")]
    assert [name for name, _ in script.journal.entries] == ["bad"]
