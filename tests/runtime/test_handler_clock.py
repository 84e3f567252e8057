"""One timer for all handlers of a registration."""

from __future__ import annotations

import trio
import trio.testing

from shove_actors.runtime._handler_clock import HandlerClock


class Recorder:
    def __init__(self) -> None:
        self.at: list[float] = []

    def time_out(self) -> None:
        self.at.append(trio.current_time())


async def test_handlers_run_out_at_their_own_time(autojump_clock: trio.testing.MockClock) -> None:
    clock, first, second, ended = HandlerClock(10.0), Recorder(), Recorder(), Recorder()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.run)
        clock.begin(first)
        clock.begin(ended)
        await trio.sleep(3)
        clock.begin(second)
        clock.end(ended)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert (first.at, second.at, ended.at) == ([10.0], [13.0], [])
    assert len(clock) == 0


async def test_the_timer_sleeps_while_handlers_come_and_go(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A thousand quick handlers, and it has woken once in its ten seconds."""
    wakes = 0

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal wakes
            wakes += task.name.endswith("HandlerClock.run")

    clock, worker = HandlerClock(10.0), Recorder()
    trio.lowlevel.add_instrument(Steps())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.run)
        for _ in range(1000):
            clock.begin(worker)
            await trio.sleep(0.001)
            clock.end(worker)
        nursery.cancel_scope.cancel()
    assert worker.at == []
    assert wakes <= 4


async def test_no_limit_means_no_bookkeeping(autojump_clock: trio.testing.MockClock) -> None:
    clock, worker = HandlerClock(None), Recorder()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.run)
        clock.begin(worker)
        assert len(clock) == 0
        await trio.sleep(10_000)
        nursery.cancel_scope.cancel()
    assert worker.at == []
