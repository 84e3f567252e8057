"""Conformance: marks beside a queue, looking at streams, and who was given a shard's messages."""

from __future__ import annotations

import itertools

import pytest
import trio

from shove_actors._errors import TopicNotDeclared
from shove_actors.backends import Lane, Mark, Tenure
from shove_actors.messaging import SequenceFailure, encode_headers

from .world import Process, World, receive


def _fail_all(world: World) -> None:
    world.topology = (
        world.builder()
        .sequenced(SequenceFailure.FAIL_ALL)
        .routing_shards(1)
        .hold_queue(1)
        .dlq()
        .build()
    )


async def check_a_mark_is_put_read_and_taken_away(world: World) -> None:
    _fail_all(world)
    async with world.process() as one, world.process(declare=False) as other:
        backend, queue = one.backend, world.queue
        assert await backend.read_mark(queue, "k-a") == Mark(None, 0)
        assert await backend.list_marks(queue) == []
        assert await backend.write_mark(queue, "k-a", b"first", revision=0)
        seen = await other.backend.read_mark(queue, "k-a")
        assert seen.value == b"first"
        assert seen.revision > 0
        assert await backend.write_mark(queue, "b-", b"", revision=0)
        assert await other.backend.list_marks(queue) == [
            ("b-", await backend.read_mark(queue, "b-")),
            ("k-a", seen),
        ]
        assert await other.backend.write_mark(queue, "k-a", None, revision=seen.revision)
        gone = await backend.read_mark(queue, "k-a")
        assert gone.value is None
        assert gone.revision > seen.revision
        assert [name for name, _ in await backend.list_marks(queue)] == ["b-"]
        assert await backend.write_mark(queue, "k-a", b"again", revision=gone.revision)


async def check_a_mark_that_changed_meanwhile_is_left_alone(world: World) -> None:
    _fail_all(world)
    async with world.process() as process:
        backend, queue = process.backend, world.queue
        assert await backend.write_mark(queue, "k-a", b"first", revision=0)
        revision = (await backend.read_mark(queue, "k-a")).revision
        for stale in (0, revision - 1, revision + 1):
            assert not await backend.write_mark(queue, "k-a", b"second", revision=stale)
            assert not await backend.write_mark(queue, "k-a", None, revision=stale)
        assert await backend.read_mark(queue, "k-a") == Mark(b"first", revision)


async def check_one_of_many_writers_wins(world: World) -> None:
    _fail_all(world)
    won: list[int] = []
    async with world.process() as one, world.process(declare=False) as two:

        async def write(number: int) -> None:
            backend = (one, two)[number % 2].backend
            if await backend.write_mark(world.queue, "k-a", b"%d" % number, revision=0):
                won.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(write, number)
        (winner,) = won
        assert (await one.backend.read_mark(world.queue, "k-a")).value == b"%d" % winner


async def check_marks_need_no_declaring_and_outlive_processes(world: World) -> None:
    """The place for them is made when it is needed."""
    async with world.process() as process:  # a plain topology: nothing is made for marks
        assert await process.backend.read_mark(world.queue, "k-a") == Mark(None, 0)
        assert await process.backend.list_marks(world.queue) == []
        assert await process.backend.write_mark(world.queue, "k-a", b"kept", revision=0)
    async with world.process() as process:
        assert (await process.backend.read_mark(world.queue, "k-a")).value == b"kept"


async def check_a_stream_can_be_looked_through(world: World) -> None:
    async with world.process() as process:
        backend = process.backend
        assert await backend.last_sequence(world.queue) == 0
        assert await backend.next_message(world.queue, 1) is None
        block = encode_headers({"x": "y"})
        await process.publish(b"one", block=block)
        await process.publish(b"")
        await process.publish(b"three")
        assert await backend.last_sequence(world.queue) == 3
        found = await backend.next_message(world.queue, 0)
        assert found is not None
        assert (found.sequence, found.subject, found.payload) == (1, world.queue, b"one")
        assert found.raw_headers == block
        assert abs(found.timestamp_ns - backend.now_ns()) < 60e9
        second = await backend.next_message(world.queue, 2)
        assert second is not None
        assert (second.sequence, second.payload, second.raw_headers) == (2, b"", None)
        assert await backend.delete_message(world.queue, 2)
        assert not await backend.delete_message(world.queue, 2)
        assert not await backend.delete_message(world.queue, 77)
        third = await backend.next_message(world.queue, 2)
        assert third is not None
        assert (third.sequence, third.payload) == (3, b"three")
        assert await backend.next_message(world.queue, 4) is None
        # Nothing was delivered by that.
        lane = await process.lane()
        assert [(await _next(lane)) for _ in range(2)] == [b"one", b"three"]
        assert await backend.last_sequence(world.queue) == 3


