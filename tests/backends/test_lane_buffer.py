"""LaneBuffer: one wake-up per burst, and nothing lost whoever is cancelled when."""

from __future__ import annotations

import random
from collections import Counter
from typing import cast

import pytest
import trio
import trio.testing

from shove_actors._errors import UnavailableError
from shove_actors.backends import Delivery, Lane, LaneBuffer, LaneClosed


def delivery(sequence: int) -> Delivery:
    # The buffer never looks at the lane.
    lane = cast(Lane, None)
    return Delivery(lane, "q", b"", None, "q", sequence, 1, 0, 0.0, b"")


async def park(nursery: trio.Nursery, buffer: LaneBuffer, work: object, count: int) -> None:
    for _ in range(count):
        nursery.start_soon(work)  # type: ignore[arg-type]
    await trio.testing.wait_all_tasks_blocked()
    assert buffer.parked == count


async def test_burst_of_sync_handlers_wakes_one_worker() -> None:
    """Eight workers are parked; a burst of 32 is handled by one of them, in order."""
    buffer = LaneBuffer()
    handled: list[tuple[int, int]] = []
    woken: Counter[int] = Counter()
    names = iter(range(8))

    async def work() -> None:
        name = next(names)
        while True:
            taken = await buffer.receive()
            woken[name] += 1
            while True:
                handled.append((name, taken.sequence))
                try:
                    taken = buffer.receive_nowait()
                except trio.WouldBlock:
                    break

    async with trio.open_nursery() as nursery:
        await park(nursery, buffer, work, 8)
        for sequence in range(32):
            buffer.push(delivery(sequence))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [sequence for _, sequence in handled] == list(range(32))
    assert len({name for name, _ in handled}) == 1
    assert sum(woken.values()) == 1


async def test_handlers_that_wait_run_side_by_side() -> None:
    buffer = LaneBuffer()
    running: list[int] = []

    async def work() -> None:
        taken = await buffer.receive()
        running.append(taken.sequence)
        assert buffer.wake_next()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await park(nursery, buffer, work, 8)
        for sequence in range(5):
            buffer.push(delivery(sequence))
        await trio.testing.wait_all_tasks_blocked()
        assert running == [0, 1, 2, 3, 4]
        assert buffer.parked == 3
        nursery.cancel_scope.cancel()


async def test_wake_next_says_when_nobody_is_left_to_wake() -> None:
    buffer = LaneBuffer()
    assert buffer.wake_next()
    buffer.push(delivery(1))
    assert not buffer.wake_next()
    buffer.receive_nowait()
    assert buffer.wake_next()


async def test_wake_next_does_not_wake_a_second_one_for_the_same_message() -> None:
    buffer = LaneBuffer()
    received: list[int] = []

    async def work() -> None:
        received.append((await buffer.receive()).sequence)

    async with trio.open_nursery() as nursery:
        await park(nursery, buffer, work, 2)
        buffer.push(delivery(1))
        assert buffer.wake_next()
        assert buffer.wake_next()
        assert buffer.parked == 1
        await trio.testing.wait_all_tasks_blocked()
        assert received == [1]
        assert buffer.parked == 1
        buffer.push(delivery(2))
    assert received == [1, 2]


async def test_a_woken_worker_that_finds_nothing_parks_again() -> None:
    """Worker woken for a message; another one takes it first; the next message wakes it anew."""
    buffer = LaneBuffer()
    received: list[int] = []

    async def work() -> None:
        received.append((await buffer.receive()).sequence)

    async with trio.open_nursery() as nursery:
        await park(nursery, buffer, work, 1)
        buffer.push(delivery(1))
        assert buffer.receive_nowait().sequence == 1
        await trio.testing.wait_all_tasks_blocked()
        assert received == []
        assert buffer.parked == 1
        buffer.push(delivery(2))
    assert received == [2]


async def test_push_front_goes_first() -> None:
    buffer = LaneBuffer()
    buffer.push(delivery(2))
    buffer.push_front(delivery(1))
    assert len(buffer) == 2
    assert [buffer.receive_nowait().sequence for _ in range(2)] == [1, 2]


async def test_push_front_wakes_a_parked_worker() -> None:
    buffer = LaneBuffer()
    received: list[int] = []

    async def work() -> None:
        received.append((await buffer.receive()).sequence)

    async with trio.open_nursery() as nursery:
        await park(nursery, buffer, work, 1)
        buffer.push_front(delivery(1))
    assert received == [1]


async def test_take_all_leaves_nothing() -> None:
    buffer = LaneBuffer()
    buffer.push(delivery(1))
    buffer.push(delivery(2))
    assert [d.sequence for d in buffer.take_all()] == [1, 2]
    assert len(buffer) == 0
    with pytest.raises(trio.WouldBlock):
        buffer.receive_nowait()


async def test_end_is_seen_after_the_last_message() -> None:
    buffer = LaneBuffer()
    buffer.push(delivery(1))
    buffer.end()
    buffer.end(RuntimeError("the second end changes nothing"))
    assert (await buffer.receive()).sequence == 1
    with pytest.raises(LaneClosed):
        await buffer.receive()
    with pytest.raises(LaneClosed):
        buffer.receive_nowait()


