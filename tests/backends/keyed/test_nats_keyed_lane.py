"""Keyed lanes on a real server."""

from __future__ import annotations

from collections.abc import Callable

import trio

from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .support import LEASE_S, owner

Fresh = Callable[[], str]


async def test_keys_side_by_side_and_each_in_order(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with owner(server, fresh_queue()) as one:
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
        assert one.lane.keys == 0
        assert await one.settled()


async def test_a_retry_delays_its_key_only(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with owner(server, fresh_queue()) as one:
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


async def test_handed_on_at_once_and_in_order(server: ServerProcess, fresh_queue: Fresh) -> None:
    """A drain: what runs ends, what waits is left, and the next owner has not to wait."""
    queue = fresh_queue()
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


async def test_an_owner_that_vanishes(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Its lease has to pass; then everything unsettled comes in the order of the stream."""
    queue = fresh_queue()
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


async def test_the_server_restarts(own_server: ServerProcess) -> None:
    """Pins are forgotten; handlers go on, and nothing is handled twice."""
    async with owner(own_server, "q") as one:
        await one.publish("a-1", "a-2", "b-1", "b-2")
        first = [await one.next() for _ in range(2)]
        await trio.to_thread.run_sync(own_server.kill)
        await trio.to_thread.run_sync(own_server.restart)
        await one.backend.wait_connected()
        one.lane.ack(first[0])
        assert not first[0].lost
        assert await one.take(1) == ["a-2"]
        one.lane.ack(first[1])
        assert await one.take(1) == ["b-2"]
        await one.publish("a-3")
        assert await one.take(1) == ["a-3"]

        assert await one.settled()


async def test_cut_off_for_longer_than_the_lease(own_server: ServerProcess) -> None:
    async with owner(own_server, "q") as one:
        await one.publish("a-1", "b-1")
        first = [await one.next() for _ in range(2)]
        cancelled = trio.Event()
        first[0].on_lost = cancelled.set
        await trio.to_thread.run_sync(own_server.pause)
        began = trio.current_time()
        with trio.fail_after(LEASE_S * 2):
            await cancelled.wait()
        assert trio.current_time() - began < LEASE_S
        one.lane.ack(first[0])  # too late: dropped
        one.lane.forget(first[1])
        await trio.to_thread.run_sync(own_server.resume)
        assert await one.take(2, LEASE_S * 4) == ["a-1", "b-1"]


async def test_the_pin_is_taken_away(server: ServerProcess, fresh_queue: Fresh) -> None:
    """An operator unpins: handlers end in peace, then the other one goes on."""
    queue = fresh_queue()
    async with owner(server, queue) as one, owner(server, queue) as two:
        await one.publish("a-1", "a-2")
        holder, other = one, two
        with trio.fail_after(10):
            await wait_until(lambda: one.lane.ownership.owns or two.lane.ownership.owns)
        if two.lane.ownership.owns:
            holder, other = two, one
        first = await holder.next()
        await one.backend.js.call(f"CONSUMER.UNPIN.{queue}.{queue}-shard-0", {"group": "owner"})
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


async def test_an_operator_rewinds(server: ServerProcess, fresh_queue: Fresh) -> None:
    """What is in hand comes again, and is recognised."""
    queue = fresh_queue()
    async with owner(server, queue) as one:
        await one.publish("a-1", "a-2", "b-1")
        first = [await one.next() for _ in range(2)]
        await one.backend.js.call(f"CONSUMER.RESET.{queue}.{queue}-shard-0", {})
        await one.publish("c-1")
        third = await one.next()
        assert third.payload == b"c-1"
        assert await one.nothing()
        for delivery in (*first, third):
            one.lane.ack(delivery)
        assert await one.take(1) == ["a-2"]
        assert await one.lane.confirm()
