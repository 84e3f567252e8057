"""Conformance: who gets which message, when, and how often."""

from __future__ import annotations

import pytest
import trio

from shove_actors._errors import UsageError
from shove_actors.backends import Delivery, Lane, LaneClosed

from .world import ACK_WAIT_S, SOON_S, Process, World, drain, eventually, nothing_comes, receive


async def check_order_of_one_lane(world: World) -> None:
    async with world.process() as process:
        await process.stored(50)
        lane = await process.lane(credit=10)
        came = await drain(lane, 50)
        assert [d.payload for d in came] == [b"%d" % n for n in range(50)]
        assert {d.num_delivered for d in came} == {1}


async def check_pc006_credit_is_never_exceeded(world: World) -> None:
    async with world.process() as process:
        await process.stored(20)
        lane = await process.lane(credit=3)
        in_hand: list[Delivery] = []
        for _ in range(3):
            in_hand.append(await receive(lane))
            assert len(lane.held) <= 3
        await nothing_comes(lane, 0.2)
        for _ in range(17):
            lane.ack(in_hand.pop(0))
            in_hand.append(await receive(lane))
            assert len(lane.held) <= 3
            assert lane.statistics().held <= lane.statistics().credit == 3
        for delivery in in_hand:
            lane.ack(delivery)


async def check_credit_can_grow_and_shrink(world: World) -> None:
    async with world.process() as process:
        await process.stored(6)
        lane = await process.lane(credit=1)
        first = await receive(lane)
        await nothing_comes(lane, 0.2)
        lane.set_credit(3)
        second, third = await receive(lane), await receive(lane)
        lane.set_credit(1)
        lane.ack(first)
        lane.ack(second)
        await nothing_comes(lane, 0.2)
        lane.ack(third)
        assert [d.payload for d in await drain(lane, 3)] == [b"3", b"4", b"5"]


async def check_held_lists_what_is_unsettled(world: World) -> None:
    async with world.process() as process:
        await process.stored(3)
        lane = await process.lane(credit=3)
        first, second, third = [await receive(lane) for _ in range(3)]
        assert list(lane.held.items()) == [(1, first), (2, second), (3, third)]
        lane.ack(second)
        assert list(lane.held) == [1, 3]
        lane.nak(first, 60.0)
        lane.forget(third)
        assert list(lane.held) == []


async def check_ack_removes_from_a_work_queue(world: World) -> None:
    async with world.process() as process:
        await process.stored(3)
        lane = await process.lane(credit=3)
        await drain(lane, 3)
        assert await lane.confirm()
        assert await process.backlog() == (0, 0)
        await lane.close()
        again = await process.lane(credit=3)
        await nothing_comes(again, 0.3)


async def check_backlog_counts(world: World) -> None:
    async with world.process() as process:
        assert await process.backend.backlog(world.queue, f"{world.queue}-consumer") is None
        assert await process.backend.backlog(f"{world.queue}-missing", "nobody") is None
        await process.stored(5)
        lane = await process.lane(credit=2)
        first, second = await receive(lane), await receive(lane)
        assert await process.backlog() == (3, 2)
        lane.nak(first, 60.0)
        assert await lane.confirm()
        third = await receive(lane)
        # A message that waits out its delay is still unsettled.
        assert await process.backlog() == (2, 3)
        lane.ack(second)
        lane.ack(third)
        await drain(lane, 2)
        assert await lane.confirm()
        assert await process.backlog() == (0, 1)


async def check_nak_delivers_again_at_once(world: World) -> None:
    """Not necessarily before the messages behind it: on a real server the pull that follows the
    nak may overtake it. Where order matters, `max_ack_pending` 1 keeps it (see below)."""
    async with world.process() as process:
        await process.stored(1)
        lane = await process.lane()
        first = await receive(lane)
        lane.nak(first)
        again = await receive(lane)
        assert (again.sequence, again.num_delivered) == (1, 2)
        lane.ack(again)


