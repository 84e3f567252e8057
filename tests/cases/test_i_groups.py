"""Section I of the cases, as they show in groups. (Of actors alone: `tests/actors`.)"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from shove_actors import MemoryConfig, Outcome, SupervisorOutcome, open_broker
from shove_actors.actors import Crashed, Exited, LifecycleEvent
from shove_actors.backends import Delivery, Post
from shove_actors.backends.memory import DurableSettings
from shove_actors.messaging import Verdict
from shove_actors.runtime._settle import Settler
from tests.runtime.fixtures import Clock
from tests.runtime.world import (
    Journal,
    Order,
    Script,
    World,
    ack,
    burying,
    consuming,
    running,
)


class Bug(RuntimeError):
    """Not an ordinary error of a handler, but one of the code around it."""


@pytest.fixture
def buggy(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Settling a rejected message crashes its consumer; the times of the crashes."""
    crashes: list[float] = []
    carry_out = Settler.carry_out

    async def crashing(self: Settler, delivery: Delivery, verdict: Verdict, count: int) -> bool:
        if b"poison" in delivery.payload:
            crashes.append(trio.current_time())
            raise Bug(f"crash {len(crashes)}")
        return await carry_out(self, delivery, verdict, count)

    monkeypatch.setattr(Settler, "carry_out", crashing)
    return crashes


async def reject(order: Order) -> Outcome:
    return Outcome.REJECT


# ------------------------------------------------------------------ PC-117


@pytest.mark.parametrize("others", [0, 1, 15])
async def test_pc117_consumer_that_always_crashes(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    buggy: list[float],
    others: int,
) -> None:
    """Paced, bounded, and the end of the group says why."""
    topic, healthy = memory_world.topic(), memory_world.topic()
    async with memory_world.broker(topic, healthy) as broker:
        await broker.publisher().publish(topic, Order("poison"))
        group = broker.consumer_group()
        group.register(topic, reject, max_retries=1000)
        if others:
            group.register(healthy, ack, consumers=others)
        with trio.fail_after(600):
            outcome = await group.run_until(trio.sleep_forever)
        assert outcome.exit_code == 2
        assert outcome.panics == 1
        assert "Bug" in outcome.reasons[0]
        # The broker itself is not impaired.
        script = Script()
        async with consuming(broker, healthy, script):
            await broker.publisher().publish(healthy, Order("x"))
            await script.journal.until(1)
    assert outcome.restarts == len(buggy) - 1
    assert 8 <= len(buggy) <= 50
    gaps = [after - before for before, after in itertools.pairwise(buggy)]
    assert min(gaps) >= 0.15
    assert gaps[0] < gaps[1] < gaps[2] < gaps[3]
    assert max(gaps) <= 6.1


@pytest.mark.parametrize("consumers", [1, 2, 16])
async def test_pc117_consumer_that_crashes_now_and_then_lives(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    buggy: list[float],
    consumers: int,
) -> None:
    """Every ten seconds for an hour: never more than the budget in any minute."""
    topic = memory_world.topic()
    script = Script(outcomes={"poison": [Outcome.REJECT, Outcome.ACK] * 360})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script, consumers=consumers) as run:
            for _ in range(360):
                await trio.sleep(10)
                await broker.publisher().publish(topic, Order("poison"))
            await memory_world.until_kept(broker, topic.queue, 0)
        outcome = await run.end()
    assert len(buggy) == 360
    assert outcome == SupervisorOutcome(restarts=360)


