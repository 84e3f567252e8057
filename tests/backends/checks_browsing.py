"""Conformance: looking at a stream without consuming it, and hearing of marks."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from shove_actors._errors import TopicNotDeclared
from shove_actors.backends import Kept
from shove_actors.messaging import SequenceFailure, encode_headers

from .world import World, eventually


async def check_many_messages_are_looked_at_in_order_and_without_a_gap(world: World) -> None:
    async with world.process() as process:
        backend, queue = process.backend, world.queue
        assert list(await backend.next_messages(queue, 1)) == []
        block = encode_headers({"who": "me"})
        await process.publish_all([(queue, b"%d" % n, block) for n in range(1200)])
        for sequence in (3, 1200, 601):
            assert await backend.delete_message(queue, sequence)
        found: list[Kept] = []
        sequence = 1
        while batch := await backend.next_messages(queue, sequence):
            found += batch
            sequence = batch[-1].sequence + 1
        assert [kept.sequence for kept in found] == [n for n in range(1, 1200) if n not in (3, 601)]
        assert [kept.payload for kept in found[:3]] == [b"0", b"1", b"3"]
        one = await backend.next_message(queue, 700)
        assert one in found
        assert found[0].raw_headers == block
        assert next(iter(await backend.next_messages(queue, 0))).sequence == 1
        lane = await process.lane(credit=1)
        assert (await lane.receive()).num_delivered == 1, "looking delivers nothing"


async def check_large_messages_are_looked_at_too(world: World) -> None:
    """Each larger than what one look brings by its size, or nearly."""
    async with world.process() as process:
        size = process.backend.max_payload - 200
        await process.publish_all([(world.queue, bytes([n]) * size, b"") for n in range(6)])
        found: list[Kept] = []
        sequence = 1
        while batch := await process.backend.next_messages(world.queue, sequence):
            found += batch
            sequence = batch[-1].sequence + 1
        assert [kept.payload[:1] for kept in found] == [bytes([n]) for n in range(6)]


async def check_the_end_of_a_stream_says_of_which_one(world: World) -> None:
    async with world.process() as process:
        backend, queue = process.backend, world.queue
        empty = await backend.stream_end(queue)
        assert empty.sequence == 0
        await process.stored(2)
        end = await backend.stream_end(queue)
        assert (end.sequence, end.made) == (2, empty.made)
        await world.delete_stream(queue)
        for look in (backend.stream_end(queue), backend.next_messages(queue, 1)):
            with pytest.raises(TopicNotDeclared):
                await look
        await backend.declare([world.topology])
        again = await backend.stream_end(queue)
        assert again.sequence == 0
        assert again.made != end.made


async def check_a_place_for_marks_is_there_once_fail_all_is_declared(world: World) -> None:
    async with world.process() as process:
        backend, queue = process.backend, world.queue
        assert not await backend.keeps_marks(queue)
        await world.delete_stream(queue)
        builder = world.builder().sequenced(SequenceFailure.FAIL_ALL).routing_shards(1)
        await backend.declare([builder.hold_queue(1).dlq().build()])
        assert await backend.keeps_marks(queue)


async def check_marks_are_announced_to_who_watches(world: World) -> None:
    builder = world.builder().sequenced(SequenceFailure.FAIL_ALL).routing_shards(1)
    world.topology = builder.hold_queue(1).dlq().build()
    heard: list[str] = []
    async with world.process() as one, world.process(declare=False) as two:
        ends = [
            process.backend.watch_marks(world.queue, partial(heard.append, name))
            for name, process in (("one", one), ("two", two))
        ]
        await one.backend.read_mark(world.queue, "k-a")  # and the servers know it
        await two.backend.read_mark(world.queue, "k-a")
        assert await two.backend.write_mark(world.queue, "k-a", b"x", revision=0)
        await eventually(lambda: sorted(heard) == ["one", "two"])
        revision = (await one.backend.read_mark(world.queue, "k-a")).revision
        assert await one.backend.write_mark(world.queue, "k-a", None, revision=revision)
        await eventually(lambda: sorted(heard) == ["one", "one", "two", "two"])
        ends[0]()
        await one.backend.read_mark(world.queue, "k-a")
        await trio.sleep(0.1)
        revision = (await one.backend.read_mark(world.queue, "k-a")).revision
        assert await two.backend.write_mark(world.queue, "k-a", b"y", revision=revision)
        await eventually(lambda: heard.count("two") == 3)
        await trio.sleep(0.1)
        assert heard.count("one") == 2
        ends[1]()