async def check_nak_on_a_shard_keeps_the_order(world: World) -> None:
    async with world.process() as process:
        await process.stored(2)
        lane = await process.lane(max_ack_pending=1)
        for attempt in range(1, 4):
            delivery = await receive(lane)
            assert (delivery.sequence, delivery.num_delivered) == (1, attempt)
            lane.nak(delivery)
        lane.ack(await receive(lane))
        assert (await receive(lane)).sequence == 2


async def check_nak_with_delay(world: World) -> None:
    async with world.process() as process:
        await process.stored(2)
        lane = await process.lane()
        first = await receive(lane)
        start = trio.current_time()
        lane.nak(first, 0.7)
        # Meanwhile the others go on (PC-031 is about this on an unordered topic).
        lane.ack(await receive(lane, within=SOON_S))
        again = await receive(lane)
        assert (again.sequence, again.num_delivered) == (1, 2)
        assert 0.65 <= trio.current_time() - start < SOON_S
        lane.ack(again)


async def check_pc031_waiting_out_a_delay_takes_no_credit(world: World) -> None:
    async with world.process() as process:
        await process.stored(4)
        lane = await process.lane(credit=2)
        for _ in range(2):
            lane.nak(await receive(lane), 3600.0)
        assert [d.payload for d in await drain(lane, 2)] == [b"2", b"3"]


async def check_delayed_nak_keeps_a_shard_closed(world: World) -> None:
    """`max_ack_pending` 1: the next message waits until the delayed one is settled."""
    async with world.process() as process:
        await process.stored(2)
        lane = await process.lane(max_ack_pending=1)
        first = await receive(lane)
        start = trio.current_time()
        lane.nak(first, 0.7)
        again = await receive(lane)
        assert (again.sequence, again.num_delivered) == (1, 2)
        assert trio.current_time() - start >= 0.65
        lane.ack(again)
        second = await receive(lane)
        assert (second.sequence, second.num_delivered) == (2, 1)
        lane.ack(second)


async def check_one_at_a_time_over_all_processes(world: World) -> None:
    """`max_ack_pending` 1 holds across processes: the other one waits."""
    async with world.process() as one, world.process() as other:
        await one.stored(2)
        mine = await one.lane(max_ack_pending=1)
        first = await receive(mine)
        theirs = await other.lane(max_ack_pending=1)
        await nothing_comes(theirs, 0.3)
        await nothing_comes(mine, 0.1)
        await mine.close()
        mine.ack(first)
        assert (await receive(theirs)).sequence == 2


async def check_unsettled_comes_back_after_ack_wait(world: World) -> None:
    async with world.process() as one, world.process() as other:
        await one.stored(1)
        mine = await one.lane(ack_wait_s=ACK_WAIT_S)
        held = await receive(mine)
        theirs = await other.lane(ack_wait_s=ACK_WAIT_S)
        again = await receive(theirs)
        assert (again.sequence, again.num_delivered) == (1, 2)
        # The promise of the port: never before the lease of the first delivery was over.
        assert again.arrived_at >= held.arrived_at + ACK_WAIT_S * 0.9
        theirs.ack(again)
        mine.forget(held)
        assert await theirs.confirm()
        assert await other.backlog() == (0, 0)


async def check_a_shorter_lease_waits_for_those_who_are_at_work(world: World) -> None:
    """A rolling deployment: whoever runs renews at the pace of the longer lease."""
    short, long = ACK_WAIT_S, 6 * ACK_WAIT_S
    async with world.process() as one, world.process() as other:
        await one.stored(1)
        mine = await one.lane(ack_wait_s=long)
        held = await receive(mine)
        theirs = await other.lane(ack_wait_s=short)
        mine.renew(held)  # what it is renewed by is the server's ack wait
        await nothing_comes(theirs, 1.8 * short)
        mine.ack(held)
        assert await mine.confirm()
        for lane in (mine, theirs):
            await lane.close()
        if await other.backlog() == (0, 0):  # and nobody waits for messages
            await other.stored(1)
        # Nobody is there: it is what the next one asks for.
        async with world.process() as third, world.process() as fourth:
            held = await receive(await third.lane(ack_wait_s=short))
            again = await receive(await fourth.lane(ack_wait_s=short))
            assert again.arrived_at - held.arrived_at < 3 * short
            (again.lane).ack(again)


