"""Dead letters of FAIL_ALL that a replay does not take by itself, and who else may take them."""

from __future__ import annotations

import pytest
import trio

from shove_actors import DeadMetadata, MessageMetadata, Outcome
from shove_actors.messaging import mark_name

from .fixtures import Clock
from .poisoning import ledger, orders, settled, story
from .replaying import names, poison, until_released
from .world import Journal, Order, Script, World, burying, consuming, raw_publish

# ---------------------------------------------------------------------------- left over


async def test_letters_left_by_a_plain_release_are_replayed_after_a_mark_by_hand(
    world: World, clock: Clock
) -> None:
    """A mark that names no message is about all letters of the key, whenever they died."""
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2")
        assert await broker.release(topic, "k")
        await poison(world, broker, topic, "x", key="other")
        await poison(world, broker, topic, "3", "4")
        assert await broker.release(topic, "k")
        assert await broker.release(topic, "k", replay=True) is False, "it is not poisoned"
        # nats kv put q-poison k-k "replay what was left"
        found = await broker.backend.read_mark(topic.queue, mark_name("k"))
        assert await broker.backend.write_mark(
            topic.queue, mark_name("k"), b"replay what was left", revision=found.revision
        )
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, script):
            await script.journal.until(4)
            await settled(world, broker, topic)
        assert [found.key for found in await broker.poisoned(topic)] == ["other"]
        left = await world.kept(broker, topic.topology.dlq)
    assert names(script) == ["1", "2", "3", "4"]
    assert [name for name, _ in story(left)] == ["x"]


class Undertaker:
    """Takes what cannot be read as well, and is done with it; keeps the rest."""

    def __init__(self) -> None:
        self.raw: Journal[bytes] = Journal()
        self.read: Journal[str] = Journal()

    async def handle_dead(self, order: Order, metadata: DeadMetadata, context: object) -> Outcome:
        self.read.add(order.name)
        return Outcome.REJECT

    async def handle_undecodable(
        self, payload: bytes, metadata: DeadMetadata, context: object
    ) -> Outcome:
        self.raw.add(payload)
        return Outcome.ACK


async def test_a_letter_that_never_decodes_is_taken_out_by_a_dead_letter_consumer(
    world: World, clock: Clock
) -> None:
    """It stops each replay until then; the rest of its key goes on afterwards."""
    topic = ledger(world)
    script, undertaker = Script(), Undertaker()
    async with world.broker(topic) as broker:
        await raw_publish(broker, topic.topology.shard_subject(0), b"{", {"Shove-Key": "k"})
        await broker.publisher().publish_batch(topic, orders("2", "3"))
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 3)
            assert await broker.release(topic, "k", replay=True)
            await settled(world, broker, topic)
            (found,) = await broker.poisoned(topic)
            assert (found.sequence, found.reason) == (1, "undecodable")
            async with burying(broker, topic, undertaker):
                await undertaker.read.until(2)
                letters = await world.until_kept(broker, topic.topology.dlq, 2)
            assert await broker.release(topic, "k", replay=True)
            await until_released(broker, topic)
    assert undertaker.raw.entries == [b"{"]
    assert [name for name, _ in story(letters)] == ["2", "3"]
    assert names(script) == ["2", "3"]


async def test_a_letter_without_a_key_is_of_no_replay(world: World, clock: Clock) -> None:
    """A foreign producer's: nobody can say what key it is of, so it has poisoned none."""
    topic = ledger(world)
    script, undertaker = Script(), Undertaker()
    async with world.broker(topic) as broker:
        await raw_publish(broker, topic.topology.shard_subject(0), b"{")
        async with consuming(broker, topic, script):
            await world.until_kept(broker, topic.topology.dlq, 1)
        await poison(world, broker, topic, "1", "2")
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, script):
            await until_released(broker, topic)
        (left,) = await world.kept(broker, topic.topology.dlq)
        assert (left.payload, left.headers["Shove-Death-Reason"]) == (b"{", "undecodable")
        async with burying(broker, topic, undertaker):
            await undertaker.raw.until(1)
            await world.until_kept(broker, topic.topology.dlq, 0)
    assert names(script) == ["1", "2"]


# ---------------------------------------------------------------------------- run_dlq beside it


@pytest.mark.parametrize("takes", [True, False])
async def test_a_dead_letter_consumer_beside_a_replay(
    world: World, clock: Clock, takes: bool
) -> None:
    """Each letter is handled by one of them at least, in order by the replay; then newer ones.

    What the other one has acknowledged is done: the replay goes past it. Both may get hold of one
    at the same moment. One that only reports changes nothing.
    """
    topic = ledger(world)
    letters = [str(number) for number in range(1, 9)]
    replayed: Journal[tuple[str, bool]] = Journal()
    buried: Journal[str] = Journal()
    third = trio.Event()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        await trio.sleep(0.03)
        replayed.add((order.name, metadata.replayed))
        if order.name == "3":
            third.set()
        return Outcome.ACK

    async def bury(order: Order) -> Outcome:
        await trio.sleep(0.01)
        buried.add(order.name)
        return Outcome.ACK if takes else Outcome.REJECT

    async with world.broker(topic) as broker:
        await poison(world, broker, topic, *letters)
        assert await broker.release(topic, "k", replay=True)
        await broker.publisher().publish(topic, Order("newer", "k"))
        async with consuming(broker, topic, handle):
            await third.wait()
            async with burying(broker, topic, bury):
                await until_released(broker, topic)
                await settled(world, broker, topic)
        assert await world.kept(broker, topic.topology.dlq) == []
    seen = [name for name, again in replayed.entries if again]
    assert seen == sorted(seen, key=int), "in their order"
    assert len(seen) == len(set(seen))
    assert replayed.entries[-1] == ("newer", False)
    if takes:
        assert set(seen) | set(buried.entries) == set(letters)
    else:
        assert seen == letters


async def test_a_letter_that_both_get_hold_of(world: World, clock: Clock) -> None:
    """The replay fails at it, the other one is done with it: the key stays poisoned, and the next
    replay begins behind it.
    """
    topic = ledger(world)
    script = Script()
    began, taken = trio.Event(), trio.Event()

    async def fail(order: Order) -> Outcome:
        began.set()
        await taken.wait()
        return Outcome.REJECT

    async def bury(order: Order) -> Outcome:
        return Outcome.ACK if order.name == "1" else Outcome.REJECT

    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2", "3")
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, fail):
            await began.wait()
            async with burying(broker, topic, bury):
                await world.until_kept(broker, topic.topology.dlq, 2)
            taken.set()
            await settled(world, broker, topic)
        (found,) = await broker.poisoned(topic)
        assert found.sequence == 1
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, script):
            await until_released(broker, topic)
        assert await world.kept(broker, topic.topology.dlq) == []
    assert names(script) == ["2", "3"]
