"""Conformance: a durable is deleted while somebody has one of its messages.

The deletion ends every lease, and the durable that takes its place delivers everything again. Two
processes must not have one message of a shard at a time all the same.
"""

from __future__ import annotations

import trio

from shove_actors.backends import Delivery, Lane, margins
from shove_actors.messaging import SequenceFailure

from .world import ACK_WAIT_S, SOON_S, Process, World, eventually, nothing_comes, receive


def _sequenced(world: World) -> str:
    """The subject of its one shard."""
    builder = world.builder().sequenced(SequenceFailure.SKIP).routing_shards(1).hold_queue(1)
    world.topology = builder.dlq().build()
    return world.topology.shard_subject(0)


async def _shard(process: Process, ack_wait_s: float = ACK_WAIT_S) -> Lane:
    return await process.lane(
        durable=f"{process.queue}-shard-0",
        filter_subject=f"{process.queue}.shard.0",
        max_ack_pending=1,
        ack_wait_s=ack_wait_s,
    )


async def check_deleted_in_hand_is_given_to_nobody_before_the_lease(world: World) -> None:
    """Whoever has it hears of the deletion, or sees its lease end; then the next one gets it."""
    subject = _sequenced(world)
    async with world.process() as one, world.process(declare=False) as two:
        lane = await _shard(one)
        await one.stored(1, subject=subject)
        held = await receive(lane)
        cancelled: list[float] = []
        lost = trio.Event()

        def on_lost() -> None:
            cancelled.append(trio.current_time())
            lost.set()

        async def handler() -> None:
            await lost.wait()
            lane.forget(held)  # as a worker does whose handler was cancelled

        held.on_lost = on_lost
        other = await _shard(two)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handler)
            deleted_at = trio.current_time()
            await world.delete_durable(world.queue, f"{world.queue}-shard-0")
            # Whoever made the durable again may get it, the first one too.
            taker, again = await _first_of(lane, other)
        assert cancelled
        assert cancelled[0] <= trio.current_time() - margins.DELETED_GRACE_S
        assert trio.current_time() >= deleted_at + 0.9 * ACK_WAIT_S
        assert again.sequence == held.sequence
        taker.ack(again)
        assert await taker.confirm()
        await two.stored(1, subject=subject)
        await nothing_comes_twice(lane, other)


async def _first_of(*lanes: Lane) -> tuple[Lane, Delivery]:
    """Which lane is given something first, and what."""
    found: list[tuple[Lane, Delivery]] = []

    async def take(lane: Lane) -> None:
        found.append((lane, await lane.receive()))
        nursery.cancel_scope.cancel()

    with trio.fail_after(SOON_S):
        async with trio.open_nursery() as nursery:
            for lane in lanes:
                nursery.start_soon(take, lane)
    (first,) = found
    return first


async def nothing_comes_twice(one: Lane, other: Lane) -> None:
    """Both lanes go on; each message goes to one of them."""
    got: list[int] = []

    async def take(lane: Lane) -> None:
        while True:
            delivery = await lane.receive()
            got.append(delivery.sequence)
            lane.ack(delivery)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, one)
        nursery.start_soon(take, other)
        await eventually(lambda: bool(got))
        await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    assert len(got) == 1, got


async def check_deleted_with_nothing_stored_costs_no_lease(world: World) -> None:
    subject = _sequenced(world)
    async with world.process() as one:
        lane = await _shard(one, ack_wait_s=30.0)
        await one.stored(1, subject=subject)
        lane.ack(await receive(lane))
        assert await lane.confirm()
        await world.delete_durable(world.queue, f"{world.queue}-shard-0")
        await one.event("lane_recreated")
        await one.stored(1, subject=subject)
        began = trio.current_time()
        lane.ack(await receive(lane))
        assert trio.current_time() - began < SOON_S


async def check_deleted_with_its_stream_costs_no_lease(world: World) -> None:
    """What the new stream stores was in nobody's hands."""
    subject = _sequenced(world)
    async with world.process() as one:
        lane = await _shard(one, ack_wait_s=30.0)
        await one.stored(1, subject=subject)
        held = await receive(lane)
        await world.delete_stream(world.queue)
        await one.event("lane_waiting")
        await one.backend.declare([world.topology])
        await one.stored(1, subject=subject)
        lane.forget(held)
        lane.ack(await receive(lane))


async def check_deleted_and_made_anew_by_who_starts(world: World) -> None:
    """A process that starts finds no durable, on a stream that was read: it waits a moment."""
    subject = _sequenced(world)
    async with world.process() as one, world.process(declare=False) as two:
        await one.stored(2, subject=subject)
        first = await _shard(one)
        first.ack(await receive(first))
        held = await receive(first)
        await world.delete_durable(world.queue, f"{world.queue}-shard-0")
        lane = await _shard(two)
        await nothing_comes(lane, 0.8 * margins.DELETED_GRACE_S)
        assert held.lost, "it has heard of it by then"
        first.forget(held)
        assert (await receive(lane)).sequence == 2


async def check_a_first_durable_is_read_at_once(world: World) -> None:
    """Nothing was ever given away: what is stored was in nobody's hands."""
    subject = _sequenced(world)
    async with world.process() as one:
        await one.stored(1, subject=subject)
        began = trio.current_time()
        lane = await _shard(one, ack_wait_s=30.0)
        lane.ack(await receive(lane))
        assert trio.current_time() - began < SOON_S


async def check_what_was_settled_last_is_forgotten_with_its_stream(world: World) -> None:
    """Settled again, it would settle what has its number now."""
    subject = _sequenced(world)
    async with world.process() as one:
        lane = await _shard(one)
        await one.stored(1, subject=subject)
        lane.ack(await receive(lane))
        await world.delete_stream(world.queue)
        await eventually(lambda: any(event.kind == "lane_waiting" for event in one.events))
        await one.backend.declare([world.topology])
        await one.stored(1, subject=subject)
        held = await receive(lane, 3 * SOON_S)
        await lane.confirm()
        lane.nak(held)
        await lane.close()
    async with world.process() as two:
        assert (await receive(await _shard(two))).sequence == held.sequence