async def _next(lane: Lane) -> bytes:
    delivery = await receive(lane)
    assert delivery.num_delivered == 1
    lane.ack(delivery)
    return delivery.payload


async def check_looking_needs_a_stream(world: World) -> None:
    async with world.process(declare=False) as process:
        with pytest.raises(TopicNotDeclared, match=world.queue):
            await process.backend.last_sequence(world.queue)
        with pytest.raises(TopicNotDeclared, match=world.queue):
            await process.backend.next_message(world.queue, 1)
        with pytest.raises(TopicNotDeclared, match=world.queue):
            await process.backend.delete_message(world.queue, 1)


async def _shard(process: Process) -> Lane:
    return await process.lane(
        durable=f"{process.queue}-shard-0",
        filter_subject=f"{process.queue}.shard.0",
        max_ack_pending=1,
    )


async def check_a_tenure_lasts_while_nobody_else_is_given_anything(world: World) -> None:
    _fail_all(world)
    subject = f"{world.queue}.shard.0"
    async with world.process() as one, world.process(declare=False) as two:
        lane = await _shard(one)
        await one.stored(4, subject=subject)
        tenures = []
        for index in range(4):
            delivery = await receive(lane)
            tenures.append(delivery.tenure)
            if index == 1:
                lane.nak(delivery)  # comes again, to us: still nobody else
                again = await receive(lane)
                assert again.sequence == delivery.sequence
                tenures.append(again.tenure)
                delivery = again
            lane.ack(delivery)
        assert len(set(tenures)) == 1
        assert tenures[0] > 0
        await lane.close()
        other = await _shard(two)
        await one.stored(1, subject=subject)
        theirs = await receive(other)
        other.ack(theirs)
        assert await other.confirm()
        await other.close()
        back = await _shard(one)
        await one.stored(1, subject=subject)
        mine = await receive(back)
        assert mine.tenure not in (0, tenures[0], theirs.tenure)
        back.ack(mine)


async def check_a_tenure_ends_when_somebody_had_one_in_between(world: World) -> None:
    """Two lanes stay open, and the server gives to them in turn."""
    _fail_all(world)
    subject = f"{world.queue}.shard.0"
    async with world.process() as one, world.process(declare=False) as two:
        lanes = [await _shard(one), await _shard(two)]
        history: list[tuple[int, int]] = []

        async def take(number: int) -> None:
            while True:
                delivery = await lanes[number].receive()
                history.append((number, delivery.tenure))
                lanes[number].ack(delivery)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, 0)
            nursery.start_soon(take, 1)
            for _ in range(12):
                before = len(history)
                await one.stored(1, subject=subject)
                with trio.fail_after(10):
                    while len(history) == before:  # noqa: ASYNC110
                        await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    for (who, tenure), (next_who, next_tenure) in itertools.pairwise(history):
        assert (tenure == next_tenure) is (who == next_who)


async def check_a_plain_lane_has_no_tenure(world: World) -> None:
    async with world.process() as process:
        lane = await process.lane(credit=2)
        await process.stored(2)
        assert [(await receive(lane)).tenure for _ in range(2)] == [0, 0]


async def check_another_durable_is_another_tenure(world: World) -> None:
    _fail_all(world)
    subject = f"{world.queue}.shard.0"
    async with world.process() as process:
        lane = await _shard(process)
        await process.stored(1, subject=subject)
        first = await receive(lane)
        lane.ack(first)
        assert await lane.confirm()
        await world.delete_durable(world.queue, f"{world.queue}-shard-0")
        await process.event("lane_recreated")
        await process.stored(1, subject=subject)
        second = await receive(lane)
        assert second.tenure not in (0, first.tenure)
        assert Tenure().of(1) > second.tenure, "numbers are never used twice"
