"""Conformance: declaring streams, opening durables, and losing either."""

from __future__ import annotations

import pytest
import trio

from shove_actors._errors import TopicNotDeclared, TopologyError
from shove_actors.backends import Stored
from shove_actors.messaging import (
    NatsStreamConfig,
    Retention,
    SequenceFailure,
    Storage,
    Topology,
)

from .world import SOON_S, World, drain, nothing_comes, receive


async def check_declare_makes_every_stream(world: World) -> None:
    world.topology = world.builder().hold_queue(5).hold_queue(30).dlq().build()
    async with world.process() as process:
        for name in world.topology.stream_names():
            assert await process.publish(subject=name) == Stored(name, 1)


async def check_pc066_declaring_again(world: World) -> None:
    """Unchanged: nothing happens. A mutable change is applied. An immutable one is refused."""
    async with world.process() as process:
        await process.publish()
        await process.backend.declare([world.topology])
        bounded = world.builder().nats_stream_config(NatsStreamConfig(max_messages=2)).build()
        await process.backend.declare([bounded])
        await process.publish()
        assert not isinstance(await process.publish(), Stored)
        # Without a NatsStreamConfig the limits are whoever's who set them; with one they are ours.
        await process.backend.declare([world.topology])
        assert not isinstance(await process.publish(), Stored)
        unbounded = world.builder().nats_stream_config(NatsStreamConfig()).build()
        await process.backend.declare([unbounded])
        assert isinstance(await process.publish(), Stored)
        for config, setting, value in (
            (NatsStreamConfig(retention=Retention.LIMITS), "retention", "limits"),
            (NatsStreamConfig(storage=Storage.MEMORY), "storage", "memory"),
        ):
            other = world.builder().nats_stream_config(config).build()
            with pytest.raises(TopologyError) as caught:
                await process.backend.declare([other])
            for word in (world.queue, setting, value):
                assert word in str(caught.value)


async def check_processes_declare_at_the_same_time(world: World) -> None:
    world.topology = world.builder().hold_queue(5).dlq().build()
    async with (
        world.process(declare=False) as one,
        world.process(declare=False) as two,
        world.process(declare=False) as three,
    ):
        async with trio.open_nursery() as nursery:
            for process in (one, two, three):
                nursery.start_soon(process.backend.declare, [world.topology])
        assert await one.publish() == Stored(world.queue, 1)


async def check_changing_shards_needs_an_empty_stream(world: World) -> None:
    def sharded(shards: int) -> object:
        return (
            world.builder()
            .sequenced(SequenceFailure.SKIP)
            .routing_shards(shards)
            .allow_message_loss()
            .build()
        )

    world.topology = four = sharded(4)  # type: ignore[assignment]
    async with world.process() as process:
        await process.stored(1, subject=f"{world.queue}.shard.3")
        with pytest.raises(TopologyError, match="routing_shards"):
            await process.backend.declare([sharded(8)])  # type: ignore[list-item]
        await process.backend.declare([four])  # type: ignore[list-item]
        lane = await process.lane(
            durable=f"{world.queue}-shard-3",
            filter_subject=f"{world.queue}.shard.3",
            max_ack_pending=1,
        )
        await drain(lane, 1)
        assert await lane.confirm()
        await process.backend.declare([sharded(8)])  # type: ignore[list-item]
        await process.stored(1, subject=f"{world.queue}.shard.7")