async def test_end_wakes_everybody_with_its_error() -> None:
    buffer = LaneBuffer()
    raised: list[Exception] = []

    async def work() -> None:
        try:
            await buffer.receive()
        except UnavailableError as error:
            raised.append(error)

    reason = UnavailableError("gone")
    async with trio.open_nursery() as nursery:
        await park(nursery, buffer, work, 3)
        buffer.end(reason)
    assert raised == [reason] * 3


async def test_receive_is_a_cancellation_point_and_takes_nothing() -> None:
    buffer = LaneBuffer()
    buffer.push(delivery(1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await buffer.receive()
    assert scope.cancelled_caught
    assert len(buffer) == 1


async def test_cancel_while_parked_takes_nothing() -> None:
    buffer = LaneBuffer()
    with trio.move_on_after(0):
        await buffer.receive()
    assert buffer.parked == 0
    buffer.push(delivery(1))
    assert buffer.receive_nowait().sequence == 1


async def test_cancel_after_being_woken_still_returns_the_message() -> None:
    """`push` chooses the parked worker, then it is cancelled before it runs: it has the message."""
    buffer = LaneBuffer()
    received: list[int] = []
    scope = trio.CancelScope()

    async def work() -> None:
        with scope:
            received.append((await buffer.receive()).sequence)

    async with trio.open_nursery() as nursery:
        await park(nursery, buffer, work, 1)
        buffer.push(delivery(1))
        scope.cancel()
    assert received == [1]
    assert not scope.cancelled_caught


async def test_cancel_before_the_push_leaves_it_to_another_worker() -> None:
    """Cancelled first, then pushed in the same pass: the one that goes on gets it."""
    buffer = LaneBuffer()
    received: list[int] = []
    scope = trio.CancelScope()

    async def doomed() -> None:
        with scope:
            received.append(-(await buffer.receive()).sequence)

    async def work() -> None:
        received.append((await buffer.receive()).sequence)

    async with trio.open_nursery() as nursery:
        await park(nursery, buffer, doomed, 1)
        nursery.start_soon(work)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        buffer.push(delivery(1))
    assert received == [1]


@pytest.mark.parametrize("seed", range(200))
async def test_cancellation_loses_nothing(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Random pushes, handlers and cancellations: every message is handled, each exactly once.

    A worker that is cancelled with a message in hand gives it back, and passes the turn on
    (`wake_next`), as the buffer's invariant asks of it. Had a wake-up been lost, a message would
    wait while workers are parked, and the deadline would pass.
    """
    rng = random.Random(seed)
    buffer = LaneBuffer()
    handled: Counter[int] = Counter()
    total = 60
    complete = trio.Event()
    scopes: list[trio.CancelScope] = []

    async def work(waits: bool) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            in_hand: Delivery | None = None
            try:
                while True:
                    in_hand = await buffer.receive()
                    if waits:
                        buffer.wake_next()
                        await trio.sleep(rng.choice((0, 0.01, 0.5)))
                    handled[in_hand.sequence] += 1
                    in_hand = None
                    if sum(handled.values()) == total:
                        complete.set()
            finally:
                if in_hand is not None:
                    buffer.push_front(in_hand)
                buffer.wake_next()

    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(work, rng.random() < 0.5)
            await trio.testing.wait_all_tasks_blocked()
            sequence = 0
            while sequence < total:
                action = rng.random()
                if action < 0.5:
                    for _ in range(min(rng.randint(1, 6), total - sequence)):
                        buffer.push(delivery(sequence))
                        sequence += 1
                elif action < 0.75:
                    rng.choice(scopes).cancel()
                    nursery.start_soon(work, rng.random() < 0.5)
                elif action < 0.9:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.sleep(rng.choice((0.01, 1)))
            await complete.wait()
            nursery.cancel_scope.cancel()
    assert handled == Counter(range(total))


async def test_nobody_begins_in_the_pass_in_which_time_stood_still(
    mock_clock: trio.testing.MockClock,
) -> None:
    """The process is stopped between the wake-up of a worker and its turn. The lease keeper, an
    instrument, looks before the next pass; until then nothing may be begun."""
    buffer, passes = LaneBuffer(), 0
    begun_in: list[int] = []

    class Passes(trio.abc.Instrument):
        def after_io_wait(self, timeout: float) -> None:
            nonlocal passes
            passes += 1

    async def work() -> None:
        taken = await buffer.receive()
        assert taken.sequence == 1
        begun_in.append(passes)

    instrument = Passes()
    trio.lowlevel.add_instrument(instrument)
    async with trio.open_nursery() as nursery:
        await park(nursery, buffer, work, 1)
        buffer.push(delivery(1))
        mock_clock.jump(30)
        pushed_in = passes
    trio.lowlevel.remove_instrument(instrument)
    # The worker's turn is the pass after this one; it lets one more go by.
    assert begun_in == [pushed_in + 2]