async def check_two_leases_that_begin_together(world: World) -> None:
    """Whoever is seen first, and whoever makes the durable: the longer lease holds."""
    short, long = ACK_WAIT_S, 6 * ACK_WAIT_S
    lanes: dict[float, Lane] = {}

    async def begin(process: Process, ack_wait_s: float) -> None:
        lanes[ack_wait_s] = await process.lane(ack_wait_s=ack_wait_s, max_ack_pending=1)

    for _ in range(3):
        async with world.process() as one, world.process() as other:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(begin, one, long)
                nursery.start_soon(begin, other, short)
            held: Delivery | None = None
            while held is None:
                await one.stored(1)
                with trio.move_on_after(short / 4):
                    held = await lanes[long].receive()
                with trio.move_on_after(0 if held is not None else short / 4):
                    lanes[short].ack(await lanes[short].receive())
            await nothing_comes(lanes[short], 2.5 * short)
            lanes[long].ack(held)
            assert await lanes[long].confirm()
        await world.delete_durable(world.queue, f"{world.queue}-consumer")


async def check_renewing_keeps_a_message(world: World) -> None:
    async with world.process() as one, world.process() as other:
        await one.stored(1)
        mine = await one.lane(ack_wait_s=ACK_WAIT_S)
        held = await receive(mine)
        theirs = await other.lane(ack_wait_s=ACK_WAIT_S)
        for _ in range(5):
            await nothing_comes(theirs, ACK_WAIT_S * 0.3)
            before = held.leased_at
            mine.renew(held)
            await nothing_comes(theirs, ACK_WAIT_S * 0.1)
            assert held.leased_at > before
            assert held.renewing is None
        mine.ack(held)
        assert await mine.confirm()
        await nothing_comes(theirs, ACK_WAIT_S * 1.5)


async def check_pc020_late_settle_is_dropped(world: World) -> None:
    """The former owner acknowledges after the lease; the present owner's nak still counts."""
    async with world.process() as one, world.process() as other:
        await one.stored(1)
        mine = await one.lane(ack_wait_s=ACK_WAIT_S)
        late = await receive(mine)
        theirs = await other.lane(ack_wait_s=ACK_WAIT_S)
        again = await receive(theirs)
        mine.set_credit(0)
        mine.ack(late)
        assert late.lost
        assert late.settled
        theirs.nak(again)
        third = await receive(theirs)
        assert third.num_delivered == 3
        theirs.ack(third)


async def check_successor_waits_for_the_one_in_hand(world: World) -> None:
    """Delivered again to the same lane while in hand: not handled twice at once."""
    async with world.process() as process:
        await process.stored(1)
        lane = await process.lane(credit=2, ack_wait_s=ACK_WAIT_S)
        held = await receive(lane)
        with trio.move_on_after(ACK_WAIT_S * 1.3):
            raise AssertionError(f"{await lane.receive()!r} came while the first was in hand")
        assert held.successor is not None
        assert list(lane.held.values()) == [held]
        lane.forget(held)
        again = await receive(lane)
        assert (again.sequence, again.num_delivered) == (1, 2)
        lane.ack(again)
        assert await lane.confirm()
        assert await process.backlog() == (0, 0)


async def check_settled_in_time_has_no_successor(world: World) -> None:
    async with world.process() as process:
        await process.stored(1)
        lane = await process.lane(credit=2, ack_wait_s=ACK_WAIT_S)
        lane.ack(await receive(lane))
        await nothing_comes(lane, ACK_WAIT_S * 1.5)


async def check_settling_twice_is_refused(world: World) -> None:
    async with world.process() as process:
        await process.stored(1)
        lane = await process.lane()
        delivery = await receive(lane)
        lane.ack(delivery)
        with pytest.raises(UsageError, match="settled"):
            lane.ack(delivery)
        with pytest.raises(UsageError, match="settled"):
            lane.nak(delivery)


