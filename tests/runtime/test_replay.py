"""Releasing a key with its dead letters: order, budgets, requests, other consumers."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import Broker, Outcome, Reject, Retry, SequencedTopic
from shove_actors.messaging import MSG_ID, encode_headers

from .fixtures import Clock
from .poisoning import ledger, orders, settled, story
from .replaying import names, poison, until_released
from .world import Journal, Order, Script, World, burying, consuming

# ---------------------------------------------------------------------------- order


async def test_letters_come_first_in_order_then_what_is_newer(world: World, clock: Clock) -> None:
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2", "3")
        publisher = broker.publisher()
        # Published before the release, handled by nobody yet: it will be among the letters.
        await publisher.publish(topic, Order("4", "k"))
        assert await broker.release(topic, "k", replay=True)
        await publisher.publish(topic, Order("5", "k"))
        await publisher.publish(topic, Order("elsewhere", "other"))
        async with consuming(broker, topic, script):
            await script.journal.until(6)
            await until_released(broker, topic)
            await settled(world, broker, topic)
        assert await world.kept(broker, topic.topology.dlq) == []
        assert await world.kept(broker, topic.queue) == []
    assert names(script) == ["1", "2", "3", "4", "5", "elsewhere"]
    first = script.seen[0]
    assert [m.delivery_id for m in script.seen[:3]] == ["id-1", "id-2", "id-3"]
    assert [m.replayed for m in script.seen] == [True] * 4 + [False] * 2
    assert {(m.retry_count, m.attempt, m.redelivered, m.key, m.shard) for m in script.seen[:4]} == {
        (0, 1, False, "k", 0)
    }
    assert first.subject == topic.topology.shard_subject(0)
    assert "Shove-Death-Reason" not in first.headers


async def test_only_what_died_since_the_key_was_poisoned(world: World, clock: Clock) -> None:
    """Letters of an earlier time, released without replay, stay where they are."""
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "old-1", "old-2")
        assert await broker.release(topic, "k")
        await poison(world, broker, topic, "x-1", key="x")
        await poison(world, broker, topic, "new-1", "new-2")
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, script):
            await until_released_key(broker, topic, "k")
        letters = await world.kept(broker, topic.topology.dlq)
        assert [found.key for found in await broker.poisoned(topic)] == ["x"]
    assert names(script) == ["new-1", "new-2"]
    assert [name for name, _ in story(letters)] == ["old-1", "old-2", "x-1"]


async def until_released_key(broker: Broker, topic: SequencedTopic[Order], key: str) -> None:
    with trio.fail_after(20):
        while any(found.key == key for found in await broker.poisoned(topic)):  # noqa: ASYNC110
            await trio.sleep(0.02)


async def test_a_letter_that_fails_again_keeps_the_key_poisoned(world: World, clock: Clock) -> None:
    topic = ledger(world)
    script = Script(outcomes={"2": [Reject(reason="still wrong")]})
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2", "3")
        assert await broker.release(topic, "k", replay=True)
        await broker.publisher().publish(topic, Order("4", "k"))
        async with consuming(broker, topic, script) as run:
            await world.until_kept(broker, topic.topology.dlq, 3)
            await settled(world, broker, topic)
            letters = await world.kept(broker, topic.topology.dlq)
            assert [name for name, _ in story(letters)] == ["2", "3", "4"]
            assert names(script) == ["1", "2"]
            (found,) = await broker.poisoned(topic)
            assert (found.sequence, found.message_id) == (2, "id-2")
            assert (found.reason, found.detail) == ("rejected", "still wrong")
            assert letters[2].headers["Shove-Death-Detail"] == (
                "message 2 of this key ended as rejected"
            )
            # Mended, and again: the id of the request is another one, it is not swallowed.
            assert await broker.release(topic, "k", replay=True)
            await script.journal.until(5)
            await until_released(broker, topic)
            assert run.group.statistics()[topic.queue]["dead"] == 1, "only 4 was buried"
        assert await world.kept(broker, topic.topology.dlq) == []
    assert names(script) == ["1", "2", "2", "3", "4"]


async def test_retries_wait_in_place_with_a_fresh_budget(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = ledger(memory_world, hold=5.0)
    script = Script(outcomes={"1": [Outcome.RETRY, ValueError(), Retry(after=60)]})
    async with memory_world.broker(topic) as broker:
        # Dies of its retries, so its headers and notes tell of a budget that is used up.
        stubborn = Script(outcomes={"1": [Outcome.RETRY] * 4})
        await broker.publisher().publish_batch(topic, orders("1", "2"))
        async with consuming(broker, topic, stubborn, max_retries=3):
            letters = await memory_world.until_kept(broker, topic.topology.dlq, 2)
        assert letters[0].headers["Shove-Retry-Count"] == "3"
        assert await broker.release(topic, "k", replay=True)
        await broker.publisher().publish(topic, Order("neighbour", "other"))
        async with consuming(broker, topic, script, max_retries=3, ack_wait=10):
            await script.journal.until(6, within=200)
            await settled(memory_world, broker, topic)
        assert await memory_world.kept(broker, topic.topology.dlq) == []
    assert script.journal.entries == [
        ("1", 0), ("1", 1), ("1", 2), ("1", 3), ("2", 0), ("neighbour", 0),
    ]  # fmt: skip
    gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
    assert gaps[:3] == pytest.approx([5, 5, 60])
    assert gaps[3:] == pytest.approx([0, 0], abs=0.5)


@pytest.mark.parametrize("how", ["timeout", "raises"])
async def test_a_letter_has_the_handlers_limits(
    memory_world: World, autojump_clock: trio.testing.MockClock, how: str
) -> None:
    topic = ledger(memory_world)
    runs: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        runs.add(order.name)
        if how == "raises":
            raise ValueError("again")
        await trio.sleep_forever()
        raise AssertionError

    async with memory_world.broker(topic) as broker:
        await poison(memory_world, broker, topic, "1", "2")
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, handle, max_retries=2, handler_timeout=1.0):
            await runs.until(3)
            await settled(memory_world, broker, topic)
            await trio.sleep(60)
        (found,) = await broker.poisoned(topic)
    assert runs.entries == ["1"] * 3
    assert (found.sequence, found.reason) == (1, "max_retries_exceeded")
    assert found.cause == {"timeout": "timeout", "raises": "raised"}[how]


async def test_letters_that_did_not_decode_are_replayed_once_they_do(
    world: World, clock: Clock
) -> None:
    class Later(msgspec.Struct):
        name: str
        key: str
        added: int

    old = ledger(world)
    new = SequencedTopic(Later, key=lambda o: o.key, topology=old.topology)
    script, seen = Script(), Journal[tuple[str, int]]()

    async def handle(order: Later) -> Outcome:
        seen.add((order.name, order.added))
        return Outcome.ACK

    async with world.broker(old) as broker:
        publisher = broker.publisher()
        # Published by the old version, consumed by the new one, that is stricter.
        await publisher.publish(old, Order("1", "k"))
        await publisher.publish(new, Later("2", "k", 2))
        async with consuming(broker, new, handle):
            letters = await world.until_kept(broker, old.topology.dlq, 2)
        assert [m.headers["Shove-Death-Reason"] for m in letters] == [
            "undecodable",
            "sequence_failed",
        ]
        assert await broker.release(old, "k", replay=True)
        async with consuming(broker, old, script):
            await script.journal.until(2)
            await until_released(broker, old)
    assert names(script) == ["1", "2"]
    assert len(seen) == 0


# ---------------------------------------------------------------------------- requests


async def test_a_repeated_request_is_swallowed(world: World, clock: Clock) -> None:
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1")
        assert await broker.release(topic, "k", replay=True)
        assert await broker.release(topic, "k", replay=True)
        assert len(await world.kept(broker, topic.queue)) == 1
        async with consuming(broker, topic, script):
            await script.journal.until(1)
            await until_released(broker, topic)
            assert await broker.release(topic, "k", replay=True) is False
    assert names(script) == ["1"]


async def test_released_before_the_request_arrives(world: World, clock: Clock) -> None:
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1")
        assert await broker.release(topic, "k", replay=True)
        assert await broker.release(topic, "k")
        await broker.publisher().publish(topic, Order("2", "k"))
        async with consuming(broker, topic, script) as run:
            await script.journal.until(1)
            await settled(world, broker, topic)
            # Control messages are nobody's outcome.
            counts = run.group.statistics()[topic.queue]
            assert counts["ack"] == 1
            assert "stuck" not in counts
        assert len(await world.kept(broker, topic.topology.dlq)) == 1
    assert names(script) == ["2"]


async def test_released_without_replay_while_a_replay_fails(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The operator's later word counts: the key is not poisoned again by the letter."""
    topic = ledger(memory_world)
    started, go_on = trio.Event(), trio.Event()

    async def handle(order: Order) -> Outcome:
        if order.name == "1":
            started.set()
            await go_on.wait()
            return Outcome.REJECT
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await poison(memory_world, broker, topic, "1", "2")
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, handle):
            await started.wait()
            assert await broker.release(topic, "k")
            go_on.set()
            await settled(memory_world, broker, topic)
        assert await broker.poisoned(topic) == ()
        assert len(await memory_world.kept(broker, topic.topology.dlq)) == 2


