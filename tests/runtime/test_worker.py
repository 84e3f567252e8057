"""How deliveries become handler calls: concurrency, time-outs, exceptions, misuse."""

from __future__ import annotations

import logging
import sys

import pytest
import trio
import trio.testing

from shove_actors import AutoscalerConfig, MessageMetadata, Outcome, UsageError
from shove_actors.runtime._options import ConsumerOptions

from .fixtures import Clock
from .world import SOON_S, Journal, Order, Script, World, ack, consuming, running

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup


class Gauge:
    """A handler that knows how many of it run at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = self.most = 0
        self.done: Journal[str] = Journal()

    async def handle(self, message: Order) -> Outcome:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.now -= 1
        self.done.add(message.name)
        return Outcome.ACK


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"prefetch": 20, "concurrent_processing": True}, 20),
        ({"prefetch": 3, "concurrent_processing": True}, 3),
        ({"prefetch": 20}, 1),
        ({"prefetch": 20, "consumers": 4}, 4),
        ({"prefetch": 5, "consumers": 4, "concurrent_processing": True}, 20),
        ({"prefetch": 5, "consumers": (2, 2)}, 2),
    ],
)
async def test_handlers_at_once(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    options: dict[str, object],
    most: int,
) -> None:
    topic = memory_world.topic()
    gauge = Gauge(1.0)
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(60)])
        before = trio.current_time()
        async with consuming(broker, topic, gauge, **options):
            await gauge.done.until(60, within=100)
        assert gauge.most == most
        # And they were always that many: nobody waits while there is work.
        assert trio.current_time() - before == pytest.approx(60 / most, abs=0.2)


async def test_twenty_handlers_at_once_on_a_server(server_world: World) -> None:
    topic = server_world.topic()
    together = trio.Event()
    now = 0

    async def handle(message: Order) -> Outcome:
        nonlocal now
        now += 1
        if now == 20:
            together.set()
        await together.wait()
        return Outcome.ACK

    async with server_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(20)])
        async with consuming(broker, topic, handle, prefetch=20, concurrent_processing=True):
            with trio.fail_after(SOON_S):
                await together.wait()
            await server_world.until_kept(broker, topic.queue, 0)


async def test_a_message_that_comes_later_finds_a_free_worker(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """One at a time into a concurrent consumer: each starts at once, whatever the others do."""
    topic = memory_world.topic()
    gauge = Gauge(100.0)
    async with memory_world.broker(topic) as broker:
        options = {"prefetch": 10, "concurrent_processing": True, "handler_timeout": None}
        async with consuming(broker, topic, gauge, **options):
            for number in range(10):
                await broker.publisher().publish(topic, Order(str(number)))
                await trio.sleep(1)
                assert gauge.now == number + 1
            await gauge.done.until(10, within=200)


@pytest.mark.parametrize(
    "options", [{"consumers": 2}, {"prefetch": 10, "concurrent_processing": True}]
)
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.REJECT])
async def test_a_slow_settle_keeps_nobody_waiting(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    options: dict[str, object],
    outcome: Outcome,
) -> None:
    """The answer to the copy is lost, so settling takes seconds; handlers here never wait."""
    assert memory_world.memory is not None
    topic = memory_world.topic()
    done: Journal[tuple[str, float]] = Journal()

    async def handle(message: Order) -> Outcome:
        done.add((message.name, trio.current_time()))
        return outcome if message.name == "slow" else Outcome.ACK

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("slow"), Order("1"), Order("2")])
        memory_world.memory.faults.drop_puback()
        async with consuming(broker, topic, handle, **options):
            await done.until(3)
    assert [name for name, _ in done.entries[:3]] == ["slow", "1", "2"]
    assert done.entries[2][1] < 1.0


async def test_handlers_that_never_wait_do_not_starve_the_rest(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    others = 0
    done: Journal[int] = Journal()

    async def handle(message: Order) -> Outcome:
        done.add(others)
        end = trio.lowlevel.current_clock()  # no wait anywhere in here
        assert end is not None
        sum(range(2000))
        return Outcome.ACK

    async def other() -> None:
        nonlocal others
        while True:
            await trio.lowlevel.checkpoint()
            others += 1

    async with memory_world.broker(topic) as broker, trio.open_nursery() as nursery:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(2000)])
        nursery.start_soon(other)
        async with consuming(broker, topic, handle, prefetch=2000):
            await done.until(2000)
        nursery.cancel_scope.cancel()


# ------------------------------------------------------------------ time-outs


async def test_handler_timeout_is_a_retry(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = world.topic(lambda b: b.hold_queue(0.05).dlq())
    runs: Journal[int] = Journal()

    async def handle(message: Order, metadata: MessageMetadata) -> Outcome:
        runs.add(metadata.retry_count)
        await trio.sleep_forever()
        raise AssertionError

    async with world.broker(topic) as broker:
        async with consuming(broker, topic, handle, max_retries=2, handler_timeout=0.2):
            await broker.publisher().publish(topic, Order("x"))
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
    assert runs.entries == [0, 1, 2]
    assert dead.headers["Shove-Death-Cause"] == "timeout"
    assert caplog.text.count("timed out after 0.2 s") == 3


@pytest.mark.parametrize("timeout", [30.0, None, 90.0])
async def test_default_timeout_is_thirty_seconds_and_none_is_no_limit(
    memory_world: World, autojump_clock: trio.testing.MockClock, timeout: float | None
) -> None:
    topic = memory_world.topic(lambda b: b.dlq())
    ended: Journal[tuple[str, float]] = Journal()

    async def handle(message: Order) -> Outcome:
        before = trio.current_time()
        try:
            await trio.sleep(1000)
        except trio.Cancelled:
            ended.add(("cancelled", trio.current_time() - before))
            raise
        ended.add(("finished", trio.current_time() - before))
        return Outcome.ACK

    options = {} if timeout == 30.0 else {"handler_timeout": timeout}
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, handle, max_retries=0, **options):
            await broker.publisher().publish(topic, Order("x"))
            [(how, seconds)] = await ended.until(1, within=2000)
            await memory_world.until_kept(broker, topic.queue, 0)
    assert (how, seconds) == (("finished", 1000.0) if timeout is None else ("cancelled", timeout))


async def test_each_of_many_handlers_has_its_own_time(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic(lambda b: b.dlq())
    ends: Journal[float] = Journal()

    async def handle(message: Order) -> Outcome:
        before = trio.current_time()
        try:
            await trio.sleep(float(message.name))
        finally:
            ends.add(trio.current_time() - before)
        return Outcome.ACK

    async with memory_world.broker(topic) as broker:
        options = {"prefetch": 10, "concurrent_processing": True, "handler_timeout": 5.0}
        async with consuming(broker, topic, handle, max_retries=0, **options):
            for seconds in ("4.5", "100", "1", "100", "4.9", "0"):
                await broker.publisher().publish(topic, Order(seconds))
                await trio.sleep(0.7)
            await ends.until(6)
            await memory_world.until_kept(broker, topic.topology.dlq, 2)
    assert sorted(ends.entries) == pytest.approx([0, 1, 4.5, 4.9, 5, 5])


async def test_timeout_is_not_inherited_by_the_next_message(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """One worker, one message after the other, each nearly out of time."""
    topic = memory_world.topic(lambda b: b.dlq())
    gauge = Gauge(0.9)
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(20)])
        async with consuming(broker, topic, gauge, handler_timeout=1.0, max_retries=0):
            await gauge.done.until(20)
        assert await memory_world.kept(broker, topic.topology.dlq) == []


async def test_error_while_being_cancelled_is_reported_and_the_timeout_counts(
    memory_world: World, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = memory_world.topic(lambda b: b.dlq())

    async def handle(message: Order) -> Outcome:
        async def child() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while unwinding")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await trio.sleep_forever()
        raise AssertionError

    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, handle, handler_timeout=1.0, max_retries=0) as run:
            await broker.publisher().publish(topic, Order("x"))
            [dead] = await memory_world.until_kept(broker, topic.topology.dlq, 1)
        assert (await run.end()).restarts == 0
    assert dead.headers["Shove-Death-Reason"] == "max_retries_exceeded"
    assert "while unwinding" in caplog.text


# ------------------------------------------------------------------ exceptions


async def test_exceptions_are_retries_with_one_traceback_and_the_message_id(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = world.topic(lambda b: b.hold_queue(0.05).dlq())
    script = Script(outcomes={"x": [ValueError("boom"), ExceptionGroup("g", [KeyError("k")])]})
    async with world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("x"), message_id="the-id")
            await script.journal.until(3)
            await world.until_kept(broker, topic.queue, 0)
    assert script.attempts("x") == [0, 1, 2]
    raised = [r for r in caplog.records if "raised on message the-id" in r.getMessage()]
    assert len(raised) == 2
    assert all(r.exc_info and r.levelno == logging.ERROR for r in raised)
    assert caplog.text.count("ValueError: boom") == 1


@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("wait", [False, True])
async def test_fatal_exceptions_end_the_program_and_cost_no_retry(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    fatal: type[BaseException],
    wait: bool,
) -> None:
    topic = memory_world.topic()

    async def handle(message: Order) -> Outcome:
        if wait:
            await trio.sleep(1)
        raise fatal

    with trio.fail_after(60):
        with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
            async with memory_world.broker(topic) as broker:
                await broker.publisher().publish(topic, Order("x"))
                async with consuming(broker, topic, handle):
                    await trio.sleep_forever()
    assert caught.value.subgroup(fatal) is not None
    script = Script()
    async with memory_world.broker() as broker:
        async with consuming(broker, topic, script):
            await script.journal.until(1)
    # Given back at once, not after its lease, and not counted.
    assert script.journal.entries == [("x", 0)]
    assert script.times[0] < 5


@pytest.mark.parametrize("returned", [None, True, "ack", 0, Outcome, {"outcome": "ACK"}])
async def test_whatever_is_no_outcome_is_a_retry_and_logged(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    returned: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = memory_world.topic()
    script = Script(outcomes={"x": [returned]})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script):
            await broker.publisher().publish(topic, Order("x"))
            await script.journal.until(2)
    assert script.attempts("x") == [0, 1]
    assert f"returned {type(returned).__name__} on message" in caplog.text
    assert "is no Outcome; treated as RETRY" in caplog.text


@pytest.mark.parametrize("outcome", [Outcome.ACK, Outcome.RETRY, Outcome.DEFER, Outcome.REJECT])
async def test_each_outcome_is_counted(
    memory_world: World, autojump_clock: trio.testing.MockClock, outcome: Outcome
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(1).dlq())
    script = Script(outcomes={"x": [outcome]})
    async with memory_world.broker(topic) as broker:
        async with consuming(broker, topic, script) as run:
            await broker.publisher().publish(topic, Order("x"))
            await trio.sleep(5)
        counted = run.group.statistics()[topic.queue]
    again = {} if outcome in (Outcome.ACK, Outcome.REJECT) else {"hop": 1}
    ends = {"dead": 1} if outcome is Outcome.REJECT else {"ack": 1}
    assert counted == {**again, **ends, "lost": 0}


async def test_oversize_messages_never_reach_the_handler(world: World, clock: Clock) -> None:
    topic = world.topic()
    script = Script()
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("x" * 500), Order("well")])
        async with consuming(broker, topic, script, max_message_size=100):
            await script.journal.until(1)
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
    assert [name for name, _ in script.journal.entries] == ["well"]
    assert dead.headers["Shove-Death-Reason"] == "oversize"
    assert "max_message_size is 100" in dead.headers["Shove-Death-Detail"]


# ------------------------------------------------------------------ options

INF, NAN = float("inf"), float("nan")
DEGENERATE: dict[str, list[object]] = {
    "consumers": [
        *(0, -1, True, None, 1.5, "3", 10**9),
        *((0, 0), (0, 1), (3, 2), (1, 2, 3), (1,), (1, INF), (1, 10**9), (True, 2), [2, 1]),
    ],
    "prefetch": [0, -1, 1.5, "1", True, None, 10**9],
    "max_retries": [-1, 1.5, True, None],
    "handler_timeout": [0, -1, INF, NAN, "1", True, 1e300],
    "concurrent_processing": ["yes", 1, None],
    "max_message_size": [0, -1, 1.5, True, None],
    "ack_wait": [0.01, -1, INF, NAN, 1e10, 1e300, "30", True, None],
    "retry_delay": [0, -1, NAN, INF, 1e300, "1", True, None],
    "autoscaler": [5, {}, AutoscalerConfig],
}


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option, values in DEGENERATE.items() for value in values],
    ids=str,
)
async def test_degenerate_options_are_refused_when_registering(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    option: str,
    value: object,
) -> None:
    """SW-51: said at once, naming the option, not a group that hangs on its first message."""
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        with pytest.raises(UsageError, match=f"^{option}="):
            group.register(topic, ack, **{option: value})  # type: ignore[arg-type]
        group.register(topic, ack)
        async with running(group):
            pass


def test_defaults_are_those_that_are_promised() -> None:
    options = ConsumerOptions()
    assert (options.handler_timeout, options.max_retries, options.prefetch) == (30.0, 10, 10)
    assert options.max_message_size == 10 * 1024 * 1024
    assert options.concurrent_processing is False
    assert options.limits.default_delay_s == 1.0