async def check_two_processes_share_without_repeats(world: World) -> None:
    async with world.process() as one, world.process() as other:
        handled: list[tuple[str, bytes]] = []
        complete = trio.Event()

        async def work(name: str, lane: object) -> None:
            while True:
                delivery = await lane.receive()  # type: ignore[attr-defined]
                assert delivery.num_delivered == 1
                handled.append((name, delivery.payload))
                await trio.lowlevel.checkpoint()
                lane.ack(delivery)  # type: ignore[attr-defined]
                if len(handled) == 60:
                    complete.set()

        lanes = [await one.lane(credit=2), await other.lane(credit=2)]
        async with trio.open_nursery() as nursery:
            for name, lane in zip(("one", "other"), lanes, strict=True):
                nursery.start_soon(work, name, lane)
            await one.stored(60)
            with trio.fail_after(SOON_S):
                await complete.wait()
            nursery.cancel_scope.cancel()
        assert sorted(int(payload) for _, payload in handled) == list(range(60))
        assert {name for name, _ in handled} == {"one", "other"}


async def check_closing_gives_back_at_once(world: World) -> None:
    """What waits in the lane does not wait out its ack wait (30 s here)."""
    async with world.process() as one, world.process() as other:
        await one.stored(5)
        mine = await one.lane(credit=5)
        started = await receive(mine)
        await eventually(lambda: len(mine.held) == 5)
        theirs = await other.lane(credit=5)
        await mine.close()
        given_back = await drain(theirs, 4)
        assert sorted(d.sequence for d in given_back) == [2, 3, 4, 5]
        # What was in a handler is still its owner's to settle.
        mine.ack(started)
        assert await mine.confirm()
        assert await theirs.confirm()
        assert await other.backlog() == (0, 0)


async def check_pc004_closing_swallows_nothing(world: World) -> None:
    """Closed while its pull waits: the next message goes to somebody who is there."""
    async with world.process() as one, world.process() as other:
        mine = await one.lane()
        theirs = await other.lane()
        await nothing_comes(mine, 0.2)
        await mine.close()
        for _ in range(4):
            await one.publish()
            delivery = await receive(theirs, within=5.0)
            assert delivery.num_delivered == 1
            theirs.ack(delivery)


async def check_pc004_cancelled_receiver_takes_nothing(world: World) -> None:
    async with world.process() as process:
        lane = await process.lane()
        with trio.move_on_after(0.2):
            await lane.receive()
        await process.publish()
        delivery = await receive(lane, within=5.0)
        assert delivery.num_delivered == 1
        lane.ack(delivery)


async def check_closed_lane_says_so(world: World) -> None:
    async with world.process() as process:
        lane = await process.lane()
        raised = trio.Event()

        async def wait() -> None:
            with pytest.raises(LaneClosed):
                await lane.receive()
            raised.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.lowlevel.checkpoint()
            await lane.close()
            with trio.fail_after(SOON_S):
                await raised.wait()
        with pytest.raises(LaneClosed):
            lane.receive_nowait()
        await lane.close()


async def check_process_that_ends_keeps_its_leases(world: World) -> None:
    """A handler that never settled: its message comes back, after its ack wait and not before."""
    async with world.process() as other:
        async with world.process() as one:
            await one.stored(1)
            mine = await one.lane(ack_wait_s=ACK_WAIT_S)
            held = await receive(mine)
        theirs = await other.lane(ack_wait_s=ACK_WAIT_S)
        again = await receive(theirs)
        assert again.num_delivered == 2
        assert again.arrived_at >= held.arrived_at + ACK_WAIT_S * 0.9
        theirs.ack(again)


async def check_receive_nowait_would_block(world: World) -> None:
    async with world.process() as process:
        lane = await process.lane()
        with pytest.raises(trio.WouldBlock):
            lane.receive_nowait()
        await process.publish()
        delivery = await receive(lane)
        lane.ack(delivery)
        with pytest.raises(trio.WouldBlock):
            lane.receive_nowait()
