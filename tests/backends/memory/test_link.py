"""The link: what passes, what waits, what is lost."""

from __future__ import annotations

import trio
import trio.testing

from shove_actors.backends.memory._link import Link


class Ends:
    def __init__(self) -> None:
        self.rung = 0
        self.up: list[int] = []
        self.down: list[int] = []
        self.link = Link(self.ring)

    def ring(self) -> None:
        self.rung += 1

    def send(self, number: int) -> bool:
        return self.link.send(lambda: self.up.append(number))

    def deliver(self, number: int) -> None:
        self.link.deliver(lambda: self.down.append(number))


def connected() -> Ends:
    ends = Ends()
    ends.link.restore()
    return ends


def test_not_connected_at_first() -> None:
    ends = Ends()
    assert not ends.send(1)
    ends.deliver(1)
    ends.link.drain()
    assert (ends.up, ends.down) == ([], [])


def test_up_at_once_and_down_when_drained() -> None:
    ends = connected()
    assert ends.send(1)
    ends.deliver(2)
    assert (ends.up, ends.down, ends.rung) == ([1], [], 1)
    assert ends.link.waiting
    ends.link.drain()
    assert ends.down == [2]
    assert not ends.link.waiting


def test_a_stall_keeps_everything_in_order() -> None:
    ends = connected()
    ends.link.stall()
    for number in (1, 2):
        assert ends.send(number)
        ends.deliver(number)
    ends.link.drain()
    assert (ends.up, ends.down) == ([], [])
    ends.link.unstall()
    ends.link.drain()
    assert (ends.up, ends.down) == ([1, 2], [1, 2])


def test_a_stall_in_the_middle_of_a_drain() -> None:
    """The first delivery stalls the link; the second waits for the end of the stall."""
    ends = connected()
    ends.link.deliver(ends.link.stall)
    ends.deliver(2)
    ends.link.drain()
    assert ends.down == []
    ends.link.unstall()
    ends.link.drain()
    assert ends.down == [2]


def test_a_cut_loses_what_is_under_way() -> None:
    ends = connected()
    ends.link.stall()
    assert ends.send(1)
    ends.deliver(1)
    ends.link.cut()
    assert not ends.send(2)
    ends.link.restore()
    ends.link.unstall()
    ends.link.drain()
    assert (ends.up, ends.down) == ([], [])
    assert ends.send(3)
    assert ends.up == [3]


def test_the_dead_have_no_effect() -> None:
    ends = connected()
    ends.link.kill()
    ends.link.restore()
    assert not ends.send(1)
    ends.deliver(1)
    ends.link.drain()
    assert (ends.up, ends.down) == ([], [])


async def test_waiting_through_a_stall_that_becomes_a_cut() -> None:
    """One waiter, two interruptions in a row: it goes on when the second one ends."""
    ends = connected()
    ends.link.stall()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.link.wait_flowing)
        await trio.testing.wait_all_tasks_blocked()
        ends.link.cut()
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        ends.link.restore()


async def test_leaving_lets_everybody_go() -> None:
    ends = Ends()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.link.wait_flowing)
        await trio.testing.wait_all_tasks_blocked()
        ends.link.leave()
