"""Groups: one lifetime, an orderly drain, an outcome that tells the truth."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

import pytest
import trio
import trio.testing

from shove_actors import (
    Broker,
    BrokerClosed,
    ConsumerSupervisor,
    DeadMetadata,
    MemoryConfig,
    Outcome,
    SupervisorOutcome,
    TopicNotDeclared,
    UsageError,
    open_broker,
)
from shove_actors.runtime import ConsumerGroup
from tests.support import wait_until

from .fixtures import Clock
from .test_retry import kinds
from .world import SOON_S, Journal, Order, Script, World, ack, consuming, running, until

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


class Slow:
    """A handler that waits until it is let go; and whether it was cancelled."""

    def __init__(self) -> None:
        self.started: Journal[str] = Journal()
        self.let_go = trio.Event()
        self.cancelled: list[str] = []
        self.finished: list[str] = []

    async def handle(self, message: Order) -> Outcome:
        self.started.add(message.name)
        try:
            await self.let_go.wait()
        except trio.Cancelled:
            self.cancelled.append(message.name)
            raise
        self.finished.append(message.name)
        return Outcome.ACK


# ------------------------------------------------------------------ misuse


async def test_one_queue_is_registered_once(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, ack)
        with pytest.raises(UsageError, match="registered in this group already"):
            group.register(topic, ack)
        # Its dead letters are another queue.
        group.register_dlq(topic, ack)
        with pytest.raises(UsageError, match="registered in this group already"):
            group.register_dlq(topic, ack)


async def test_a_group_is_started_once(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, other = memory_world.topic(), memory_world.topic()
    async with memory_world.broker(topic, other) as broker:
        group = broker.consumer_group()
        with pytest.raises(UsageError, match="nothing is registered"):
            await group.serve()
        group.register(topic, ack)
        async with running(group):
            with pytest.raises(UsageError, match="has been started"):
                await group.serve()
            with pytest.raises(UsageError, match="has been started"):
                group.register(other, ack)
        with pytest.raises(UsageError, match="has been started"):
            await group.serve()
        # The second attempts did no harm to the first.
        assert group.outcome.is_clean


async def test_start_fails_with_the_reason_and_not_in_a_group(world: World, clock: Clock) -> None:
    declared, missing = world.topic(), world.topic()
    async with world.broker(declared) as broker:
        for start in ("serve", "run_until"):
            group = broker.consumer_group()
            group.register(declared, ack)
            group.register(missing, ack)
            with pytest.raises(TopicNotDeclared, match=missing.queue):
                await getattr(group, start)()
        # Nothing of the group that did not start is left behind.
        assert broker.leases._lanes == set()
        script = Script()
        async with consuming(broker, declared, script):
            await broker.publisher().publish(declared, Order("x"))
            await script.journal.until(1)


async def test_stop_before_the_start_is_a_short_run(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, ack)
        group.stop()
        with trio.fail_after(10):
            assert (await group.serve()).is_clean


async def test_groups_end_with_their_broker(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Left running when the block ends: it is drained, and says that it was ended."""
    topic = memory_world.topic()
    slow = Slow()
    outcomes: list[SupervisorOutcome] = []

    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        outcomes.append(await group.serve(task_status=task_status))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with memory_world.broker(topic) as broker:
                group = broker.consumer_group()
                group.register(topic, slow)
                await nursery.start(serve)
                await broker.publisher().publish(topic, Order("x"))
                await slow.started.until(1)
                slow.let_go.set()
    assert slow.finished == ["x"]
    [outcome] = outcomes
    assert outcome.exit_code == 1
    with pytest.raises(BrokerClosed):
        broker.consumer_group()


# ------------------------------------------------------------------ draining


async def test_drain_lets_running_handlers_finish_and_gives_back_the_rest(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    slow = Slow()
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(6)])
        async with consuming(broker, topic, slow, consumers=2, prefetch=3) as run:
            await slow.started.until(2)
            await world.until_in_hand(broker, topic.queue, held=6)
            run.group.stop()
            lane = run.group._registrations[0].lanes[0]
            await until(lambda: len(lane.held) == 2)
            assert not run.ended.is_set()
            slow.let_go.set()
            outcome = await run.end()
        assert outcome == SupervisorOutcome()
        assert outcome.exit_code == 0
        assert len(slow.started) == 2
        assert len(await world.kept(broker, topic.queue)) == 4


