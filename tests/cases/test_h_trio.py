"""Section H of the cases, the part about cancellation and errors inside the runtime."""

from __future__ import annotations

import logging
import sys

import pytest
import trio
import trio.testing

from shove_actors import Outcome, PublishRefused
from shove_actors.runtime import _settle
from tests.runtime.world import Journal, Order, Script, World, consuming, running

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


# ------------------------------------------------------------------ PC-100


@pytest.mark.parametrize("how", ["drain timeout", "hard stop", "cancelled", "block left"])
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.DEFER, Outcome.REJECT])
async def test_pc100_cancelled_between_the_handlers_return_and_the_acknowledgement(
    memory_world: World, autojump_clock: trio.testing.MockClock, how: str, outcome: Outcome
) -> None:
    """The answer to the copy is on its way for two seconds, in which everything is cancelled."""
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(3600).dlq())
    place = topic.topology.dlq if outcome is Outcome.REJECT else topic.topology.holds[0].name
    assert place is not None
    script = Script(outcomes={"x": [outcome]})
    with trio.fail_after(60):
        async with memory_world.broker(topic) as broker:
            await broker.publisher().publish(topic, Order("x"))
            memory_world.memory.faults.drop_puback()
            with trio.CancelScope() as scope:
                async with consuming(broker, topic, script, drain_timeout=0.1) as run:
                    await memory_world.until_kept(broker, place, 1)
                    assert len(await memory_world.kept(broker, topic.queue)) == 1
                    if how == "hard stop":
                        run.group.hard_stop()
                    elif how == "drain timeout":
                        run.group.stop()
                    elif how == "cancelled":
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
            # Finished under the shield, although everybody around it was told to go.
            assert await memory_world.kept(broker, topic.queue) == []
            assert len(await memory_world.kept(broker, place)) == 1
    assert len(script.journal) == 1


async def test_pc100_settle_that_cannot_be_finished_is_given_up_whole(
    memory_world: World, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody ever answers: after its short deadline the message is back, not half-settled."""
    assert memory_world.memory is not None
    topic = memory_world.topic()
    script, second = Script(outcomes={"x": [Outcome.REJECT]}), Script()
    async with memory_world.broker(topic, publish_timeout=3600) as broker:
        await broker.publisher().publish(topic, Order("x"))
        memory_world.memory.faults.sometimes(drop_puback=1.0)
        async with consuming(broker, topic, script, drain_timeout=0.1, ack_wait=60) as run:
            await script.journal.until(1)
            before = trio.current_time()
            await run.stop()
            took = trio.current_time() - before
        memory_world.memory.faults.sometimes()
        assert took == pytest.approx(_settle.SETTLE_BUDGET_S, abs=0.5)
        assert len(await memory_world.kept(broker, topic.queue)) == 1
        async with consuming(broker, topic, second, ack_wait=60):
            await second.journal.until(1)
    assert "could not be moved on" in caplog.text


async def test_pc100_the_handlers_own_exception_stays_visible(
    memory_world: World, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Raised by the handler, then the settle fails, then everything is cancelled."""
    assert memory_world.memory is not None
    topic = memory_world.topic()
    hold = topic.topology.holds[0].name
    script = Script(outcomes={"x": [ValueError("the handler's own")]})
    memory_world.memory.faults.refuse_publish(hold, PublishRefused("no"))
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, script, drain_timeout=0):
            await script.journal.until(1)
    assert "ValueError: the handler's own" in caplog.text


# ------------------------------------------------------------------ PC-102


@pytest.mark.parametrize("how", ["drain timeout", "hard stop"])
async def test_pc102_error_while_the_group_is_being_cancelled(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = memory_world.topic()
    started = trio.Event()

    async def handle(order: Order) -> Outcome:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while unwinding")

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(
            broker, topic, handle, drain_timeout=1.0 if how == "drain timeout" else 3600
        ) as run:
            await started.wait()
            run.group.stop() if how == "drain timeout" else run.group.hard_stop()
            outcome = await run.end()
        # Nothing is lost: it is in the queue or on its way back to it.
        places = [topic.queue, *(hold.name for hold in topic.topology.holds)]
        left = [m for place in places for m in await memory_world.kept(broker, place)]
        assert len(left) == 1
    assert outcome.timed_out
    assert "ValueError: while unwinding" in caplog.text
    assert "Cancelled" not in "".join(outcome.reasons)


async def test_pc102_errors_of_children_hidden_in_a_group_with_the_cancellation(
    memory_world: World, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler's own nursery mixes both; the error is told with its type, and not swallowed."""
    topic = memory_world.topic()
    started, second = trio.Event(), Script()

    async def handle(order: Order) -> Outcome:
        async def child() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("of a child")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            nursery.start_soon(trio.sleep_forever)
            started.set()
        raise AssertionError

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, handle, drain_timeout=1.0) as run:
            await started.wait()
            outcome = await run.stop()
        async with consuming(broker, topic, second):
            await second.journal.until(1)
    assert outcome.exit_code == 3
    assert "of a child" in caplog.text + "".join(outcome.reasons)


async def test_pc102_two_handlers_raise_together(
    memory_world: World, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = memory_world.topic()
    ready: Journal[str] = Journal()
    done: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        if order.name in ready.entries:
            done.add(order.name)
            return Outcome.ACK
        ready.add(order.name)
        await ready.until(2)
        raise {"1": ValueError, "2": KeyError}[order.name](f"of {order.name}")

    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("1"), Order("2")])
        async with consuming(broker, topic, handle, concurrent_processing=True) as run:
            await done.until(2)
        assert (await run.end()).restarts == 0
    assert "ValueError: of 1" in caplog.text
    assert "KeyError: 'of 2'" in caplog.text


@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("grouped", [False, True])
async def test_pc102_keyboard_interrupt_is_never_a_retry(
    memory_world: World,
    autojump_clock: trio.testing.MockClock,
    fatal: type[BaseException],
    grouped: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also hidden in a group beside an ordinary error, and with a group of other handlers."""
    topic, other = memory_world.topic(), memory_world.topic()
    started, ended = trio.Event(), Journal[str]()
    second = Script()

    async def handle(order: Order) -> Outcome:
        await started.wait()
        if grouped:
            raise BaseExceptionGroup("both", [ValueError("ordinary"), fatal()])
        raise fatal

    async def innocent(order: Order) -> Outcome:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.add("cancelled")
        raise AssertionError

    with trio.fail_after(200):
        with pytest.raises(BaseExceptionGroup) as caught, caplog.at_level(logging.INFO):  # noqa: PT012
            async with memory_world.broker(topic, other) as broker:
                for each in (topic, other):
                    await broker.publisher().publish(each, Order("x"))
                group = broker.consumer_group()
                group.register(topic, handle)
                group.register(other, innocent)
                async with running(group, drain_timeout=5):
                    await trio.sleep_forever()
        assert caught.value.subgroup(fatal) is not None
        assert ended.entries == ["cancelled"]
        async with memory_world.broker() as broker:
            async with consuming(broker, topic, second), consuming(broker, other, second):
                await second.journal.until(2)
    assert second.journal.entries == [("x", 0), ("x", 0)]
