"""The window of unacknowledged publishes: no place is lost, whoever is cancelled when."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from shove_actors.runtime._window import Window


async def test_callers_wait_in_order() -> None:
    window = Window(2)
    order: list[int] = []

    async def caller(number: int) -> None:
        if not window.take_nowait():
            await window.take()
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(caller, number)
            await trio.testing.wait_all_tasks_blocked()
        assert order == [0, 1]
        # A newcomer does not overtake those who wait.
        assert not window.take_nowait()
        for given in range(3):
            window.give_back()
            await trio.testing.wait_all_tasks_blocked()
            assert order == list(range(3 + given))
    assert window.taken == 2


async def test_cancelled_take_has_taken_nothing() -> None:
    window = Window(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await window.take()
    assert scope.cancelled_caught
    assert window.taken == 0
    assert window.take_nowait()
    with trio.move_on_after(0.001):
        await window.take()
    window.give_back()
    assert window.taken == 0


async def test_place_given_to_somebody_who_is_cancelled_at_that_moment_is_not_lost() -> None:
    window = Window(1)
    assert window.take_nowait()
    got: list[bool] = []
    scope = trio.CancelScope()

    async def waiter() -> None:
        with scope:
            await window.take()
            got.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiter)
        await trio.testing.wait_all_tasks_blocked()
        window.give_back()
        scope.cancel()
    # Chosen before it was cancelled: it has the place, and knows.
    assert got == [True]
    assert window.taken == 1


@pytest.mark.parametrize("seed", range(20))
async def test_any_mixture_of_callers_and_cancellations_leaves_it_empty(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    window = Window(3)
    most = 0

    async def caller(patience: float, work: float) -> None:
        nonlocal most
        with trio.move_on_after(patience):
            if not window.take_nowait():
                await window.take()
            most = max(most, window.taken)
            try:
                await trio.sleep(work)
            finally:
                window.give_back()

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(caller, rng.randrange(10), rng.randrange(4))
            await trio.sleep(rng.randrange(2))
    assert most == 3
    assert window.taken == 0
