"""What a keyed lane promises, on every backend."""

from __future__ import annotations

import trio

from tests.support import wait_until

from .support import LEASE_S, Server, owner


async def check_keys_side_by_side_and_each_in_order(server: Server, queue: str) -> None:
    async with owner(server, queue) as one:
        await one.publish("a-1", "a-2", "b-1", "c-1", "b-2")
        first = [await one.next() for _ in range(3)]
        assert [d.payload for d in first] == [b"a-1", b"b-1", b"c-1"]
        assert await one.nothing()
        one.lane.ack(first[1])
        second = await one.next()
        assert second.payload == b"b-2"
        for delivery in (first[0], first[2], second):
            one.lane.ack(delivery)
        assert await one.take(1) == ["a-2"]
        assert await one.lane.confirm()
        await wait_until(lambda: one.lane.keys == 0)
        assert await one.settled()


async def check_a_retry_delays_its_key_only(server: Server, queue: str) -> None:
    async with owner(server, queue) as one:
        await one.publish("a-1", "a-2", "b-1")
        first, other = await one.next(), await one.next()
        one.lane.nak(first, 0.5)
        began = trio.current_time()
        one.lane.ack(other)
        again = await one.next()
        assert trio.current_time() - began >= 0.5
        assert (again.payload, again.num_delivered) == (b"a-1", 2)
        assert again is not first
        one.lane.ack(again)
        assert await one.take(1) == ["a-2"]


async def check_handed_on_at_once_and_in_order(server: Server, queue: str) -> None:
    """A drain: what runs ends, what waits is left, and the next owner has not to wait."""
    async with owner(server, queue, ack_wait_s=20.0) as one:
        await one.publish("a-1", "a-2", "b-1", "b-2", "c-1")
        first = [await one.next() for _ in range(3)]
        async with owner(server, queue, ack_wait_s=20.0) as two:
            await one.lane.close()
            assert await two.nothing(0.5), "handlers of the first still run"
            one.lane.ack(first[1])
            one.lane.ack(first[0])
            assert await two.nothing(0.5), "one handler of the first still runs"
            one.lane.ack(first[2])
            with trio.fail_after(10):
                await one.lane.released()
            began = trio.current_time()
            assert await two.take(2) == ["a-2", "b-2"]
            assert trio.current_time() - began < 10
            await two.publish("c-2")
            assert await two.take(1) == ["c-2"]


async def check_an_owner_that_vanishes(server: Server, queue: str) -> None:
    """Its lease has to pass; then everything unsettled comes in the order of the stream."""
    async with owner(server, queue) as one:
        await one.publish("a-1", "b-1", "a-2", "b-2", "c-1")
        first = [await one.next() for _ in range(3)]
        assert [d.payload for d in first] == [b"a-1", b"b-1", b"c-1"]
        one.lane.ack(first[1])
        assert await one.lane.confirm()
        async with owner(server, queue) as two:
            one.running.cancel()
            vanished_at = trio.current_time()
            await two.publish("d-1")
            found = [await two.next(LEASE_S * 4) for _ in range(4)]
            assert trio.current_time() - vanished_at > LEASE_S * 0.6
            assert [d.payload for d in found] == [b"a-1", b"b-2", b"c-1", b"d-1"]
            assert [d.num_delivered for d in found[:3]] == [2, 2, 2]
            for delivery in found:
                two.lane.ack(delivery)
            assert await two.take(1) == ["a-2"]


async def check_the_pin_is_taken_away(server: Server, queue: str) -> None:
    """An operator unpins: handlers end in peace, then the other one goes on."""
    async with owner(server, queue) as one, owner(server, queue) as two:
        await one.publish("a-1", "a-2")
        holder, other = one, two
        with trio.fail_after(10):
            await wait_until(lambda: one.lane.ownership.owns or two.lane.ownership.owns)
        if two.lane.ownership.owns:
            holder, other = two, one
        first = await holder.next()
        await one.unpin()
        await one.publish("b-1")
        found: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def work(who: object) -> None:
                while True:
                    delivery = await who.lane.receive()  # type: ignore[attr-defined]
                    assert first.settled or delivery.payload != b"a-2", "out of turn"
                    found.append(delivery.payload)
                    who.lane.ack(delivery)  # type: ignore[attr-defined]

            nursery.start_soon(work, holder)
            nursery.start_soon(work, other)
            await trio.sleep(0.5)
            assert not first.lost
            holder.lane.ack(first)
            with trio.fail_after(15):
                await wait_until(lambda: len(found) == 2)
            nursery.cancel_scope.cancel()
        assert sorted(found) == [b"a-2", b"b-1"]


