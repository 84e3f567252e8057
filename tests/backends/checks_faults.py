"""Conformance: bad days. What the memory backend models is what a real server does.

Times are compared with room on the late side only, and on the early side as exactly as the server
keeps them: over a restart it knows them in whole seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from shove_actors._errors import PublishUnknown
from shove_actors.backends import Stored, margins
from shove_actors.messaging import MSG_ID, encode_headers

from .world import ACK_WAIT_S, SOON_S, Process, World, eventually, nothing_comes, receive

#: Longer than the second by which a restart may shorten it, with room for a busy machine.
LEASE_S = 4.0
#: What a server needs to have its consumers' state on disk (`WRITE_INTERVAL_S`), generously.
ON_DISK_S = 0.5


async def _away(world: World, process: Process) -> None:
    await world.disturb.disconnect(process.backend)
    await eventually(lambda: not process.backend.connected)


async def _back(world: World, process: Process) -> None:
    await world.disturb.reconnect(process.backend)
    with trio.fail_after(SOON_S):
        await process.backend.wait_connected()


async def _until(predicate: Callable[[], Awaitable[bool]]) -> None:
    """As `eventually`, for what has to be asked for."""
    with trio.fail_after(SOON_S):
        while not await predicate():  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.02)


async def _backlog(process: Process, pending: int, ack_pending: int) -> None:
    async def reached() -> bool:
        return await process.backlog() == (pending, ack_pending)

    await _until(reached)


async def check_fault_a_settle_while_cut_off_is_dropped(world: World) -> None:
    async with world.process() as one, world.process() as other:
        await one.stored(1)
        mine = await one.lane(ack_wait_s=LEASE_S)
        held = await receive(mine)
        await _away(world, one)
        mine.ack(held)
        assert held.lost
        theirs = await other.lane(ack_wait_s=LEASE_S)
        again = await receive(theirs)
        assert (again.sequence, again.num_delivered) == (1, 2)
        assert again.arrived_at >= held.arrived_at + LEASE_S * 0.9
        theirs.ack(again)
        await _back(world, one)
        await _backlog(one, 0, 0)


async def check_fault_an_acknowledgement_lost_with_the_connection(world: World) -> None:
    """Sent, and never read: the message comes again, to whoever is there."""
    async with world.process() as one, world.process() as other:
        await one.stored(1)
        mine = await one.lane(ack_wait_s=LEASE_S)
        held = await receive(mine)
        await world.disturb.stall(one.backend, "up")
        mine.ack(held)
        assert not held.lost, "nobody can know"
        await trio.sleep(0.1)
        await _away(world, one)
        theirs = await other.lane(ack_wait_s=LEASE_S)
        again = await receive(theirs)
        assert again.num_delivered == 2
        theirs.ack(again)


async def check_fault_a_publish_whose_answer_is_lost(world: World) -> None:
    async with world.process() as one, world.process() as other:
        await world.disturb.stall(one.backend, "down")
        async with trio.open_nursery() as nursery:
            results: list[object] = []

            async def publish() -> None:
                results.append(await one.publish(headers={MSG_ID: "id"}))

            async def stored() -> bool:
                return await other.backend.last_sequence(world.queue) == 1

            nursery.start_soon(publish)
            await _until(stored)
            await _away(world, one)
            await world.disturb.unstall(one.backend)
        assert isinstance(results[0], PublishUnknown)
        await _back(world, one)
        # It was stored, and is not stored again.
        assert await one.publish(headers={MSG_ID: "id"}) == Stored(world.queue, 1, duplicate=True)


async def check_fault_a_stall_loses_nothing(world: World) -> None:
    async with world.process() as one:
        lane = await one.lane(credit=3)
        await world.disturb.stall(one.backend, "both")
        results: list[object] = []
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                results.extend(
                    await one.publish_all([(world.queue, b"%d" % n, b"") for n in range(3)])
                )

            nursery.start_soon(publish)
            await trio.sleep(0.3)
            assert not results
            await world.disturb.unstall(one.backend)
        assert results == [Stored(world.queue, n) for n in (1, 2, 3)]
        for n in range(3):
            delivery = await receive(lane)
            assert delivery.payload == b"%d" % n
            lane.ack(delivery)


async def check_fault_an_old_lease_outlives_the_connection(world: World) -> None:
    """And is renewed first thing."""
    async with world.process() as one:
        await one.stored(1)
        lane = await one.lane(ack_wait_s=LEASE_S, max_ack_pending=1)
        held = await receive(lane)
        await trio.sleep(margins.FORGETFUL_S + 0.1)
        before = held.leased_at
        await _away(world, one)
        assert not held.lost
        await _back(world, one)
        await eventually(lambda: held.leased_at > before)
        lane.ack(held)
        assert not held.lost
        await _backlog(one, 0, 0)


async def check_fault_a_young_delivery_of_a_shard_is_given_up(world: World) -> None:
    """A killed server may have forgotten it. The same one gets it back, so nobody waits."""
    async with world.process() as one:
        await one.stored(1)
        lane = await one.lane(ack_wait_s=30.0, max_ack_pending=1)
        held = await receive(lane)
        cancelled = trio.Event()
        held.on_lost = cancelled.set
        await _away(world, one)
        assert cancelled.is_set()
        assert held.fenced
        await _back(world, one)
        lane.forget(held)
        again = await receive(lane)
        assert again.sequence == 1
        lane.ack(again)
        await _backlog(one, 0, 0)


async def check_fault_a_settle_that_nobody_reads_is_void_with_its_lease(world: World) -> None:
    """Or it would settle the message under the next owner: the connection is cut."""
    async with world.process() as one, world.process() as other:
        await one.stored(2)
        mine = await one.lane(ack_wait_s=LEASE_S, max_ack_pending=1)
        held = await receive(mine)
        theirs = await other.lane(ack_wait_s=LEASE_S, max_ack_pending=1)
        await world.disturb.stall(one.backend, "up")
        mine.ack(held)
        again = await receive(theirs)
        # Not necessarily for the second time: a real lane has asked ahead, so that the server may
        # have given it to the stalled process again.
        assert again.sequence == 1
        assert again.num_delivered >= 2
        await eventually(lambda: any(event.kind == "disconnected" for event in one.events))
        await world.disturb.unstall(one.backend)
        with trio.fail_after(SOON_S):
            await one.backend.wait_connected()
        await nothing_comes(mine, 0.3)
        await _backlog(other, 1, 1)
        theirs.ack(again)
        assert (await receive(mine)).sequence == 2


async def check_fault_restart_keeps_what_is_acknowledged(world: World) -> None:
    async with world.process() as one:
        await one.stored(3)
        lane = await one.lane()
        lane.ack(await receive(lane))
        assert await lane.confirm()
        await trio.sleep(ON_DISK_S)
        await world.disturb.restart(killed=True)
        with trio.fail_after(SOON_S):
            await one.backend.wait_connected()
        seen = []
        while len(seen) < 2:
            delivery = await receive(lane)
            lane.ack(delivery)
            seen.append(delivery.sequence)
        assert sorted(seen) == [2, 3]


async def check_fault_an_acknowledgement_survives_a_kill_at_once(world: World) -> None:
    """On a work queue: what is acknowledged is gone from the stream, whatever is forgotten."""
    async with world.process() as one:
        await one.stored(2)
        # The next one may be given out before the kill; if that is on disk, its lease goes on.
        lane = await one.lane(max_ack_pending=1, ack_wait_s=LEASE_S)
        lane.ack(await receive(lane))
        assert await lane.confirm()
        await world.disturb.restart(killed=True)
        with trio.fail_after(SOON_S):
            await one.backend.wait_connected()
        delivery = await receive(lane)
        if delivery.lost:  # it had come before the kill, and is fenced
            lane.forget(delivery)
            delivery = await receive(lane)
        assert delivery.sequence == 2


async def _delay_over_a_restart(world: World, *, killed: bool, pause_s: float) -> float:
    """How long a message that was given a delay of LEASE_S / 2 really waited."""
    async with world.process() as one:
        await one.stored(1)
        lane = await one.lane(ack_wait_s=LEASE_S * 3)
        held = await receive(lane)
        await trio.sleep(ON_DISK_S)
        start = trio.current_time()
        lane.nak(held, LEASE_S / 2)
        await one.backlog()  # answered behind the nak, on the same connection
        await trio.sleep(pause_s)
        await world.disturb.restart(killed=killed)
        again = await receive(lane, within=LEASE_S * 4)
        assert (again.sequence, again.num_delivered) == (1, 2)
        lane.ack(again)
        return trio.current_time() - start


async def check_fault_a_delayed_nak_survives_a_kill(world: World) -> None:
    """Once it is on disk. In whole seconds: up to one of them early."""
    waited = await _delay_over_a_restart(world, killed=True, pause_s=ON_DISK_S)
    assert LEASE_S / 2 - 1.1 <= waited < LEASE_S * 2


async def check_fault_a_delayed_nak_survives_a_shutdown(world: World) -> None:
    """At once: a server that is asked to end writes everything."""
    waited = await _delay_over_a_restart(world, killed=False, pause_s=0.0)
    assert LEASE_S / 2 - 1.1 <= waited < LEASE_S * 2


async def check_fault_a_lease_goes_on_over_a_restart(world: World) -> None:
    """Up to a second shorter than it was."""
    async with world.process() as one:
        await one.stored(1)
        lane = await one.lane(ack_wait_s=LEASE_S, credit=2)
        held = await receive(lane)
        await trio.sleep(ON_DISK_S)
        await _away(world, one)
        await world.disturb.restart(killed=True)
        lane.forget(held)
        await _back(world, one)
        again = await receive(lane)
        assert (again.sequence, again.num_delivered) == (1, 2)
        assert LEASE_S - 1.1 <= again.arrived_at - held.arrived_at < LEASE_S * 2
        lane.ack(again)


async def check_fault_a_restart_forgets_ids_of_what_is_gone(world: World) -> None:
    async with world.process() as one:
        lane = await one.lane()
        await one.publish(headers={MSG_ID: "gone"})
        lane.ack(await receive(lane))
        assert await lane.confirm()
        lane.set_credit(0)
        await one.publish(headers={MSG_ID: "kept"})
        await world.disturb.restart(killed=True)
        with trio.fail_after(SOON_S):
            await one.backend.wait_connected()
        kept, gone = [(await _publish(one, name)) for name in ("kept", "gone")]
        assert kept == Stored(world.queue, 2, duplicate=True)
        assert gone == Stored(world.queue, 3)


async def _publish(process: Process, message_id: str) -> object:
    """Until the server that has just started takes publishes again; the id makes it safe."""
    with trio.fail_after(SOON_S):
        while True:
            block = encode_headers({MSG_ID: message_id})
            result = await process.publish(block=block)
            if isinstance(result, Stored):
                return result
            await trio.sleep(0.05)


async def check_fault_a_full_stream_takes_again_what_there_is_room_for(world: World) -> None:
    async with world.process() as one:
        await one.stored(2)
        await world.disturb.limit(world.queue, 2)
        assert not isinstance(await one.publish(headers={MSG_ID: "id"}), Stored)
        await world.disturb.limit(world.queue, None)
        assert await one.publish(headers={MSG_ID: "id"}) == Stored(world.queue, 3)


async def check_fault_a_deleted_durable_delivers_everything_again(world: World) -> None:
    """What is in a handler is lost; it comes again only when that handler has ended."""
    async with world.process() as one:
        await one.stored(1)
        lane = await one.lane(credit=1, max_ack_pending=1, ack_wait_s=ACK_WAIT_S)
        held = await receive(lane)
        cancelled = trio.Event()
        held.on_lost = cancelled.set
        await world.disturb.delete_durable(world.queue, f"{world.queue}-consumer")
        with trio.fail_after(SOON_S):
            await cancelled.wait()
        await nothing_comes(lane, 0.5)
        lane.forget(held)
        again = await receive(lane)
        assert (again.sequence, again.num_delivered) == (1, 1)
        lane.ack(again)
