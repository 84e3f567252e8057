"""What is remembered of a message's attempts, beyond any process: `runtime/_attempts.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import (
    Broker,
    MemoryConfig,
    MemoryServer,
    MessageMetadata,
    Outcome,
    RequestTimeout,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors.runtime._attempts import NONE, AttemptLedger, Attempts

Handler = Callable[[Any, MessageMetadata], Any]


class Item(msgspec.Struct):
    name: str


def topic(kind: str) -> Topic[Item]:
    builder = TopologyBuilder("q").dlq()
    if kind == "sequenced":
        builder = builder.hold_queue(1).sequenced(SequenceFailure.SKIP).routing_shards(1)
        return SequencedTopic(Item, key=lambda item: "k", topology=builder.build())
    if kind == "holds":
        builder = builder.hold_queue(1)
    return Topic(Item, builder.build())


async def run(broker: Broker, what: Topic[Item], handler: Handler, seconds: float, **options: Any):
    group = broker.consumer_group()
    group.register(what, handler, **options)

    async def over() -> None:
        await trio.sleep(seconds)

    return await group.run_until(over, drain_timeout=0.1)


def dead(server: MemoryServer) -> list[str]:
    return [msgspec.json.decode(m.payload, type=Item).name for m in server.messages("q-dlq")]


@pytest.mark.parametrize("kind", ["holds", "plain", "sequenced"])
@pytest.mark.parametrize("retries", [0, 1])
async def test_drains_cost_no_attempt(
    autojump_clock: trio.testing.MockClock, kind: str, retries: int
) -> None:
    """Five processes are stopped in the middle of a message; the sixth handles it."""
    server, what = MemoryServer(), topic(kind)
    counts: list[int] = []

    async def interrupted(item: Item, metadata: MessageMetadata) -> Outcome:
        counts.append(metadata.retry_count)
        await trio.sleep_forever()
        raise AssertionError

    async def fine(item: Item, metadata: MessageMetadata) -> Outcome:
        counts.append(metadata.retry_count)
        return Outcome.ACK

    for number in range(6):
        async with open_broker(MemoryConfig(server=server)) as broker:
            await broker.declare(what)
            if not number:
                for name in "abc":
                    await broker.publisher().publish(what, Item(name))
            handler = interrupted if number < 5 else fine
            outcome = await run(broker, what, handler, 5.0, max_retries=retries, prefetch=10)
            assert outcome.timed_out is (number < 5)
    assert counts == [0] * (5 + 3)
    assert dead(server) == []
    assert server.messages("q") == []


@pytest.mark.parametrize("kind", ["plain", "sequenced"])
@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_retries_in_place_are_counted_over_processes(
    autojump_clock: trio.testing.MockClock, kind: str, retries: int
) -> None:
    """One failure per process, and a drain in between: exactly 1 + max_retries attempts."""
    server, what, counts = MemoryServer(), topic(kind), []

    async def fails(item: Item, metadata: MessageMetadata) -> Outcome:
        counts.append(metadata.retry_count)
        return Outcome.RETRY

    for number in range(2 + retries):
        async with open_broker(MemoryConfig(server=server)) as broker:
            await broker.declare(what)
            if not number:
                await broker.publisher().publish(what, Item("a"))
            await run(broker, what, fails, 0.5, max_retries=retries)
            await trio.sleep(2)
    assert counts == list(range(1 + retries))
    assert dead(server) == ["a"]


async def test_a_crash_takes_no_neighbour_along(autojump_clock: trio.testing.MockClock) -> None:
    """The process vanishes in the handler of "bad"; three others wait in its window each time."""
    server, what = MemoryServer(), topic("holds")
    started: list[str] = []

    for number in range(7):
        name = f"process-{number}"

        async def handler(item: Item, metadata: MessageMetadata, name: str = name) -> Outcome:
            started.append(item.name)
            if item.name == "bad":
                server.faults.crash(name)
                await trio.sleep_forever()
            return Outcome.ACK

        with trio.move_on_after(100):
            async with open_broker(MemoryConfig(server=server, name=name)) as broker:
                await broker.declare(what)
                if not number:
                    for each in ("bad", "one", "two", "three"):
                        await broker.publisher().publish(what, Item(each))
                await run(broker, what, handler, 40.0, max_retries=3, prefetch=10, ack_wait=10.0)
        await trio.sleep(60)
    assert started.count("bad") == 5
    assert sorted(set(started)) == ["bad", "one", "three", "two"]
    assert dead(server) == ["bad"]
    assert server.messages("q") == []


async def test_without_its_note_a_message_waits(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note cannot be read for a while: the message comes back, and nothing is counted."""
    server, what, counts = MemoryServer(), topic("plain"), []

    async def once(item: Item, metadata: MessageMetadata) -> Outcome:
        counts.append(metadata.retry_count)
        return Outcome.RETRY if len(counts) < 3 else Outcome.ACK

    async with open_broker(MemoryConfig(server=server)) as broker:
        await broker.declare(what)
        read, failures = broker.backend.read_note, iter(range(4))

        async def flaky(stream: str, sequence: int) -> bytes | None:
            if next(failures, None) is not None:
                raise RequestTimeout("no answer")
            return await read(stream, sequence)

        monkeypatch.setattr(broker.backend, "read_note", flaky)
        await broker.publisher().publish(what, Item("a"))
        await run(broker, what, once, 30.0, max_retries=2)
    assert counts == [0, 1, 2]
    assert dead(server) == []
    assert server.messages("q") == []


async def test_a_note_names_the_stored_copy(autojump_clock: trio.testing.MockClock) -> None:
    """Sequences start over when a stream is deleted and created again."""
    server = MemoryServer()
    async with open_broker(MemoryConfig(server=server)) as broker:
        ledger = AttemptLedger(broker.backend)

        class Copy:
            stream, sequence, timestamp_ns = "q", 1, 100

        copy: Any = Copy()
        assert await ledger.read(copy) == NONE
        await ledger.write(copy, Attempts(failed=3, started=True))
        assert await ledger.read(copy) == Attempts(failed=3, started=True)
        copy.timestamp_ns = 200
        assert await ledger.read(copy) == NONE
        await broker.backend.write_note("q", 1, b"no note")
        assert await ledger.read(copy) == NONE
