"""A running group grows and shrinks through its public entry point, and never interrupts work."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import pytest
import trio
import trio.testing

from shove_actors import ConnectionError, Outcome, UsageError
from shove_actors.backends import Backlog
from shove_actors.runtime import AutoscalerConfig, Load, ThresholdStrategy
from shove_actors.runtime._autoscaler import Autoscaler

from .fixtures import Clock
from .world import SOON_S, Journal, Order, World, consuming

QUICK = AutoscalerConfig(poll_interval=0.1, hysteresis=0.2, cooldown=0.3)


class Gated:
    """Handlers that wait until they are let go; how many run, and how often each was called."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.now = 0
        self.most = 0
        self.cancelled = 0
        self.calls: Counter[str] = Counter()
        self.done: Journal[str] = Journal()

    async def handle(self, message: Order) -> Outcome:
        self.calls[message.name] += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.open.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        self.done.add(message.name)
        return Outcome.ACK


async def until(condition: Callable[[], bool], within: float = SOON_S) -> None:
    with trio.fail_after(within):
        while True:
            if condition():
                return
            await trio.sleep(0.02)


async def test_a_group_grows_to_its_maximum_and_shrinks_to_its_minimum(
    world: World, clock: Clock
) -> None:
    topic, handler = world.topic(), Gated()
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(40)])
        async with consuming(
            broker, topic, handler, consumers=(1, 4), prefetch=2, autoscaler=QUICK
        ) as group:
            await until(lambda: handler.now == 4)
            assert group.group.scale()[topic.queue]["consumers"] == 4
            assert handler.most == 4
            handler.open.set()
            await handler.done.until(40)
            await until(lambda: group.group.scale()[topic.queue]["consumers"] == 1)
            await until(lambda: group.group.scale()[topic.queue]["changes"] == 6)
            # The one that is left still works.
            await broker.publisher().publish(topic, Order("later"))
            await handler.done.until(41)
        assert set(handler.calls.values()) == {1}
        assert handler.cancelled == 0


async def test_pc088_nobody_is_stopped_while_all_are_busy(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, handler = memory_world.topic(), Gated()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(4)])
        grown = AutoscalerConfig(
            poll_interval=1,
            hysteresis=0,
            cooldown=0,
            # Even a strategy that wants fewer stops nobody who has work in hand.
            strategy=Fixed(lambda load: 4 if trio.current_time() < 10 else 1),
        )
        async with consuming(
            broker,
            topic,
            handler,
            consumers=(1, 4),
            prefetch=1,
            handler_timeout=None,
            autoscaler=grown,
        ) as group:
            await until(lambda: handler.now == 4)
            await trio.sleep(60)
            assert group.group.scale()[topic.queue]["consumers"] == 4
            handler.open.set()
            await handler.done.until(4)
            await until(lambda: group.group.scale()[topic.queue]["consumers"] == 1)
    assert handler.cancelled == 0


class Fixed:
    def __init__(self, wanted: Callable[[Load], int]) -> None:
        self.wanted = wanted


async def test_pc089_a_thousand_messages_while_consumers_come_and_go(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    calls: Counter[str] = Counter()
    interrupted = 0
    done: Journal[str] = Journal()

    async def handle(message: Order) -> Outcome:
        nonlocal interrupted
        calls[message.name] += 1
        try:
            await trio.sleep(0.05)
        except trio.Cancelled:
            interrupted += 1
            raise
        done.add(message.name)
        return Outcome.ACK

    flip = AutoscalerConfig(
        poll_interval=0.07,
        hysteresis=0,
        cooldown=0,
        strategy=Fixed(lambda load: 6 if int(trio.current_time() / 0.3) % 2 else 1),
    )
    async with memory_world.broker(topic) as broker:
        publisher = broker.publisher()
        async with consuming(
            broker, topic, handle, consumers=(1, 6), prefetch=3, autoscaler=flip
        ) as group:
            for start in range(0, 1000, 50):
                await publisher.publish_batch(
                    topic, [Order(str(n)) for n in range(start, start + 50)]
                )
                await trio.sleep(0.5)
            await done.until(1000, within=500)
            assert group.group.scale()[topic.queue]["changes"] > 10
    assert set(calls.values()) == {1}
    assert len(calls) == 1000
    assert interrupted == 0


async def test_a_supervisor_does_not_scale(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, handler = memory_world.topic(), Gated()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(40)])
        group = broker.consumer_supervisor()
        group.register(topic, handler, consumers=(2, 8), handler_timeout=None, autoscaler=QUICK)
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            await trio.sleep(20)
            assert handler.most == 2
            handler.open.set()
            group.stop()