async def test_pc117_server_that_is_down_for_a_while_costs_no_restart(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic()
    script = Script()
    config = MemoryConfig(server=memory_world.memory, name="me")
    async with open_broker(config) as broker, memory_world.broker() as other:
        await broker.declare(topic)
        async with consuming(broker, topic, script) as run:
            memory_world.memory.faults.disconnect("me")
            await trio.sleep(30)
            await other.publisher().publish(topic, Order("x"))
            memory_world.memory.faults.reconnect("me")
            await script.journal.until(1)
        assert await run.end() == SupervisorOutcome()


# ------------------------------------------------------------------ PC-118


async def test_pc118_one_of_four_consumers_dies(
    memory_world: World, autojump_clock: trio.testing.MockClock, buggy: list[float]
) -> None:
    topic = memory_world.topic()
    done: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        await trio.sleep(1)
        if order.name == "poison":
            return Outcome.REJECT if not buggy else Outcome.ACK
        done.add(order.name)
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        names = ["poison", *(str(n) for n in range(40))]
        await broker.publisher().publish_batch(topic, [Order(name) for name in names])
        async with consuming(broker, topic, handle, consumers=4) as run:
            await done.until(40)
            await memory_world.until_kept(broker, topic.queue, 0)
            snapshot = repr(broker.snapshot())
        outcome = await run.end()
    assert len(buggy) == 1
    assert (outcome.restarts, outcome.exit_code) == (1, 0)
    assert f"{topic.queue}-3" in snapshot
    # Forty seconds of work by four: one crash did not stop the others.
    assert trio.current_time() < 16


async def test_pc118_giving_up_is_not_success_and_names_the_child(
    memory_world: World, autojump_clock: trio.testing.MockClock, buggy: list[float]
) -> None:
    topic, healthy = memory_world.topic(), memory_world.topic()
    async with memory_world.broker(topic, healthy) as broker:
        await broker.publisher().publish(topic, Order("poison"))
        group = broker.consumer_group()
        group.register(healthy, ack)
        group.register(topic, reject, max_retries=1000)
        with trio.fail_after(600):
            outcome = await group.run_until(trio.sleep_forever)
    assert outcome.exit_code == 2
    assert f"{topic.queue}-0" in outcome.reasons[0]
    assert "Bug" in outcome.reasons[0]


# ------------------------------------------------------------------ PC-119


@pytest.mark.parametrize("way", ["run_until", "serve"])
async def test_pc119_group_without_workers_returns(
    memory_world: World, autojump_clock: trio.testing.MockClock, way: str
) -> None:
    """Somebody replaces the durable by one that reads something else: nothing can be read."""
    assert memory_world.memory is not None
    server = memory_world.memory
    name = memory_world.fresh()
    topic = memory_world.topic(lambda b: b.nats_subjects([f"{name}.a", f"{name}.b"]).dlq())
    outcomes: list[SupervisorOutcome] = []
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, ack, consumers=3)

        async def run() -> None:
            if way == "serve":
                outcomes.append(await group.serve())
            else:
                outcomes.append(await group.run_until(trio.sleep_forever))

        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await trio.sleep(1)
                durable = topic.topology.durable
                stream = server.require_stream(topic.queue)
                gone = stream.durables.pop(durable)
                gone.close()
                server.open_durable(
                    topic.queue, DurableSettings(name=durable, filter_subject=f"{name}.a")
                )
                server._report_gone([gone])
        # The broker goes on.
        await broker.publisher().publish(topic, Order("x"), subject=f"{name}.a")
    [outcome] = outcomes
    # Not a bug in the code: somebody contradicted the topology.
    assert (outcome.errors, outcome.panics, outcome.exit_code) == (1, 0, 1)
    assert "TopologyError" in outcome.reasons[0]


# ------------------------------------------------------------------ PC-120


async def test_pc120_failure_that_nobody_asked_about_is_reported(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    buggy: list[float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Messages are told, not asked: a publisher's and a consumer's crash reach the listener."""
    assert memory_world.memory is not None
    topic = memory_world.topic()
    events: list[LifecycleEvent] = []
    config = MemoryConfig(server=memory_world.memory)
    with caplog.at_level(logging.ERROR):
        async with open_broker(config, listener=events.append) as broker:
            await broker.declare(topic)
            post, broken = broker.backend.post, True

            def crashing(batch: Sequence[Post]) -> None:
                nonlocal broken
                if broken:
                    broken = False
                    raise Bug("in the publisher")
                post(batch)

            broker.backend.post = crashing  # type: ignore[method-assign]
            await broker.publisher().publish(topic, Order("poison"))
            async with consuming(broker, topic, reject):
                await trio.sleep(1)
    crashed = [
        (event.path, repr(event.exit.error))
        for event in events
        if isinstance(event, Exited) and isinstance(event.exit, Crashed)
    ]
    assert crashed[0][0] == "services/publisher"
    assert "in the publisher" in crashed[0][1]
    assert crashed[1][0].endswith(f"lanes/{topic.queue}-0")
    assert "crash 1" in crashed[1][1]
    assert {path for path, _ in crashed[1:]} == {crashed[1][0]}
    assert "Bug: crash 1" in caplog.text


# ------------------------------------------------------------------ PC-122


@pytest.mark.parametrize("how", ["stop", "hard_stop", "cancelled"])
async def test_pc122_stopping_one_group_touches_no_other(
    world: World, clock: Clock, how: str
) -> None:
    first, second = world.topic(), world.topic()
    one = Script()
    two = Script(outcomes={"retry": [Outcome.RETRY], "bad": [Outcome.REJECT]})
    dead: Journal[str] = Journal()

    async def handle_dead(order: Order) -> Outcome:
        dead.add(order.name)
        return Outcome.ACK

    async with world.broker(first, second) as broker:
        publisher = broker.publisher()
        async with consuming(broker, second, two) as other, burying(broker, second, handle_dead):
            group = broker.consumer_group()
            group.register(first, one)
            with trio.CancelScope() as scope:
                async with running(group):
                    await publisher.publish(first, Order("x"))
                    await one.journal.until(1)
                    scope.cancel() if how == "cancelled" else getattr(group, how)()
                    await trio.lowlevel.checkpoint()
            for name in ("well", "retry", "bad"):
                await publisher.publish(second, Order(name))
            await two.journal.until(4)
            await dead.until(1)
            assert not other.ended.is_set()
            # And the stopped one can be followed by another.
            async with consuming(broker, first, one):
                await publisher.publish(first, Order("y"))
                await one.journal.until(2)
    assert dead.entries == ["bad"]
