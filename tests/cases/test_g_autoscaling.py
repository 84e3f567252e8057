"""Section G of the cases, where tests/runtime/test_autoscaler.py and test_scaling.py leave off."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors import Outcome, UsageError
from shove_actors.runtime import AutoscalerConfig, Load, ThresholdStrategy
from shove_actors.runtime._scaling import Stability, stabilise
from tests.runtime.world import Journal, Order, World, consuming, until

QUICK = AutoscalerConfig(poll_interval=0.5, hysteresis=1.0, cooldown=1.0)


def sample(ready: int, *, consumers: int, takes: int = 1, low: int = 1, high: int = 10) -> Load:
    return Load(
        pending=ready, in_flight=0, consumers=consumers, takes=takes, minimum=low, maximum=high
    )


def decided(load: Load) -> int | None:
    """What an impatient autoscaler does on this sample."""
    config = AutoscalerConfig(poll_interval=1, hysteresis=0, cooldown=0)
    return stabilise(Stability(), load, 0.0, config)[1]


@pytest.mark.parametrize("consumers", [1, 2, 5, 9, 10])
@pytest.mark.parametrize("takes", [1, 10])
def test_pc090_exactly_at_the_thresholds_nothing_changes(consumers: int, takes: int) -> None:
    """Up *above* twice the capacity, down *below* half of it."""
    capacity = consumers * takes
    assert decided(sample(2 * capacity, consumers=consumers, takes=takes)) is None
    above = decided(sample(2 * capacity + 1, consumers=consumers, takes=takes))
    assert above == (None if consumers == 10 else consumers + 1)
    half = -(-capacity // 2)
    assert decided(sample(half, consumers=consumers, takes=takes)) is None
    below = decided(sample((capacity - 1) // 2, consumers=consumers, takes=takes))
    assert below == (None if consumers == 1 else consumers - 1)


@pytest.mark.parametrize("ready", [0, 1, 10, 10**9])
@pytest.mark.parametrize(("low", "high"), [(1, 1), (3, 3), (1, 10), (4, 5)])
def test_pc090_always_within_the_range(ready: int, low: int, high: int) -> None:
    for consumers in range(low, high + 1):
        after = decided(sample(ready, consumers=consumers, low=low, high=high))
        assert after is None or low <= after <= high
        if low == high:
            assert after is None


@pytest.mark.parametrize("consumers", [(0, 3), (0, 0), (2, 1), (-1, 2), (1, 0)])
async def test_pc090_degenerate_ranges_are_refused(
    memory_world: World, autojump_clock: trio.testing.MockClock, consumers: tuple[int, int]
) -> None:
    async with memory_world.broker() as broker:
        group = broker.consumer_group()
        with pytest.raises(UsageError, match="1 <= min <= max"):
            group.register(memory_world.topic(), lambda order: Outcome.ACK, consumers=consumers)


@pytest.mark.parametrize(
    ("concurrent", "backlog", "consumers"),
    [
        # Sequential: what is prefetched only waits. By `consumers x prefetch` this would not grow.
        (False, 19, 4),
        # Ten at once: nineteen are no more than twice what one consumer takes.
        (True, 19, 1),
        (True, 25, 2),
    ],
)
async def test_pc090_capacity_is_what_the_consumers_really_take(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    concurrent: bool,
    backlog: int,
    consumers: int,
) -> None:
    topic = memory_world.topic()
    release = trio.Event()
    done: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        await release.wait()
        done.add(order.name)
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(backlog)])
        async with consuming(
            broker,
            topic,
            handle,
            consumers=(1, 4),
            prefetch=10,
            concurrent_processing=concurrent,
            handler_timeout=None,
            autoscaler=QUICK,
        ) as run:
            await trio.sleep(60)
            assert run.group.scale()[topic.queue]["consumers"] == consumers
            release.set()
            await done.until(backlog)
            await until(lambda: run.group.scale()[topic.queue]["consumers"] == 1)


def test_pc090_thresholds_of_the_default_strategy() -> None:
    assert ThresholdStrategy() == ThresholdStrategy(up=2.0, down=0.5, step=1)