async def test_one_process_leaves_messages_to_the_next(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The credit of the shared lane follows the number of consumers down again."""
    topic, handler = memory_world.topic(), Gated()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(30)])
        async with consuming(
            broker, topic, handler, consumers=(1, 5), prefetch=4, autoscaler=QUICK
        ) as group:
            await until(lambda: handler.now == 5)
            handler.open.set()
            await handler.done.until(30)
            await until(lambda: group.group.scale()[topic.queue]["consumers"] == 1)
            handler.open = trio.Event()
            await broker.publisher().publish_batch(topic, [Order(f"b{n}") for n in range(30)])
            await until(lambda: handler.now == 1)
            backlog = await broker.backend.backlog(topic.queue, topic.topology.durable)
            assert backlog is not None
            assert backlog.ack_pending <= 4
            handler.open.set()
            await handler.done.until(60)


# ------------------------------------------------------------------ the actor alone


class Pool:
    """Consumers that only count."""

    name = "orders"
    limits_of_scale = (1, 5)
    takes = 1

    def __init__(self) -> None:
        self.running = 1
        self.answers: list[object] = []

    def count(self) -> int:
        return self.running

    async def backlog(self) -> Backlog | None:
        answer = self.answers.pop(0) if self.answers else Backlog(pending=0, ack_pending=0)
        if isinstance(answer, Exception):
            raise answer
        if answer == "never":
            await trio.sleep_forever()
        assert answer is None or isinstance(answer, Backlog)
        return answer

    async def grow(self, number: int) -> None:
        self.running += number

    async def shrink(self, number: int) -> int:
        self.running -= number
        return number


AT_ONCE = AutoscalerConfig(poll_interval=1, hysteresis=0, cooldown=0)
FULL = Backlog(pending=1000, ack_pending=0)


async def test_pc086_a_failing_look_holds_and_is_told_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool()
    scaler = Autoscaler(pool, AT_ONCE)
    pool.answers = [
        ConnectionError("away"),
        ConnectionError("away"),
        None,
        "never",
        FULL,
        ConnectionError("away"),
        FULL,
    ]
    with caplog.at_level(logging.WARNING, "shove_actors.autoscaler"):
        for expected in (1, 1, 1, 1, 2, 2, 3):
            await scaler.poll()
            assert pool.running == expected
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4, told
    assert all("the number of consumers stays" in line for line in told)


async def test_a_strategy_that_raises_changes_nothing_and_ends_nothing(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool()
    fails = True

    def wanted(load: Load) -> int:
        if fails:
            raise ZeroDivisionError("mine")
        return 4

    scaler = Autoscaler(
        pool, AutoscalerConfig(poll_interval=1, hysteresis=0, cooldown=0, strategy=Fixed(wanted))
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scaler.run)
        await trio.sleep(10.5)
        assert pool.running == 1
        fails = False
        await trio.sleep(1)
        assert pool.running == 4
        nursery.cancel_scope.cancel()
    assert len([r for r in caplog.records if "ZeroDivisionError" in r.getMessage()]) == 1


async def test_a_strategy_that_answers_with_no_number_changes_nothing_and_ends_nothing(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool()
    answers: list[object] = [0.1, 0.2, 2.5, float("nan"), None, "4", True, 4.0]
    config = AutoscalerConfig(
        poll_interval=1,
        hysteresis=0,
        cooldown=0,
        strategy=Fixed(lambda load: answers.pop(0)),  # type: ignore[arg-type,return-value]
    )
    scaler = Autoscaler(pool, config)
    while len(answers) > 1:
        await scaler.poll()
        assert pool.running == 1
    await scaler.poll()
    assert pool.running == 4
    told = [r for r in caplog.records if r.__dict__["shove_event"] == "scaling_failed"]
    assert len(told) == 1, "as long as it lasts, it is one trouble"
    assert "answered 0.1, not a whole number" in told[0].getMessage()


async def test_consumers_that_cannot_be_started_end_nothing(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Pool):
        fails = True

        async def grow(self, number: int) -> None:
            if self.fails:
                raise ValueError("no room")
            await super().grow(number)

    pool = Failing()
    pool.answers = [FULL] * 4
    scaler = Autoscaler(pool, AT_ONCE)
    for _ in range(3):
        await scaler.poll()
    assert pool.running == 1
    pool.fails = False
    await scaler.poll()
    assert pool.running == 2
    told = [r for r in caplog.records if r.__dict__["shove_event"] == "scaling_failed"]
    assert ["no room" in r.getMessage() for r in told] == [True]


async def test_a_group_whose_strategy_answers_with_fractions_goes_on(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic, handler = memory_world.topic(), Gated()
    handler.open.set()
    thirds = AutoscalerConfig(
        poll_interval=0.1,
        hysteresis=0,
        cooldown=0,
        strategy=Fixed(lambda load: load.ready / 3 + 0.1),  # type: ignore[arg-type,return-value]
    )
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, handler, consumers=(1, 4), autoscaler=thirds) as group:
            await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(40)])
            await handler.done.until(40)
            await trio.sleep(5)
            assert not group.group.stopping
            assert group.group.scale()[topic.queue] == {"consumers": 1, "changes": 0}


async def test_an_action_that_could_not_be_done_starts_no_cooldown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Busy(Pool):
        busy = True

        async def shrink(self, number: int) -> int:
            return 0 if self.busy else await super().shrink(number)

    pool = Busy()
    pool.running = 3
    changes: list[tuple[str, int, int]] = []
    scaler = Autoscaler(
        pool,
        AutoscalerConfig(poll_interval=1, hysteresis=0, cooldown=100),
        decided=lambda *change: changes.append(change),
    )
    await scaler.poll()
    assert pool.running == 3
    assert not changes
    pool.busy = False
    await trio.sleep(1)
    await scaler.poll()
    assert changes == [("orders", 3, 2)]
    await trio.sleep(1)
    await scaler.poll()
    assert pool.running == 2, "within the cooldown"


async def test_the_option_is_checked(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        with pytest.raises(UsageError, match="autoscaler=dict: give an AutoscalerConfig"):
            group.register(topic, Gated(), autoscaler={})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="down < up"):
            ThresholdStrategy(up=1, down=2)