async def test_drain_timeout_cancels_and_gives_back_without_counting(
    world: World, clock: Clock
) -> None:
    topic = world.topic()
    slow, second = Slow(), Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, slow, drain_timeout=0.2, ack_wait=60) as run:
            await slow.started.until(1)
            before = trio.current_time()
            outcome = await run.stop()
        assert trio.current_time() - before >= 0.19
        assert (outcome.timed_out, outcome.exit_code) == (True, 3)
        assert (outcome.errors, outcome.panics) == (0, 0)
        assert slow.cancelled == ["x"]
        async with consuming(broker, topic, second, ack_wait=60):
            await second.journal.until(1)
            assert trio.current_time() - before < SOON_S
    [metadata] = second.seen
    assert metadata.retry_count == 0


@pytest.mark.parametrize("timeout", [0.0, 1.0])
async def test_no_time_out_is_reported_when_nothing_ran(
    memory_world: World, autojump_clock: trio.testing.MockClock, timeout: float
) -> None:
    topic = memory_world.topic()
    script = Script()
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script, drain_timeout=timeout) as run:
            await broker.publisher().publish(topic, Order("x"))
            await script.journal.until(1)
            await memory_world.until_settled(broker, topic.queue)
            assert (await run.stop()).exit_code == 0


async def test_drain_timeout_of_zero_cancels_at_once_and_says_so(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    slow, second = Slow(), Script()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, slow, drain_timeout=0.0) as run:
            await slow.started.until(1)
            before = trio.current_time()
            assert (await run.stop()).exit_code == 3
            assert trio.current_time() == before
        assert slow.cancelled == ["x"]
        async with consuming(broker, topic, second):
            await second.journal.until(1)
        assert second.journal.entries == [("x", 0)]


async def test_hard_stop_cancels_at_once(world: World, clock: Clock) -> None:
    topic = world.topic()
    slow, second = Slow(), Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("1"), Order("2")])
        async with consuming(
            broker, topic, slow, drain_timeout=3600, consumers=2, ack_wait=60
        ) as run:
            await slow.started.until(2)
            run.group.stop()
            run.group.stop()
            await trio.sleep(0.1)
            assert slow.cancelled == []
            run.group.hard_stop()
            run.group.hard_stop()
            outcome = await run.end()
        assert (outcome.timed_out, outcome.exit_code) == (True, 3)
        assert sorted(slow.cancelled) == ["1", "2"]
        async with consuming(broker, topic, second, ack_wait=60):
            await second.journal.until(2)
    assert {count for _, count in second.journal.entries} == {0}


async def test_hard_stop_of_an_idle_group_is_clean(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, ack, drain_timeout=3600) as run:
            run.group.hard_stop()
            assert (await run.end()).exit_code == 0


@pytest.mark.parametrize("how", ["hard stop", "drain timeout"])
@pytest.mark.parametrize("outcome", [Outcome.ACK, Outcome.REJECT, Outcome.RETRY])
async def test_handler_that_ends_with_an_outcome_although_cancelled_is_heard(
    memory_world: World, autojump_clock: trio.testing.MockClock, how: str, outcome: Outcome
) -> None:
    """Its work is done (or refused) for good: doing it again would be wrong."""
    topic = memory_world.topic(lambda b: b.hold_queue(3600).dlq())
    started = trio.Event()

    async def handle(message: Order) -> Outcome:
        started.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return outcome

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        timeout = 3600.0 if how == "hard stop" else 1.0
        async with consuming(broker, topic, handle, drain_timeout=timeout) as run:
            await started.wait()
            run.group.stop() if how == "drain timeout" else run.group.hard_stop()
            assert (await run.end()).timed_out
        places = [topic.queue, topic.topology.holds[0].name, topic.topology.dlq]
        counts = [len(await memory_world.kept(broker, place)) for place in places]
    assert counts == {
        Outcome.ACK: [0, 0, 0], Outcome.RETRY: [0, 1, 0], Outcome.REJECT: [0, 0, 1],
    }[outcome]  # fmt: skip


