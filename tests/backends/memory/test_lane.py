"""Credit, successors and closing, where a real server cannot be made to show it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors._errors import TopologyError, UsageError
from shove_actors.backends import LaneClosed, LaneSpec
from shove_actors.backends.memory import DurableSettings, MemoryServer
from shove_actors.backends.memory._lane import AT_ONCE
from tests.backends.world import drain, nothing_comes, receive

from .support import backend_of, memory_world

Clock = trio.testing.MockClock


async def test_surplus_after_shrinking_goes_back_unread(autojump_clock: Clock) -> None:
    """Credit shrinks while the answer to a larger request is on its way: held never exceeds it."""
    server = MemoryServer()
    world = memory_world(server)
    async with world.process() as process, world.process() as other:
        lane = await process.lane(credit=3)
        await trio.testing.wait_all_tasks_blocked()
        server.faults.stall(process.backend)
        server.publish("q", b"1")
        server.publish("q", b"2")
        await trio.testing.wait_all_tasks_blocked()
        lane.set_credit(1)
        server.faults.unstall(process.backend)
        held = await receive(lane)
        assert len(lane.held) == 1
        given_back = await receive(await other.lane())
        assert given_back.num_delivered == 2
        assert {held.payload, given_back.payload} == {b"1", b"2"}


async def test_a_shard_s_next_message_is_there_at_once_but_not_for_ever(
    autojump_clock: Clock,
) -> None:
    """Settled and next taken without a pass of the scheduler; every so often one has to wait."""
    async with memory_world(MemoryServer()).process() as process:
        lane = await process.lane(credit=1, max_ack_pending=1)
        await process.stored(3 * AT_ONCE)
        taken, longest, waited = 0, 0, 0
        while taken < 3 * AT_ONCE:
            run = 0
            lane.ack(await receive(lane))
            taken += 1
            while True:
                try:
                    delivery = lane.receive_nowait()
                except trio.WouldBlock:
                    waited += 1
                    break
                lane.ack(delivery)
                run, taken = run + 1, taken + 1
            longest = max(longest, run)
        assert 2 <= longest < AT_ONCE
        assert waited >= 3


async def test_negative_credit_is_refused(autojump_clock: Clock) -> None:
    async with memory_world(MemoryServer()).process() as process:
        lane = await process.lane()
        with pytest.raises(UsageError, match="credit"):
            lane.set_credit(-1)


async def test_no_credit_asks_for_nothing(autojump_clock: Clock) -> None:
    async with memory_world(MemoryServer()).process() as process:
        lane = await process.lane(credit=0)
        await process.stored(1)
        await nothing_comes(lane, 60)
        lane.set_credit(1)
        await drain(lane, 1)


async def test_statistics(autojump_clock: Clock) -> None:
    async with memory_world(MemoryServer()).process() as process:
        lane = await process.lane(credit=4)
        await process.stored(3)
        await trio.testing.wait_all_tasks_blocked()
        lane.ack(await receive(lane))
        seen = lane.statistics()
        assert (seen.waiting, seen.held, seen.requested) == (2, 2, 2)
        assert (seen.credit, seen.received, seen.pulls) == (4, 3, 2)


async def test_acknowledging_the_old_one_drops_its_successor(autojump_clock: Clock) -> None:
    server = MemoryServer()
    async with memory_world(server).process() as process:
        lane = await process.lane(credit=2)
        server.faults.deliver_twice()
        await process.stored(1)
        held = await receive(lane)
        assert held.successor is not None
        assert held.successor.num_delivered == 2
        lane.ack(held)
        assert held.successor is None
        await nothing_comes(lane, 120)
        assert await process.backlog() == (0, 0)


async def test_nak_of_the_old_one_hands_back_both(autojump_clock: Clock) -> None:
    """The delay is kept: the successor does not jump it."""
    server = MemoryServer()
    async with memory_world(server).process() as process:
        lane = await process.lane(credit=2)
        server.faults.deliver_twice()
        await process.stored(1)
        lane.nak(await receive(lane), 20.0)
        again = await receive(lane, within=60)
        assert trio.current_time() == 20.0
        assert again.num_delivered == 3
        lane.ack(again)
        await nothing_comes(lane, 120)


async def test_forgetting_the_old_one_promotes_its_successor(autojump_clock: Clock) -> None:
    server = MemoryServer()
    async with memory_world(server).process() as process:
        lane = await process.lane(credit=2)
        server.faults.deliver_twice()
        await process.stored(1)
        held = await receive(lane)
        lane.forget(held)
        lane.forget(held)
        again = await receive(lane)
        assert again.num_delivered == 2
        assert list(lane.held.values()) == [again]


async def test_lost_with_its_durable_settles_nothing(autojump_clock: Clock) -> None:
    """Deleted and made again: the nak of the former delivery must not reach the new durable."""
    server = MemoryServer()
    async with memory_world(server).process() as process:
        lane = await process.lane(credit=2)
        await process.stored(1)
        held = await receive(lane)
        server.delete_durable("q", "q-consumer")
        await nothing_comes(lane, 5)
        lane.nak(held)
        again = await receive(lane)
        await nothing_comes(lane, 20)
        assert again.successor is None
        lane.ack(again)
        assert await process.backlog() == (0, 0)


async def test_pc004_closed_while_a_message_is_on_its_way(autojump_clock: Clock) -> None:
    """It arrives at a lane that is gone, and goes back at once instead of after its ack wait."""
    server = MemoryServer()
    world = memory_world(server)
    async with world.process() as process, world.process() as other:
        lane = await process.lane(credit=3)
        await trio.testing.wait_all_tasks_blocked()
        server.faults.stall(process.backend)
        server.publish("q", b"")
        await trio.testing.wait_all_tasks_blocked()
        await lane.close()
        server.faults.unstall(process.backend)
        start = trio.current_time()
        assert (await receive(await other.lane())).num_delivered == 2
        assert trio.current_time() == start


async def test_settling_too_late_promotes_the_successor(autojump_clock: Clock) -> None:
    server = MemoryServer()
    async with memory_world(server).process() as process:
        lane = await process.lane(credit=2, ack_wait_s=10.0)
        await process.stored(1)
        held = await receive(lane)
        await trio.sleep(10.5)
        assert held.successor is not None
        lane.ack(held)
        assert held.lost
        lane.ack(await receive(lane))
        assert await process.backlog() == (0, 0)


async def test_forgotten_while_it_waits_is_never_received(autojump_clock: Clock) -> None:
    """Its lease ended in the buffer: the worker that is woken gets the next one."""
    async with memory_world(MemoryServer()).process() as process:
        lane = await process.lane(credit=2)
        await process.stored(2)
        await trio.testing.wait_all_tasks_blocked()
        lane.forget(lane.held[1])
        assert (await receive(lane)).sequence == 2
        with pytest.raises(trio.WouldBlock):
            lane.receive_nowait()


async def test_forgotten_while_it_waits_is_skipped_without_waiting(autojump_clock: Clock) -> None:
    async with memory_world(MemoryServer()).process() as process:
        lane = await process.lane(credit=2)
        await process.stored(2)
        await trio.testing.wait_all_tasks_blocked()
        lane.forget(lane.held[1])
        assert lane.receive_nowait().sequence == 2


async def test_forgotten_while_it_waits_and_naked_on_close(autojump_clock: Clock) -> None:
    server = MemoryServer()
    async with memory_world(server).process() as process:
        lane = await process.lane(credit=2, ack_wait_s=10.0)
        await process.stored(2)
        await trio.testing.wait_all_tasks_blocked()
        lane.forget(lane.held[1])
        await lane.close()
        other = await process.lane(credit=2, ack_wait_s=10.0)
        # The forgotten one is the server's to time out, the waiting one came back at once.
        assert (await receive(other)).sequence == 2
        assert trio.current_time() == 0.0
        assert (await receive(other, within=20)).sequence == 1
        assert trio.current_time() == 10.0


async def test_settling_after_close_still_counts(autojump_clock: Clock) -> None:
    async with memory_world(MemoryServer()).process() as process:
        await process.stored(2)
        lane = await process.lane(credit=2)
        one, two = await receive(lane), await receive(lane)
        await lane.close()
        lane.ack(one)
        lane.nak(two)
        assert await lane.confirm()
        assert await process.backlog() == (0, 1)


async def test_successor_that_turns_up_after_close_goes_back(autojump_clock: Clock) -> None:
    server = MemoryServer()
    async with memory_world(server).process() as process:
        lane = await process.lane(credit=2)
        server.faults.deliver_twice()
        await process.stored(1)
        held = await receive(lane)
        await lane.close()
        lane.forget(held)
        again = await receive(await process.lane())
        assert again.num_delivered == 3


async def test_backend_that_leaves_ends_its_lanes(autojump_clock: Clock) -> None:
    server = MemoryServer()
    backend = memory_world(server).create_backend()
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        await backend.declare([memory_world(server).topology])
        lane = await backend.open_lane(LaneSpec(stream="q", durable="q-consumer"))
        backend.close()
        with pytest.raises(LaneClosed):
            await lane.receive()
        await lane.close()


async def test_durable_that_comes_back_different_ends_the_lane(autojump_clock: Clock) -> None:
    """Recreated by somebody else with another filter: refused, not read (PC-068)."""
    server = MemoryServer()
    world = memory_world(server)
    world.topology = world.builder().nats_subjects(["q.*"]).build()
    async with world.process() as process:
        lane = await process.lane(filter_subject="q.a")
        server.delete_durable("q", "q-consumer")
        server.open_durable("q", DurableSettings(name="q-consumer", filter_subject="q.b"))
        with pytest.raises(TopologyError, match=r"q\.a"):
            await receive(lane)


async def test_closed_lanes_are_let_go(autojump_clock: Clock) -> None:
    """A pool that opens and closes lanes all day must not collect them."""
    async with memory_world(MemoryServer()).process() as process:
        backend = backend_of(process)
        for _ in range(3):
            await (await process.lane()).close()
        await process.stored(1)
        lane = await process.lane()
        held = await receive(lane)
        await lane.close()
        assert len(backend._lanes) == 1
        lane.ack(held)
        assert len(backend._lanes) == 0


async def test_renewal_moves_the_lease(autojump_clock: Clock) -> None:
    async with memory_world(MemoryServer()).process() as process:
        lane = await process.lane(ack_wait_s=10.0)
        await process.stored(1)
        held = await receive(lane)
        await trio.sleep(6)
        lane.renew(held)
        assert (held.renewing, held.leased_at) == (6.0, 0.0), "not confirmed yet"
        await trio.testing.wait_all_tasks_blocked()
        assert (held.renewing, held.leased_at) == (None, 6.0)
        await trio.sleep(9)
        lane.ack(held)
        assert not held.lost
        lane.renew(held)
        assert held.leased_at == 6.0


async def test_lease_starts_at_the_server(autojump_clock: Clock) -> None:
    """A message that was held up on its way has less of its lease left, and says so."""
    server = MemoryServer()
    async with memory_world(server).process() as process:
        lane = await process.lane(ack_wait_s=10.0)
        await trio.testing.wait_all_tasks_blocked()
        server.faults.stall(process.backend)
        server.publish("q", b"")
        await trio.sleep(4)
        server.faults.unstall(process.backend)
        assert (await receive(lane)).leased_at == 0.0
