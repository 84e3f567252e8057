"""Releasing a key with its dead letters: crashes, drains, lost leases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors import (
    MemoryConfig,
    MessageMetadata,
    Outcome,
    RequestTimeout,
    SequencedTopic,
    open_broker,
)

from .fixtures import Clock
from .poisoning import ledger, settled, story
from .replaying import names, poison, until_released
from .world import Journal, Order, Script, World, consuming, running

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


async def test_a_letter_does_not_answer_for_those_before_it(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """One process is killed in each letter's first attempt, as it happens to be its turn; the
    request to replay them has been delivered far more often than any letter's budget by then."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    runs: list[str] = []

    def handler(who: str) -> Handler:
        async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
            runs.append(order.name)
            assert metadata.retry_count == 0
            if runs.count(order.name) == 1:
                memory.faults.crash(who)
                await trio.sleep_forever()
            return Outcome.ACK

        return handle

    async with memory_world.broker(topic) as broker:
        await poison(memory_world, broker, topic, *"123456")
        assert await broker.release(topic, "k", replay=True)
        for number in range(7):
            await run_one(memory_world, topic, f"p{number}", handler(f"p{number}"), 40)
        assert await broker.poisoned(topic) == ()
        assert await memory_world.kept(broker, topic.topology.dlq) == []
    assert runs == [name for name in "123456" for _ in range(2)]


async def test_a_later_letter_that_ends_its_process_every_time_is_found_out(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """It is begun in the third delivery of the request, behind one that was hit twice."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    runs: list[str] = []

    def handler(who: str) -> Handler:
        async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
            runs.append(order.name)
            if order.name == "2" or runs.count("1") < 3:
                memory.faults.crash(who)
                await trio.sleep_forever()
            return Outcome.ACK

        return handle

    async with memory_world.broker(topic) as broker:
        await poison(memory_world, broker, topic, "1", "2", "3")
        assert await broker.release(topic, "k", replay=True)
        for number in range(8):
            await run_one(memory_world, topic, f"p{number}", handler(f"p{number}"), 40)
        (found,) = await broker.poisoned(topic)
        assert (found.sequence, found.reason) == (2, "crashed")
        assert await memory_world.kept(broker, topic.queue) == []
    assert runs == ["1"] * 3 + ["2"] * 3


async def test_retries_of_a_letter_outlive_a_killed_process(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """What was noted of an attempt is read, although the letter's own deliveries are counted from
    the one that began it."""
    topic, memory = ledger(memory_world), memory_world.memory
    assert memory is not None
    runs: list[tuple[str, int]] = []

    def handler(who: str) -> Handler:
        async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
            runs.append((order.name, metadata.retry_count))
            if order.name == "2" and metadata.retry_count == 0:
                return Outcome.RETRY
            if runs.count((order.name, metadata.retry_count)) == 1:
                memory.faults.crash(who)
                await trio.sleep_forever()
            return Outcome.ACK

        return handle

    async with memory_world.broker(topic) as broker:
        await poison(memory_world, broker, topic, "1", "2")
        assert await broker.release(topic, "k", replay=True)
        for number in range(4):
            await run_one(memory_world, topic, f"p{number}", handler(f"p{number}"), 40)
        assert await broker.poisoned(topic) == ()
    assert runs == [("1", 0), ("1", 0), ("2", 0), ("2", 1), ("2", 1)]


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
    assert "was handled and could not be deleted within" in caplog.text


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
