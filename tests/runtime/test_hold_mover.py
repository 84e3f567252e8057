"""Hold movers: from durable state only, in the right order, when due."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors import MemoryConfig, Outcome, Retry, StreamFull, Topic, open_broker
from shove_actors.actors import Context
from shove_actors.backends import Delivery
from shove_actors.messaging import HoldQueue
from shove_actors.runtime._hold_mover import HoldMover

from .fixtures import Clock
from .test_retry import _watch
from .world import Journal, Order, Script, World, ack, consuming, raw_publish


def hold_of(topic: Topic[Order]) -> HoldQueue:
    return topic.topology.holds[0]


async def test_returned_copy_is_stored_before_the_held_one_is_acknowledged(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(5).dlq())
    hold = hold_of(topic).name
    script = Script(outcomes={"x": [Outcome.RETRY]})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("x"))
            await memory_world.until_kept(broker, hold, 1)
        # The group is gone; movers belong to the broker and go on.
        trace: Journal[str] = Journal()
        await _watch(broker, trace)
        await memory_world.until_kept(broker, hold, 0)
        assert trace.entries == [f"post {topic.queue}", f"answer {topic.queue} Stored"]
        [back] = await memory_world.kept(broker, topic.queue)
    assert back.headers["Shove-Retry-Count"] == "1"
    assert trio.current_time() == pytest.approx(5, abs=0.1)


async def test_killed_between_the_two_stores_nothing_twice(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The acknowledgement of the held copy is lost: it comes again, its return has the same id."""
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(1).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY]})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("x"))
            await script.journal.until(1)
            await memory_world.until_kept(broker, hold_of(topic).name, 1)
            await memory_world.until_settled(broker, topic.queue)
        memory_world.memory.faults.drop_next_ack()
        await trio.sleep(60)
        assert await memory_world.kept(broker, hold_of(topic).name) == []
        assert len(await memory_world.kept(broker, topic.queue)) == 1
        async with consuming(broker, topic, script):
            await memory_world.until_kept(broker, topic.queue, 0)
    assert script.attempts("x") == [0, 1]


async def test_without_any_process_held_messages_wait_and_move_when_one_starts(
    world: World, clock: Clock
) -> None:
    topic = world.topic(lambda b: b.hold_queue(0.5).dlq())
    script = Script(outcomes={name: [Outcome.RETRY] for name in "abc"})
    async with world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish_batch(topic, [Order(name) for name in "abc"])
            await script.journal.until(3)
            await world.until_settled(broker, topic.queue)
    stopped = trio.current_time()
    await trio.sleep(1.0)
    async with world.broker() as broker:
        assert len(await world.kept(broker, hold_of(topic).name)) == 3
        async with consuming(broker, topic, script):
            await script.journal.until(6)
    assert sorted(script.journal.entries[3:]) == [("a", 1), ("b", 1), ("c", 1)]
    assert min(script.times[3:]) >= stopped + 1.0


async def test_due_times_follow_the_backends_clock_not_this_process(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """A process that starts in the middle of the delay waits only for the rest of it."""
    topic = memory_world.topic(lambda b: b.hold_queue(100).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY]})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("x"))
            await memory_world.until_kept(broker, hold_of(topic).name, 1)
    await trio.sleep(60)
    async with memory_world.broker() as broker, consuming(broker, topic, script):
        await script.journal.until(2, within=50)
    assert script.times[1] - script.times[0] == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize("killed", [False, True])
async def test_server_restart_returns_nothing_early(
    memory_world: World, autojump_clock: trio.testing.MockClock, killed: bool
) -> None:
    """A server that has forgotten its delays brings held messages back: they are sent to wait."""
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(100).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY]})
    async with memory_world.broker(topic) as broker, consuming(broker, topic, script):
        await broker.publisher().publish(topic, Order("x"))
        await memory_world.until_kept(broker, hold_of(topic).name, 1)
        for _ in range(3):
            await trio.sleep(10)
            memory_world.memory.faults.restart(killed=killed)
        await script.journal.until(2, within=100)
    assert script.times[1] - script.times[0] == pytest.approx(100, abs=0.1)


