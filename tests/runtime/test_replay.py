"""Releasing a key with its dead letters: order, budgets, failures, crashes, other consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import (
    Broker,
    MemoryConfig,
    MessageMetadata,
    Outcome,
    Reject,
    RequestTimeout,
    Retry,
    SequencedTopic,
    open_broker,
)
from shove_actors.messaging import MSG_ID, encode_headers

from .fixtures import Clock
from .test_fail_all import ledger, orders, settled, story
from .world import Journal, Order, Script, World, burying, consuming, running


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


# ---------------------------------------------------------------------------- bad days


Handler = Callable[[Order, MessageMetadata], Any]


async def run_one(
    world: World, topic: SequencedTopic[Order], name: str, handler: Handler, seconds: float
) -> None:
    """One process with a name, for that long."""
    assert world.memory is not None
    with trio.move_on_after(seconds + 60):
        async with open_broker(MemoryConfig(server=world.memory, name=name)) as broker:
            async with consuming(broker, topic, handler, max_retries=1, ack_wait=10.0):
                await trio.sleep(seconds)


async def test_a_crash_goes_on_with_what_is_left(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    runs: list[tuple[str, str, int]] = []

    def handler(who: str) -> Handler:
        async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
            runs.append((who, order.name, metadata.retry_count))
            if who == "A" and order.name == "2":
                memory.faults.crash("A")
                await trio.sleep_forever()
            return Outcome.ACK

        return handle

    async with memory_world.broker(topic) as broker:
        await poison(memory_world, broker, topic, "1", "2", "3")
        assert await broker.release(topic, "k", replay=True)
        await broker.publisher().publish(topic, Order("4", "k"))
        await run_one(memory_world, topic, "A", handler("A"), 5)
        assert [name for name, _ in story(await memory_world.kept(broker, topic.topology.dlq))] == [
            "2",
            "3",
        ]
        await run_one(memory_world, topic, "B", handler("B"), 30)
        assert await broker.poisoned(topic) == ()
        assert await memory_world.kept(broker, topic.topology.dlq) == []
    assert [(who, name) for who, name, _ in runs] == [
        ("A", "1"), ("A", "2"), ("B", "2"), ("B", "3"), ("B", "4"),
    ]  # fmt: skip


async def test_a_letter_that_ends_its_process_every_time_is_found_out(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """`max_retries + 2` times, as any message; the letter behind it is not to blame."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    runs: list[str] = []

    def handler(who: str) -> Handler:
        async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
            runs.append(order.name)
            if order.name == "2":
                memory.faults.crash(who)
                await trio.sleep_forever()
            return Outcome.ACK

        return handle

    async with memory_world.broker(topic) as broker:
        await poison(memory_world, broker, topic, "1", "2", "3")
        assert await broker.release(topic, "k", replay=True)
        for number in range(6):
            await run_one(memory_world, topic, f"p{number}", handler(f"p{number}"), 40)
        (found,) = await broker.poisoned(topic)
        assert (found.sequence, found.reason) == (2, "crashed")
        assert await memory_world.kept(broker, topic.queue) == []
        # Another request begins anew.
        script = Script()
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, script, max_retries=1):
            await until_released(broker, topic)
    assert runs == ["1"] + ["2"] * 3
    assert names(script) == ["2", "3"]
    assert script.attempts("2") == [0]


@pytest.mark.parametrize("hard", [False, True])
async def test_a_drain_hands_the_rest_back(world: World, clock: Clock, hard: bool) -> None:
    """The letter in hand is finished (or, in a hard stop, given back), the rest is for the next."""
    topic = ledger(world)
    script, started, go_on = Script(), trio.Event(), trio.Event()
    runs: list[str] = []

    async def slow(order: Order) -> Outcome:
        runs.append(order.name)
        started.set()
        await go_on.wait()
        return Outcome.ACK

    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2", "3")
        assert await broker.release(topic, "k", replay=True)
        await broker.publisher().publish(topic, Order("4", "k"))
        group = broker.consumer_group()
        group.register(topic, slow)
        async with running(group) as run:
            await started.wait()
            group.hard_stop() if hard else group.stop()
            if not hard:
                await trio.sleep(0.05)
                go_on.set()
            await run.end()
        assert runs == ["1"]
        left = [name for name, _ in story(await world.kept(broker, topic.topology.dlq))]
        assert left == (["1", "2", "3"] if hard else ["2", "3"])
        async with consuming(broker, topic, script):
            await script.journal.until(len(left) + 1)
            await until_released(broker, topic)
            await settled(world, broker, topic)
    assert script.journal.entries == [(name, 0) for name in [*left, "4"]]


async def test_a_drain_while_a_letter_waits_for_its_retry(world: World, clock: Clock) -> None:
    topic = ledger(world, hold=30.0)
    first, script = Script(outcomes={"1": [Outcome.RETRY]}), Script()
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2")
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, first) as run:
            await first.journal.until(1)
            await trio.sleep(0.2)
            with trio.fail_after(5):
                assert (await run.stop()).exit_code == 0
        async with consuming(broker, topic, script, max_retries=1):
            await script.journal.until(2)
            await until_released(broker, topic)
    # One failure is remembered.
    assert script.journal.entries == [("1", 1), ("2", 0)]


