"""Check 42 of the actors' semantics, where it can be seen: a message on its way through a group.

Work that a stop interrupts was not tried: it is given back with its count unchanged.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors import MessageMetadata, Outcome

from .world import Journal, Order, Script, World, consuming


@pytest.mark.parametrize("attempt", [0, 1])
async def test_check42_interrupted_by_stop_is_given_back_uncounted(
    memory_world: World, autojump_clock: trio.testing.MockClock, attempt: int
) -> None:
    """The handler is cut off in its first attempt, or in the second after a real failure.

    In both it comes back as the same attempt, at once and not after its lease, and never as a
    dead letter: with this topic a third counted attempt would be one.
    """
    topic = memory_world.topic(lambda builder: builder.hold_queue(5).dlq())
    first: Journal[int] = Journal()
    cut_off: list[float] = []

    class Slow:
        async def handle(self, message: Order, metadata: MessageMetadata) -> Outcome:
            first.add(metadata.retry_count)
            if metadata.retry_count < attempt:
                return Outcome.RETRY
            try:
                await trio.sleep_forever()
            finally:
                cut_off.append(trio.current_time())
            raise AssertionError("not reached")

    second = Script()
    options = {"max_retries": 1, "ack_wait": 3600, "handler_timeout": None}
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, Slow(), drain_timeout=1.0, **options) as run:
            await first.until(attempt + 1, within=60)
            await trio.sleep(10)
            stopped_at = trio.current_time()
            outcome = await run.stop()
        assert cut_off == [stopped_at + 1]
        assert (outcome.timed_out, outcome.errors, outcome.panics) == (True, 0, 0)
        async with consuming(broker, topic, second, **options):
            await second.journal.until(1)
            assert trio.current_time() < stopped_at + 2
            await memory_world.until_settled(broker, topic.queue)
        assert await memory_world.kept(broker, topic.topology.dlq) == []
    assert first.entries == list(range(attempt + 1))
    assert second.journal.entries == [("x", attempt)]