async def check_an_operator_rewinds(server: Server, queue: str) -> None:
    """What is in hand comes again, and is recognised."""
    async with owner(server, queue) as one:
        await one.publish("a-1", "a-2", "b-1")
        first = [await one.next() for _ in range(2)]
        await one.rewind()
        await one.publish("c-1")
        third = await one.next()
        assert third.payload == b"c-1"
        assert await one.nothing()
        for delivery in (*first, third):
            one.lane.ack(delivery)
        assert await one.take(1) == ["a-2"]
        assert await one.lane.confirm()


async def check_the_stream_is_made_anew(server: Server, queue: str) -> None:
    """Its sequences begin again: nothing that was known of the old ones is believed."""
    async with owner(server, queue) as one:
        await one.publish("a-1", "a-2", "a-3")
        assert await one.take(1) == ["a-1"]
        second = await one.next()
        cancelled = trio.Event()
        second.on_lost = cancelled.set
        await one.delete_stream()
        with trio.fail_after(10):
            await cancelled.wait()
        one.lane.forget(second)
        await one.declare()
        await one.publish("b-1", "b-2")
        assert await one.take(2, 20.0) == ["b-1", "b-2"]
        assert await one.settled()


async def check_the_durable_is_deleted(server: Server, queue: str) -> None:
    async with owner(server, queue) as one:
        await one.publish("a-1", "b-1")
        first = await one.next()
        other = await one.next()
        await one.delete_durable()
        with trio.fail_after(10):
            await wait_until(lambda: first.lost and other.lost)
        one.lane.forget(first)
        one.lane.forget(other)
        assert await one.take(2, 20.0) == ["a-1", "b-1"]
        assert await one.settled()


async def check_a_wait_is_handed_on(server: Server, queue: str) -> None:
    """Whether it waited when the shard was let go of, or its handler ended after that."""
    async with owner(server, queue) as one, owner(server, queue) as two:
        two.lane.stand_by(False)
        await one.publish("a-1", "a-2", "b-1", "c-1")
        first, other = await one.next(), await one.next()
        one.lane.nak(first, 4.0)
        assert await one.take(1) == ["c-1"]
        one.lane.let_go()
        one.lane.nak(other, 4.0)
        began = trio.current_time()
        two.lane.stand_by(True)
        await two.publish("d-1")
        assert await two.take(1) == ["d-1"], "it waits for nobody"
        assert trio.current_time() - began < 3.9
        assert sorted(await two.take(2)) == ["a-1", "b-1"]
        assert trio.current_time() - began >= 3.9
        assert await two.take(1) == ["a-2"]
        assert await two.settled()


async def check_who_stands_by_no_more_is_not_pinned(server: Server, queue: str) -> None:
    """A pull of his that still waited would be, and nobody would have the shard for that long."""
    async with owner(server, queue, ack_wait_s=20.0) as one:
        await one.publish("a-1")
        assert await one.take(1) == ["a-1"]
        async with owner(server, queue, ack_wait_s=20.0) as two:
            await wait_until(lambda: two.lane.requested > 0)
            assert await two.nothing(0.2)
            two.lane.stand_by(False)
            async with owner(server, queue, ack_wait_s=20.0) as three:
                await wait_until(lambda: three.lane.requested > 0)
                began = trio.current_time()
                await one.leave()
                await three.publish("a-2")
                assert await three.take(1) == ["a-2"]
                assert trio.current_time() - began < 4.0
                assert not two.lane.owned


async def check_what_was_settled_last_is_forgotten_with_its_stream(
    server: Server, queue: str
) -> None:
    """Settled again, it would settle what has its number now."""
    async with owner(server, queue, ack_wait_s=2.0) as one:
        await one.publish("a-1", "b-1")
        assert sorted(await one.take(2)) == ["a-1", "b-1"]
        await one.delete_stream()
        await one.declare()
        await one.publish("a-2", "b-2")
        held = [await one.next(30.0) for _ in range(2)]
        await one.lane.confirm()
        for delivery in held:
            one.lane.nak(delivery)
        await one.leave()
    async with owner(server, queue, ack_wait_s=2.0) as two:
        assert sorted(await two.take(2)) == ["a-2", "b-2"]


CHECKS = (
    check_who_stands_by_no_more_is_not_pinned,
    check_what_was_settled_last_is_forgotten_with_its_stream,
    check_the_stream_is_made_anew,
    check_the_durable_is_deleted,
    check_keys_side_by_side_and_each_in_order,
    check_a_retry_delays_its_key_only,
    check_a_wait_is_handed_on,
    check_handed_on_at_once_and_in_order,
    check_an_owner_that_vanishes,
    check_the_pin_is_taken_away,
    check_an_operator_rewinds,
)