async def test_cancelled_serve_drains(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    slow = Slow()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("1"), Order("2")])
        group = broker.consumer_group()
        group.register(topic, slow)
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            await slow.started.until(1)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
                slow.let_go.set()
        assert slow.finished == ["1"]
        assert group.outcome.is_clean
        [left] = await memory_world.kept(broker, topic.queue)
        assert topic.decode(left.payload) == Order("2")
        assert broker.groups.children == ()


async def test_cancelled_in_the_middle_of_the_start(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """At any moment of it: nothing stays behind, and the next group works."""
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        for steps in range(12):
            group = broker.consumer_group()
            group.register(topic, ack, consumers=3)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(group.serve)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await trio.sleep(1)
            assert broker.groups.children == ()
            assert broker.leases._lanes == set()
        script = Script()
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("x"))
            await script.journal.until(1)


# ------------------------------------------------------------------ signals


async def test_run_until_any_async_function(world: World, clock: Clock) -> None:
    topic = world.topic()
    script = Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, script)

        async def handled() -> None:
            await script.journal.until(1)

        with trio.fail_after(SOON_S):
            assert (await group.run_until(handled, drain_timeout=5)).exit_code == 0
        assert await world.kept(broker, topic.queue) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_run_until_a_signal_by_default(memory_world: World, number: signal.Signals) -> None:
    topic = memory_world.topic()
    slow = Slow()
    async with memory_world.broker(topic) as broker, trio.open_nursery() as nursery:
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, slow)

        async def send() -> None:
            await slow.started.until(1)
            os.kill(os.getpid(), number)
            await wait_until(lambda: group.stopping)
            slow.let_go.set()

        nursery.start_soon(send)
        with trio.fail_after(SOON_S):
            outcome = await group.run_until()
    assert outcome.exit_code == 0
    assert slow.finished == ["x"]


async def test_second_signal_cancels_handlers_at_once(memory_world: World) -> None:
    topic = memory_world.topic()
    slow = Slow()
    async with memory_world.broker(topic) as broker, trio.open_nursery() as nursery:
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, slow)

        async def send() -> None:
            await slow.started.until(1)
            os.kill(os.getpid(), signal.SIGTERM)
            await wait_until(lambda: group.stopping)
            os.kill(os.getpid(), signal.SIGTERM)

        nursery.start_soon(send)
        with trio.fail_after(SOON_S):
            outcome = await group.run_until(drain_timeout=3600)
    assert outcome.exit_code == 3
    assert slow.cancelled == ["x"]


async def test_failing_signal_function_drains_and_is_raised(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    slow = Slow()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        group = broker.consumer_group()
        group.register(topic, slow)

        async def broken() -> None:
            await slow.started.until(1)
            slow.let_go.set()
            raise ValueError("no signal")

        with pytest.raises(ValueError, match="no signal"):
            await group.run_until(broken)
        assert slow.finished == ["x"]
        assert group.outcome.is_clean


# ------------------------------------------------------------------ several


async def test_many_topics_in_one_group(world: World, clock: Clock) -> None:
    from shove_actors import SequencedTopic, SequenceFailure, TopologyBuilder

    plain = [world.topic() for _ in range(3)]
    sequenced = SequencedTopic(
        Order,
        key=lambda o: o.key,
        topology=TopologyBuilder(world.fresh())
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(4)
        .hold_queue(1)
        .dlq()
        .build(),
    )
    script = Script()
    async with world.broker(*plain, sequenced) as broker:
        for make in (broker.consumer_group, broker.consumer_supervisor):
            group = make()
            for topic in (*plain, sequenced):
                group.register(topic, script)
            script.journal.entries.clear()
            async with running(group):
                for topic in (*plain, sequenced):
                    await broker.publisher().publish(topic, Order("x", "k"))
                await script.journal.until(4)
            assert group.outcome.is_clean
            assert set(group.statistics()) == {t.queue for t in (*plain, sequenced)}
        assert isinstance(group, ConsumerSupervisor)


async def test_two_groups_of_one_topic_share_the_work(world: World, clock: Clock) -> None:
    topic = world.topic()
    one, two = Slow(), Slow()
    async with world.broker(topic) as broker:
        async with consuming(broker, topic, one, prefetch=1):
            async with consuming(broker, topic, two, prefetch=1):
                await broker.publisher().publish_batch(topic, [Order("1"), Order("2")])
                await one.started.until(1)
                await two.started.until(1)
                one.let_go.set()
                two.let_go.set()
                await world.until_kept(broker, topic.queue, 0)
    assert sorted(one.finished + two.finished) == ["1", "2"]


async def test_run_dlq(world: World, clock: Clock) -> None:
    topic = world.topic()
    script = Script(outcomes={"x": [Outcome.REJECT]})
    seen: Journal[tuple[str, object]] = Journal()
    shared = object()

    async def handle_dead(message: Order, metadata: DeadMetadata, context: object) -> Outcome:
        assert metadata.original_queue == topic.queue
        seen.add((metadata.reason, context))
        return Outcome.ACK

    async def enough() -> None:
        await seen.until(1)

    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, script):
            outcome = await broker.run_dlq(
                topic, handle_dead, signal=enough, drain_timeout=5, context=shared, max_retries=1
            )
        assert outcome.is_clean
        with pytest.raises(UsageError, match="no dead-letter queue"):
            await broker.run_dlq(world.topic(lambda b: b), ack)
    assert seen.entries == [("rejected", shared)]