# ---------------------------------------------------------------------------- other consumers


async def test_letters_that_a_dead_letter_consumer_acknowledged_are_done(
    world: World, clock: Clock
) -> None:
    topic = ledger(world)
    script, buried = Script(), Journal[str]()

    async def bury(order: Order) -> Outcome:
        buried.add(order.name)
        return Outcome.ACK if order.name == "2" else Outcome.REJECT

    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2", "3")
        async with burying(broker, topic, bury):
            await buried.until(3)
            await world.until_kept(broker, topic.topology.dlq, 2)
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, script):
            await script.journal.until(2)
            await until_released(broker, topic)
        assert await world.kept(broker, topic.topology.dlq) == []
        # And the other way round: it is not told of what was replayed.
        async with burying(broker, topic, bury):
            await world.until_settled(broker, str(topic.topology.dlq))
    assert names(script) == ["1", "3"]
    assert len(buried) == 3


async def test_a_letter_stored_twice_is_handled_once(world: World, clock: Clock) -> None:
    """Buried again after the duplicate window: two copies of one message."""
    topic = ledger(world)
    script = Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2")
        first = (await world.kept(broker, topic.topology.dlq))[0]
        headers = {**first.headers, MSG_ID: "stored-again"}
        await broker.publish_service.publish(
            str(topic.topology.dlq), first.payload, encode_headers(headers)
        )
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, script):
            await script.journal.until(2)
            await until_released(broker, topic)
        assert await world.kept(broker, topic.topology.dlq) == []
    assert names(script) == ["1", "2"]