async def test_two_processes_return_each_message_once(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(5).dlq())
    names = [str(n) for n in range(100)]
    script = Script(outcomes={name: [Outcome.RETRY] for name in names})
    async with memory_world.broker(topic) as one, memory_world.broker() as two:
        async with consuming(one, topic, script), consuming(two, topic, script):
            await one.publisher().publish_batch(topic, [Order(name) for name in names])
            await script.journal.until(200)
            await trio.sleep(200)
    assert len(script.journal) == 200


async def test_full_main_queue_holds_messages_back_without_a_hot_loop(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """They stay in the hold queue, are tried again in growing pauses, and return when it can."""
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(1).dlq())
    hold = hold_of(topic).name
    names = [str(n) for n in range(20)]
    script = Script(outcomes={name: [Outcome.RETRY] for name in names})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish_batch(topic, [Order(name) for name in names])
            await memory_world.until_kept(broker, hold, 20)
        memory_world.memory.faults.refuse_publish(topic.queue, StreamFull("full"))
        trace: Journal[str] = Journal()
        await _watch(broker, trace)
        await trio.sleep(600)
        tries = sum(entry.startswith("post") for entry in trace.entries)
        # Per message: 1, 2, 4, 8, 16, 30, 30 ... seconds apart.
        assert 20 * 10 <= tries <= 20 * 30
        assert len(await memory_world.kept(broker, hold)) == 20
        memory_world.memory.faults.accept_publish(topic.queue)
        await trio.sleep(31)
        assert len(await memory_world.kept(broker, topic.queue)) == 20


async def test_pauses_grow_per_round_not_per_message(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """A short shortage costs a short pause, however many messages met it."""
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(1).dlq())
    names = [str(n) for n in range(50)]
    script = Script(outcomes={name: [Outcome.RETRY] for name in names})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish_batch(topic, [Order(name) for name in names])
            await script.journal.until(50)
            memory_world.memory.faults.refuse_publish(topic.queue, StreamFull("full"), times=50)
            await script.journal.until(100, within=5)


async def test_held_messages_do_not_count_against_the_main_window(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(3600).dlq())
    names = [f"late-{n}" for n in range(50)]
    script = Script(outcomes={name: [Outcome.RETRY] for name in names})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script, prefetch=2):
            await broker.publisher().publish_batch(topic, [Order(name) for name in names])
            await memory_world.until_kept(broker, hold_of(topic).name, 50)
            backlog = await broker.backend.backlog(topic.queue, topic.topology.durable)
            assert backlog is not None
            assert (backlog.pending, backlog.ack_pending) == (0, 0)


