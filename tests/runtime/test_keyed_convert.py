"""A topic that becomes keyed, and back: its durables are changed in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from shove_actors import MemoryServer, Outcome, SequencedTopic, TopologyError
from shove_actors._groups import unwrapped
from shove_actors.embedded import ServerProcess
from shove_actors.messaging import SequenceFailure, TopologyBuilder

from .keyed import Log, Note, Server, broker, serving


def made(queue: str, *, keyed: bool) -> SequencedTopic[Note]:
    builder = TopologyBuilder(queue).sequenced(SequenceFailure.SKIP).routing_shards(2)
    if keyed:
        builder = builder.keyed(8)
    return SequencedTopic(Note, key=lambda n: n.key, topology=builder.hold_queue(1).dlq().build())


async def check_there_and_back(server: Server, queue: str) -> None:
    log = Log()

    async def handle(note: Note) -> Outcome:
        log.begin(note)
        log.end(note)
        return Outcome.ACK

    async with broker(server) as opened:
        for turn, keyed in enumerate((False, True, False, True)):
            subject = made(queue, keyed=keyed)
            await opened.declare(subject)
            notes = [Note(f"k{n}", turn) for n in range(10)]
            await opened.publisher().publish_batch(subject, notes)
            async with serving(opened, subject, handle):
                await log.until(10 * (turn + 1))
    assert all(log.of(f"k{n}") == [0, 1, 2, 3] for n in range(10))


async def check_not_while_it_is_keyed(server: Server, queue: str) -> None:
    """Whoever has many keys in hand goes on with them, whatever becomes of the durable. While
    he has enough of them he asks for nothing, and still he is there.
    """
    log = Log()

    async def handle(note: Note) -> Outcome:
        log.begin(note)
        await trio.sleep(0.2)
        log.end(note)
        return Outcome.ACK

    keyed, not_keyed = made(queue, keyed=True), made(queue, keyed=False)
    async with broker(server) as one, broker(server) as other:
        await one.declare(keyed)
        async with serving(one, keyed, handle):
            notes = [Note(f"k{n % 10}", n // 10) for n in range(400)]
            await one.publisher().publish_batch(keyed, notes)
            await log.until(10)
            await other.declare(not_keyed)
            with pytest.raises(TopologyError, match="whose topic is keyed"), unwrapped(2):
                async with serving(other, not_keyed, handle):
                    await trio.sleep(20)
            await log.until(400)
    assert all(log.of(f"k{n}") == list(range(40)) for n in range(10))


async def test_not_on_a_server(server: ServerProcess, fresh_queue: Callable[[], str]) -> None:
    await check_not_while_it_is_keyed(server, fresh_queue())


async def test_nor_in_memory(autojump_clock: trio.testing.MockClock) -> None:
    await check_not_while_it_is_keyed(MemoryServer(), "q")


async def test_on_a_server(server: ServerProcess, fresh_queue: Callable[[], str]) -> None:
    await check_there_and_back(server, fresh_queue())


async def test_in_memory(autojump_clock: trio.testing.MockClock) -> None:
    await check_there_and_back(MemoryServer(), "q")
