"""The server's clock and its one heap of deadlines."""

from __future__ import annotations

import math

import trio
import trio.testing

from shove_actors.backends.memory._timers import ServerClock, Timers


class Owner:
    """Keeps one deadline per sequence, as streams and durables do."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.deadlines: dict[int, float] = {}
        self.fired: list[int] = []

    def set(self, sequence: int, deadline: float) -> None:
        self.deadlines[sequence] = deadline
        self.timers.add(deadline, self, sequence)

    def due_at(self, sequence: int) -> float | None:
        return self.deadlines.get(sequence)

    def fire(self, sequence: int, now: float) -> None:
        self.fired.append(sequence)
        del self.deadlines[sequence]


def test_fires_in_order_of_time_then_sequence() -> None:
    timers = Timers()
    owner = Owner(timers)
    for sequence, deadline in ((3, 2.0), (1, 2.0), (2, 1.0), (4, 9.0)):
        owner.set(sequence, deadline)
    timers.fire_due(2.0)
    assert owner.fired == [2, 1, 3]
    assert timers.next_due() == 9.0


def test_what_was_settled_is_never_due() -> None:
    timers = Timers()
    owner = Owner(timers)
    owner.set(1, 1.0)
    owner.set(2, 2.0)
    del owner.deadlines[1]
    assert timers.next_due() == 2.0
    del owner.deadlines[2]
    assert timers.next_due() == math.inf
    timers.fire_due(5.0)
    assert owner.fired == []


def test_a_moved_deadline_fires_once_at_its_new_time() -> None:
    timers = Timers()
    owner = Owner(timers)
    owner.set(1, 1.0)
    owner.set(1, 3.0)
    timers.fire_due(2.0)
    assert owner.fired == []
    owner.set(1, 2.5)
    timers.fire_due(2.5)
    assert owner.fired == [1]
    timers.fire_due(9.0)
    assert owner.fired == [1]


def test_time_goes_on_from_run_to_run() -> None:
    """The next run's clock starts at 0 again; the server's does not."""
    clock = ServerClock(1_000_000_000)
    seen: list[tuple[float, int]] = []

    async def use(seconds: float) -> None:
        seen.append((clock.now(), clock.now_ns()))
        await trio.sleep(seconds)
        seen.append((clock.now(), clock.now_ns()))
        assert clock.in_trio(clock.now()) == trio.current_time()

    for seconds in (10.0, 5.0):
        mock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(use, seconds, clock=mock)
    assert [now for now, _ in seen] == [0.0, 10.0, 10.0, 15.0]
    assert [ns for _, ns in seen] == [10**9, 11 * 10**9, 11 * 10**9, 16 * 10**9]
    assert clock.slack > 0


def test_first_run_is_exact() -> None:
    clock = ServerClock(0)

    async def use() -> None:
        await trio.sleep(0.1)
        assert clock.now() == trio.current_time()
        assert clock.now_ns() == 0
        await trio.sleep(0.2)
        assert clock.now() == trio.current_time()
        assert clock.slack == 0.0

    trio.run(use, clock=trio.testing.MockClock(autojump_threshold=0))