async def test_one_mover_per_hold_queue_whatever_is_registered(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, other = memory_world.topic(), memory_world.topic(lambda b: b.hold_queue(1).dlq())
    async with memory_world.broker(topic, other) as broker:
        for _ in range(2):
            async with consuming(broker, topic, ack), consuming(broker, other, ack):
                pass
        names = [*(h.name for h in topic.topology.holds), hold_of(other).name]
        assert [ref.id for ref in broker.movers.children] == names


async def test_movers_outlive_any_number_of_crashes(
    memory_world: World, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would notice a missing mover: messages would just never come back. So it is started
    again for ever, paced, and never takes its siblings with it."""
    topic = memory_world.topic(lambda b: b.hold_queue(1).hold_queue(2).dlq())
    broken = True
    crashes = 0
    move = HoldMover._move

    async def crashing(self: HoldMover, lane: object, batch: object) -> None:
        nonlocal crashes
        if broken and self._hold is topic.topology.holds[0]:
            crashes += 1
            raise RuntimeError("broken")
        await move(self, lane, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(HoldMover, "_move", crashing)
    script = Script(outcomes={"x": [Outcome.RETRY], "y": [Retry(after=2)]})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script) as run:
            await broker.publisher().publish_batch(topic, [Order("x"), Order("y")])
            await script.journal.until(3)
            assert script.journal.entries[2] == ("y", 1)
            await trio.sleep(600)
            assert 50 <= crashes <= 250
            broken = False
            await script.journal.until(4)
            assert script.journal.entries[3] == ("x", 1)
        assert (await run.end()).is_clean


async def test_group_does_not_start_without_its_hold_queue(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """A topic declared by half: said at the start, naming the stream."""
    from shove_actors import TopicNotDeclared

    topic = memory_world.topic(lambda b: b.hold_queue(1).dlq())
    async with memory_world.broker(topic) as broker:
        await memory_world.delete_stream(broker, hold_of(topic).name)
        group = broker.consumer_group()
        group.register(topic, ack)
        with pytest.raises(TopicNotDeclared, match=hold_of(topic).name):
            await group.serve()


async def test_mover_cut_off_from_the_server_goes_on_afterwards(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(5).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY]})
    config = MemoryConfig(server=memory_world.memory, name="one")
    async with open_broker(config) as broker:
        await broker.declare(topic)
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("x"))
            await memory_world.until_kept(broker, hold_of(topic).name, 1)
            memory_world.memory.faults.disconnect("one")
            await trio.sleep(60)
            assert script.attempts("x") == [0]
            memory_world.memory.faults.reconnect("one")
            await script.journal.until(2)
    assert script.attempts("x") == [0, 1]


@pytest.mark.parametrize("name", ["Shove-Retry-Count", "Shove-Defer-Count"])
async def test_counter_beyond_all_bounds_counts_as_none(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """5000 digits are more than `int` reads; they are no reason to crash, or to stay."""
    run, runs = HoldMover.run, 0

    async def counted(self: HoldMover, ctx: Context[None]) -> None:
        nonlocal runs
        runs += 1
        await run(self, ctx)

    monkeypatch.setattr(HoldMover, "run", counted)
    topic = memory_world.topic(lambda b: b.hold_queue(1).dlq())
    async with memory_world.broker(topic) as broker:
        await raw_publish(broker, hold_of(topic).name, b'{"name":"x"}', {name: "1" * 5000})
        async with consuming(broker, topic, Script(outcomes={"x": [Outcome.ACK]})):
            await memory_world.until_kept(broker, hold_of(topic).name, 0)
            await memory_world.until_kept(broker, topic.queue, 0)
        assert runs == 1
        assert broker.publish_service.window.taken == 0


async def test_message_that_cannot_be_handled_stops_nobody_and_takes_no_place(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(1).dlq())
    hold = hold_of(topic).name
    build = HoldMover._header_block
    tries: list[float] = []

    def broken(self: HoldMover, delivery: Delivery) -> bytes:
        if delivery.headers.get("X-Bad"):
            tries.append(trio.current_time())
            raise ValueError("what is in the message: secret")
        return build(self, delivery)

    monkeypatch.setattr(HoldMover, "_header_block", broken)
    names = [str(n) for n in range(20)]
    script = Script(outcomes={name: [Outcome.RETRY] for name in names})
    async with memory_world.broker(topic, max_pending=8) as broker:
        for _ in range(3):
            await raw_publish(broker, hold, b"{}", {"X-Bad": "1"})
        async with consuming(broker, topic, script):
            await broker.publisher().publish_batch(topic, [Order(name) for name in names])
            await script.journal.until(40, within=5)
            await trio.sleep(600)
        assert len(await memory_world.kept(broker, hold)) == 3, "never dropped"
        assert broker.publish_service.window.taken == 0
    assert 3 * 10 <= len(tries) <= 3 * 40, "paced"
    assert "cannot return" in caplog.text
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text