async def check_plain_to_sequenced_and_back_needs_nothing_left(world: World) -> None:
    """Neither a message, nor a held one, nor a durable: each would be stranded or in the way."""
    plain = world.builder().hold_queue(5).dlq().build()
    sequenced = (
        world.builder()
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(2)
        .hold_queue(7)
        .dlq()
        .build()
    )
    shard = f"{world.queue}.shard.1"
    ways = (
        (plain, sequenced, world.queue, f"{world.queue}-consumer", None),
        (sequenced, plain, shard, f"{world.queue}-shard-1", shard),
    )
    async with world.process(declare=False) as process:
        for old, new, subject, durable, filter_subject in ways:
            hold = old.holds[0].name
            await process.backend.declare([old])

            async def refused(words: tuple[str, ...], old: Topology, new: Topology) -> None:
                with pytest.raises(TopologyError) as caught:
                    await process.backend.declare([new])
                for word in (world.queue, "plain", "sequenced", *words):
                    assert word in str(caught.value)
                await process.backend.declare([old])  # as it was

            await process.stored(1, subject=subject)
            await process.publish(subject=hold)
            await refused(("1 message", hold), old, new)
            lane = await process.lane(
                durable=durable,
                filter_subject=filter_subject,
                max_ack_pending=1 if filter_subject else 8,
            )
            await drain(lane, 1)
            assert await lane.confirm()
            mover = await process.lane(stream=hold, durable=f"{hold}-mover")
            await refused((hold, durable), old, new)
            await drain(mover, 1)
            assert await mover.confirm()
            await process.close_lanes()
            await refused((durable, "delete"), old, new)
            await world.delete_durable(world.queue, durable)
            await process.backend.declare([new])


async def check_shards_are_separate_lanes(world: World) -> None:
    """Durables with disjoint filters share a work queue; one that is held up holds up no other."""
    world.topology = (
        world.builder()
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(2)
        .allow_message_loss()
        .build()
    )
    async with world.process() as process:
        lanes = [
            await process.lane(
                durable=f"{world.queue}-shard-{n}",
                filter_subject=f"{world.queue}.shard.{n}",
                max_ack_pending=1,
            )
            for n in range(2)
        ]
        await process.stored(3, subject=f"{world.queue}.shard.0")
        await process.stored(3, subject=f"{world.queue}.shard.1")
        stuck = await receive(lanes[0])
        came = await drain(lanes[1], 3)
        assert [d.payload for d in came] == [b"0", b"1", b"2"]
        assert {d.subject for d in came} == {f"{world.queue}.shard.1"}
        lanes[0].ack(stuck)
        assert [d.payload for d in await drain(lanes[0], 2)] == [b"1", b"2"]


async def check_subjects_of_the_users_choice(world: World) -> None:
    world.topology = world.builder().nats_subjects([f"{world.queue}.in.*"]).build()
    async with world.process() as process:
        assert isinstance(await process.publish(subject=f"{world.queue}.in.a"), Stored)
        assert not isinstance(await process.publish(subject=f"{world.queue}.out"), Stored)
        lane = await process.lane()
        assert (await receive(lane)).subject == f"{world.queue}.in.a"


async def check_streams_cannot_share_subjects(world: World) -> None:
    async with world.process() as process:
        other = (
            type(world.builder())(f"{world.queue}-other")
            .nats_subjects([world.queue, f"{world.queue}-x"])
            .build()
        )
        with pytest.raises(TopologyError):
            await process.backend.declare([other])


async def check_external_stream_is_verified(world: World) -> None:
    external = world.builder().nats_external_stream().build()
    async with world.process(declare=False) as process:
        with pytest.raises(TopologyError, match=world.queue):
            await process.backend.declare([external])
        assert not isinstance(await process.publish(), Stored)
        await process.backend.declare([world.topology])
        await process.backend.declare([external])
        assert await process.publish() == Stored(world.queue, 1)


async def check_dead_letters_can_be_read_again(world: World) -> None:
    """A dead-letter queue keeps what was acknowledged: another durable still sees it (SW-59)."""
    world.topology = world.builder().dlq().build()
    dlq = f"{world.queue}-dlq"
    async with world.process() as process:
        await process.stored(2, subject=dlq)
        lane = await process.lane(stream=dlq, credit=2)
        await drain(lane, 2)
        assert await lane.confirm()
        browser = await process.lane(stream=dlq, durable=f"{dlq}-browser", credit=2)
        assert [d.payload for d in await drain(browser, 2)] == [b"0", b"1"]


