"""Concurrency grows with what the event loop can serve: `runtime/_pacer.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import trio
import trio.testing

from shove_actors import MemoryConfig, Outcome, Topic, TopologyBuilder, open_broker
from shove_actors.backends import BUSY_S, PAUSE_S, LaneBuffer
from shove_actors.runtime._pacer import Pacer


class Item(msgspec.Struct):
    number: int


async def test_a_late_worker_makes_the_loop_busy(mock_clock: trio.testing.MockClock) -> None:
    pacer, quiet = Pacer(), SimpleNamespace(busy_until=float("-inf"))
    lane: Any = quiet
    pacer.started(trio.current_time())
    assert not pacer.busy(lane)
    asked_at = trio.current_time()
    mock_clock.jump(2 * BUSY_S)
    pacer.started(asked_at)
    assert pacer.busy(lane)
    mock_clock.jump(PAUSE_S)
    assert not pacer.busy(lane)


async def test_a_worker_woken_late_is_noticed(mock_clock: trio.testing.MockClock) -> None:
    buffer = LaneBuffer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.receive)
        await trio.testing.wait_all_tasks_blocked()
        buffer.push(SimpleNamespace())  # type: ignore[arg-type]
        mock_clock.jump(2 * BUSY_S)  # before the woken worker has run
    assert buffer.busy_until == trio.current_time() + PAUSE_S


async def test_growth_goes_on_after_the_pause(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever wanted to grow is asked once, one at the end of each pause."""
    pacer, asked = Pacer(), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pacer.run)
        first, second = (lambda: asked.append("first")), (lambda: asked.append("second"))
        pacer.later(first)
        pacer.later(second)
        pacer.later(first)
        await trio.sleep(PAUSE_S / 2)
        assert asked == []
        await trio.sleep(PAUSE_S)
        assert asked == ["first"]
        await trio.sleep(PAUSE_S)
        assert asked == ["first", "second"]
        await trio.sleep(10 * PAUSE_S)
        assert asked == ["first", "second"]
        nursery.cancel_scope.cancel()


async def test_a_consumer_reaches_its_limit_even_if_the_loop_is_always_busy(
    autojump_clock: trio.testing.MockClock, monkeypatch: Any
) -> None:
    """Handlers that wait for an hour: all of them run, one pause after the other at worst."""
    monkeypatch.setattr(Pacer, "busy", lambda self, lane: True)
    topic = Topic(Item, TopologyBuilder("q").dlq().build())
    running, all_run = 0, trio.Event()

    async def handle(item: Item) -> Outcome:
        nonlocal running
        running += 1
        if running == 20:
            all_run.set()
        await trio.sleep(20)
        return Outcome.ACK

    async with open_broker(MemoryConfig()) as broker:
        await broker.declare(topic)
        await broker.publisher().publish_batch(topic, [Item(n) for n in range(20)])
        group = broker.consumer_group()
        group.register(topic, handle, consumers=2, prefetch=10, concurrent_processing=True)
        with trio.fail_after(15):
            outcome = await group.run_until(all_run.wait, drain_timeout=30)
    assert running == 20
    assert outcome.is_clean
