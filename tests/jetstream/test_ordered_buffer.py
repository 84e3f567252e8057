"""The buffer of an ordered reader: when the server's questions are answered, and who gets what."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors._errors import ConnectionClosed
from shove_actors.jetstream._ordered_buffer import OrderedBuffer, Pushed


def message(number: int) -> Pushed:
    return Pushed(b"s", number, 0, 0, None, b"")


async def test_a_question_is_answered_when_what_came_before_it_was_taken() -> None:
    answered: list[bytes] = []
    buffer = OrderedBuffer(answered.append)
    buffer.ask(b"at once")
    assert answered == [b"at once"]
    buffer.put(message(1))
    buffer.put(message(2))
    buffer.ask(b"later")
    buffer.ask(b"later")  # a heartbeat repeats it
    buffer.put(message(3))
    assert await buffer.receive() == message(1)
    assert answered == [b"at once"]
    assert await buffer.receive() == message(2)
    assert answered == [b"at once", b"later"]
    assert buffer.receive_nowait() == message(3)
    with pytest.raises(trio.WouldBlock):
        buffer.receive_nowait()
    assert answered == [b"at once", b"later"]


async def test_who_waits_for_the_mark_is_not_waited_for() -> None:
    answered: list[bytes] = []
    buffer = OrderedBuffer(answered.append)
    buffer.put(message(1))
    buffer.ask(b"one")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.wait_marked)
        await trio.testing.wait_all_tasks_blocked()
        assert answered == [b"one"]
        buffer.put(message(2))
        buffer.ask(b"two")
        assert answered == [b"one", b"two"]
        buffer.put_mark()
    assert [buffer.receive_nowait() for _ in range(3)] == [message(1), message(2), None]
    buffer.put(message(3))
    buffer.ask(b"three")
    assert answered == [b"one", b"two"]


async def test_a_cancelled_read_has_taken_nothing() -> None:
    buffer = OrderedBuffer(lambda _: None, marked=True)
    buffer.put(message(1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await buffer.receive()
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        waiting = trio.CancelScope()

        async def wait() -> None:
            with waiting:
                await buffer.receive()
                await buffer.receive()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        waiting.cancel()
    buffer.put(message(2))
    assert await buffer.receive() == message(2)


async def test_several_readers_share_it() -> None:
    buffer = OrderedBuffer(lambda _: None, marked=True)
    taken: list[int] = []

    async def read() -> None:
        while True:
            try:
                item = await buffer.receive()
            except trio.EndOfChannel:
                return
            assert item is not None
            taken.append(item.sequence)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(100):
            buffer.put(message(number))
        await trio.testing.wait_all_tasks_blocked()
        buffer.end(trio.EndOfChannel)
    assert sorted(taken) == list(range(100))


async def test_the_end_comes_behind_what_is_buffered() -> None:
    buffer = OrderedBuffer(lambda _: None)
    buffer.put(message(1))
    buffer.end(lambda: ConnectionClosed("closed"))
    buffer.end(trio.EndOfChannel)  # the first reason counts
    assert await buffer.receive() == message(1)
    for _ in range(2):
        with pytest.raises(ConnectionClosed):
            await buffer.receive()
    with pytest.raises(ConnectionClosed):
        buffer.receive_nowait()
    with pytest.raises(ConnectionClosed):
        await buffer.wait_marked()


async def test_dropping_ends_it_at_once() -> None:
    buffer = OrderedBuffer(lambda _: None)
    buffer.put(message(1))
    buffer.end(trio.EndOfChannel, drop=True)
    with pytest.raises(trio.EndOfChannel):
        await buffer.receive()


async def test_a_reader_that_never_waits_lets_others_run() -> None:
    buffer = OrderedBuffer(lambda _: None)
    for number in range(100):
        buffer.put(message(number))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(100):
            await buffer.receive()
        nursery.cancel_scope.cancel()
    assert turns >= 5