async def check_pc011_lane_without_a_stream(world: World) -> None:
    async with world.process(declare=False) as process:
        with pytest.raises(TopicNotDeclared, match=world.queue):
            await process.lane()


async def check_pc068_durable_is_corrected(world: World) -> None:
    """A durable that somebody made with another limit: brought to ours before it delivers."""
    async with world.process() as process:
        loose = await process.lane(max_ack_pending=10)
        await loose.close()
        await process.stored(2)
        strict = await process.lane(max_ack_pending=1, credit=5)
        first = await receive(strict)
        await nothing_comes(strict, 0.3)
        strict.ack(first)
        strict.ack(await receive(strict))


async def check_pc068_durable_with_another_filter_is_refused(world: World) -> None:
    world.topology = world.builder().nats_subjects([f"{world.queue}.*"]).build()
    async with world.process() as process:
        lane = await process.lane(filter_subject=f"{world.queue}.a")
        await lane.close()
        with pytest.raises(TopologyError, match=f"{world.queue}-consumer"):
            await process.lane(filter_subject=f"{world.queue}.b")


async def check_pc071_second_reader_of_a_work_queue(world: World) -> None:
    async with world.process() as one, world.process() as other:
        await one.lane()
        with pytest.raises(TopologyError, match="work queue"):
            await other.lane(durable=f"{world.queue}-second")
        # The same name shares the work instead.
        theirs = await other.lane()
        await other.publish()
        await one.publish()
        with trio.fail_after(SOON_S):
            assert (await theirs.receive()).num_delivered == 1


async def check_limits_retention_has_many_readers(world: World) -> None:
    config = NatsStreamConfig(retention=Retention.LIMITS)
    world.topology = world.builder().nats_stream_config(config).build()
    async with world.process() as process:
        await process.stored(3)
        for durable in ("first", "second"):
            lane = await process.lane(durable=f"{world.queue}-{durable}", credit=3)
            assert [d.payload for d in await drain(lane, 3)] == [b"0", b"1", b"2"]


async def check_deleted_durable_is_made_again(world: World) -> None:
    async with world.process() as process:
        lane = await process.lane()
        await process.stored(1)
        await drain(lane, 1)
        assert await lane.confirm()
        await world.delete_durable(world.queue, f"{world.queue}-consumer")
        await process.publish(b"later")
        assert (await receive(lane)).payload == b"later"
        await process.event("lane_recreated")


async def check_leases_end_with_their_durable(world: World) -> None:
    """A new durable delivers everything unsettled again, so what is in hand must be let go."""
    async with world.process() as process:
        # Room for more than it holds: a pull waits, so the lane hears of the deletion.
        lane = await process.lane(credit=2)
        await process.stored(1)
        held = await receive(lane)
        cancelled = trio.Event()
        held.on_lost = cancelled.set
        await world.delete_durable(world.queue, f"{world.queue}-consumer")
        with trio.fail_after(SOON_S):
            await cancelled.wait()
        assert held.lost
        lane.ack(held)  # too late: dropped; what comes again may go on
        again = await receive(lane)
        assert again is not held
        assert (again.sequence, again.payload) == (1, b"0")
        lane.ack(again)
        assert await lane.confirm()
        assert await process.backlog() == (0, 0)


async def check_lane_survives_its_stream(world: World) -> None:
    async with world.process() as process:
        lane = await process.lane()
        await process.stored(1)
        await drain(lane, 1)
        assert await lane.confirm()
        await world.delete_stream(world.queue)
        await process.event("lane_waiting")
        assert not isinstance(await process.publish(), Stored)
        await process.backend.declare([world.topology])
        await process.publish(b"in the new stream")
        delivery = await receive(lane)
        assert (delivery.sequence, delivery.payload) == (1, b"in the new stream")
        lane.ack(delivery)
