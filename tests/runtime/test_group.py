"""Groups: one lifetime, and an outcome that tells the truth."""

from __future__ import annotations

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

from .fixtures import Clock
from .test_retry import kinds
from .world import Journal, Order, Script, World, ack, consuming, running

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup
from .slow import Slow

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
        assert not broker.leases._lanes
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
        assert not broker.leases._lanes


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