async def test_a_lost_lease_ends_the_letters_handler_before_another_begins(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """(I) holds for letters: the lease is the control message's."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    trace: Journal[tuple[str, float]] = Journal()

    async def slow(order: Order) -> Outcome:
        trace.add((f"first starts {order.name}", trio.current_time()))
        try:
            await trio.sleep_forever()
        finally:
            trace.add((f"first ends {order.name}", trio.current_time()))
        raise AssertionError

    async def other(order: Order) -> Outcome:
        trace.add((f"second starts {order.name}", trio.current_time()))
        return Outcome.ACK

    config = MemoryConfig(server=memory, name="first")
    async with open_broker(config) as one, memory_world.broker(topic) as two:
        await poison(memory_world, two, topic, "1", "2")
        assert await two.release(topic, "k", replay=True)
        async with consuming(one, topic, slow, ack_wait=12, handler_timeout=None):
            await trace.until(1)
            await trio.sleep(40)  # the lease of the control message is renewed all the while
            assert len(trace) == 1
            memory.faults.disconnect("first")
            async with consuming(two, topic, other, ack_wait=12):
                await trace.until(4)
                await until_released(two, topic)
    assert [what for what, _ in trace.entries] == [
        "first starts 1",
        "first ends 1",
        "second starts 1",
        "second starts 2",
    ]


async def test_an_attempt_that_the_lost_lease_ended_is_not_counted(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Its handler turns the cancellation into an error; the connection is there all the time."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    script = Script()

    async def stubborn(order: Order) -> Outcome:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("not now")

    async with (
        open_broker(MemoryConfig(server=memory, name="first")) as one,
        memory_world.broker(topic) as two,
    ):
        await poison(memory_world, two, topic, "1")
        assert await two.release(topic, "k", replay=True)
        memory.faults.sometimes(drop_renewal=1.0)
        async with consuming(one, topic, stubborn, ack_wait=12, handler_timeout=None) as run:
            await trio.sleep(10)
            assert run.group.statistics()[topic.queue]["lost"] == 1
            run.group.stop()
        memory.faults.sometimes()
        async with consuming(two, topic, script, ack_wait=12):
            await until_released(two, topic)
    assert script.journal.entries == [("1", 0)]


async def test_each_release_has_a_budget_of_its_own(world: World, clock: Clock) -> None:
    """Also where the request is delivered again, so that notes are read: not those of before."""
    topic = ledger(world, hold=0.05)
    first = Script(outcomes={"1": [Outcome.RETRY] * 2})
    started, last = trio.Event(), Script(outcomes={"1": [Outcome.RETRY]})

    async def hang(order: Order) -> Outcome:
        started.set()
        await trio.sleep_forever()
        raise AssertionError

    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2")
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, first, max_retries=1):
            await first.journal.until(2)
            await settled(world, broker, topic)
        (found,) = await broker.poisoned(topic)
        assert found.reason == "max_retries_exceeded"
        assert await broker.release(topic, "k", replay=True)
        group = broker.consumer_group()
        group.register(topic, hang)
        async with running(group) as run:
            await started.wait()
            group.hard_stop()
            await run.end()
        async with consuming(broker, topic, last, max_retries=1):
            await last.journal.until(3)
            await until_released(broker, topic)
    assert first.journal.entries == [("1", 0), ("1", 1)]
    assert last.journal.entries == [("1", 0), ("1", 1), ("2", 0)]


async def test_a_letter_that_cannot_be_deleted_holds_the_lane(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing later is handled; what was handled is handled again (at least once)."""
    topic = ledger(memory_world)
    script = Script()
    async with memory_world.broker(topic) as broker:
        await poison(memory_world, broker, topic, "1", "2")
        assert await broker.release(topic, "k", replay=True)
        delete, broken = broker.backend.delete_message, True

        async def flaky(stream: str, sequence: int) -> bool:
            if broken:
                raise RequestTimeout("no answer")
            return await delete(stream, sequence)

        monkeypatch.setattr(broker.backend, "delete_message", flaky)
        async with consuming(broker, topic, script):
            await trio.sleep(60)
            assert set(names(script)) == {"1"}
            broken = False
            await until_released(broker, topic)
        assert names(script)[-1] == "2"
    assert "was handled could not be deleted" in caplog.text


async def test_two_processes_one_replay(world: World, clock: Clock) -> None:
    topic = ledger(world, shards=2)
    runs: Journal[str] = Journal()
    busy, worst = 0, 0

    async def handle(order: Order) -> Outcome:
        nonlocal busy, worst
        busy, worst = busy + 1, max(worst, busy + 1)
        await trio.sleep(0.01)
        busy -= 1
        runs.add(order.name)
        return Outcome.ACK

    async with world.broker(topic) as one, world.broker() as two:
        await poison(world, one, topic, *(str(n) for n in range(10)))
        async with consuming(one, topic, handle), consuming(two, topic, handle):
            assert await two.release(topic, "k", replay=True)
            for n in range(10, 15):
                await one.publisher().publish(topic, Order(str(n), "k"))
            await runs.until(15)
            await until_released(one, topic)
    assert runs.entries == [str(n) for n in range(15)]
    assert worst == 1


async def test_where_deleting_is_forbidden_letters_stay_and_are_done(
    server_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator may have set `deny_delete` on the dead-letter queue."""
    world, topic = server_world, ledger(server_world)
    script = Script(outcomes={"3": [Outcome.REJECT]})
    async with world.broker(topic) as broker:
        await poison(world, broker, topic, "1", "2", "3", "4")
        js = broker.backend.js  # type: ignore[attr-defined]
        config = (await js.stream_info(topic.topology.dlq)).config
        await js.update_stream(replace(config, deny_delete=True))
        assert await broker.release(topic, "k", replay=True)
        async with consuming(broker, topic, script):
            await script.journal.until(3)
            await settled(world, broker, topic)
            (found,) = await broker.poisoned(topic)
            assert found.sequence == 3
            assert await broker.release(topic, "k", replay=True)
            await until_released(broker, topic)
        assert len(await world.kept(broker, topic.topology.dlq)) == 4
    assert names(script) == ["1", "2", "3", "3", "4"]
    assert caplog.text.count("could not be deleted") == 4