# ------------------------------------------------------------------ the outcome


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (SupervisorOutcome(), 0),
        (SupervisorOutcome(restarts=7), 0),
        (SupervisorOutcome(errors=1), 1),
        (SupervisorOutcome(panics=1), 2),
        (SupervisorOutcome(errors=3, panics=1), 2),
        (SupervisorOutcome(errors=1, panics=1, timed_out=True), 3),
        (SupervisorOutcome(timed_out=True), 3),
    ],
)
def test_the_worst_of_what_happened_is_the_exit_code(outcome: SupervisorOutcome, code: int) -> None:
    assert outcome.exit_code == code
    assert outcome.is_clean is (code == 0)
    assert replace(outcome) == outcome


async def test_start_of_a_consumer_that_fails_fails_the_start_of_the_group(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    made = 0

    def factory() -> object:
        nonlocal made
        made += 1
        if made > 1:
            raise ValueError("no second one")
        return ack

    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, factory=factory, consumers=2)
        with trio.fail_after(600), pytest.raises(ValueError, match="no second one"):
            await group.serve()
        assert broker.groups.children == ()
        assert broker.leases._lanes == set()


async def test_reconnect_limit_ends_the_group_and_the_block(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """When the bridge gives up, everything that needs it ends with its error."""
    from shove_actors import ConnectionError

    assert memory_world.memory is not None
    topic = memory_world.topic()
    outcomes: list[SupervisorOutcome] = []
    with trio.fail_after(60), pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        config = MemoryConfig(server=memory_world.memory, name="me")
        async with open_broker(config) as broker:
            await broker.declare(topic)
            group = broker.consumer_group()
            group.register(topic, ack)
            async with trio.open_nursery() as nursery:
                await nursery.start(group.serve)
                _give_up(broker, ConnectionError("given up"))
                try:
                    await trio.sleep_forever()
                finally:
                    outcomes.append(group.outcome)
    assert caught.value.subgroup(ConnectionError) is not None
    assert isinstance(group, ConsumerGroup)
    assert group.outcome.exit_code != 0


def _give_up(broker: Broker, error: Exception) -> None:
    """What a backend does that has used up its reconnect attempts: its `run` raises."""
    from shove_actors.backends.memory import MemoryBackend

    backend = broker.backend
    assert isinstance(backend, MemoryBackend)

    def serve() -> None:
        raise error

    backend.server.serve = serve  # type: ignore[method-assign]
    backend.ring()


@pytest.mark.parametrize("kind", ["holds", "no holds", "sequenced"])
async def test_being_handed_back_costs_nothing_however_often(
    world: World, clock: Clock, kind: str
) -> None:
    """Six deploys in a row, each in the middle of the work, and not a single retry allowed."""
    topic = kinds(world)[kind]
    script = Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n), "k") for n in range(3)])
        for _ in range(6):
            slow = Slow()
            async with consuming(broker, topic, slow, max_retries=0, drain_timeout=0) as run:
                await slow.started.until(1)
                await run.stop()
            assert slow.finished == []
        async with consuming(broker, topic, script, max_retries=0):
            await script.journal.until(3)
            await world.until_kept(broker, topic.queue, 0)
        assert await world.kept(broker, topic.topology.dlq) == []
    assert sorted(script.journal.entries) == [("0", 0), ("1", 0), ("2", 0)]
