"""One durable read by one process, over a real server: settling, credit, closing."""

from __future__ import annotations

import time

import pytest
import trio

from shove_actors._errors import UsageError
from shove_actors.backends import Delivery, LaneClosed
from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .nats_process import Fresh, kinds, of, open_lane, process, waiting
from .world import nothing_comes, receive

# ------------------------------------------------------------------------------ settling


async def test_c23_acknowledgements(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one, credit=2)
        await one.stored(2)
        first, second = await receive(lane), await receive(lane)
        lane.ack(first)
        with pytest.raises(UsageError, match="settled already"):
            lane.ack(first)
        before = trio.current_time()
        lane.nak(second, 0.5)
        again = await receive(lane)
        assert trio.current_time() - before >= 0.45
        assert (again.payload, again.num_delivered) == (b"1", 2)
        lane.ack(again)
        assert await lane.confirm()
        assert await one.backlog() == (0, 0)


async def test_settling_without_a_connection_is_dropped(
    own_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with process(own_server, "q") as one:
        lane = await open_lane(one, ack_wait_s=1.0)
        await one.stored(1)
        delivery = await receive(lane)
        await trio.to_thread.run_sync(own_server.kill)
        await one.event("disconnected")
        lane.ack(delivery)
        assert delivery.lost
        assert "lease" in caplog.text
        await trio.to_thread.run_sync(own_server.restart)
        again = await receive(lane)
        assert again.sequence == delivery.sequence
        lane.ack(again)


async def test_confirm_proves_what_was_settled(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one, credit=100)
        assert await lane.confirm(), "nothing to prove"
        await one.stored(100)
        for _ in range(100):
            lane.ack(await receive(lane))
        assert await lane.confirm()
        assert await one.backlog() == (0, 0)


# ------------------------------------------------------------------------------ credit


async def test_lowered_credit_takes_the_request_back(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """PC-006: what the old pull asked for does not come any more, nor stay with the server."""
    async with process(server, fresh_queue()) as one, process(server, one.queue) as two:
        lane = await open_lane(one, credit=10)
        lane.set_credit(2)
        await waiting(one, 1)
        await one.stored(10)
        held = [await receive(lane), await receive(lane)]
        await nothing_comes(lane, 0.2)
        other = await open_lane(two, credit=10)
        there = [await receive(other) for _ in range(8)]
        everything = [*held, *there]
        assert sorted(d.sequence for d in everything) == list(range(1, 11))
        assert {d.num_delivered for d in everything} == {1}
        for delivery in held:
            lane.ack(delivery)
        for delivery in there:
            other.ack(delivery)


async def test_more_than_was_asked_for(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Whatever the server sends: the surplus is handed back at once, for somebody with room."""
    async with process(server, fresh_queue()) as one, process(server, one.queue) as two:
        lane = await open_lane(one, credit=2)
        tail = b'{"batch":5,"expires":30000000000}'
        of(one).connection.publish(lane._demand.subject, tail, lane._demand.inbox)
        await one.stored(6)
        first, second = await receive(lane), await receive(lane)
        assert len(lane.held) == 2
        await nothing_comes(lane, 0.1)
        other = await open_lane(two, credit=10)
        rest = [await receive(other) for _ in range(4)]
        assert sorted(d.sequence for d in (first, second, *rest)) == list(range(1, 7))
        for delivery in rest:
            other.ack(delivery)
        for delivery in (first, second):
            lane.ack(delivery)


async def test_what_is_no_message_is_ignored(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Somebody publishes to the inbox."""
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one)
        for reply in (b"", b"some.where"):
            of(one).connection.publish(lane._demand.inbox, b"junk", reply)
            of(one).connection.publish(lane._demand.inbox, b"", reply)
        await one.stored(1)
        assert (await receive(lane)).payload == b"0"
        assert lane.statistics().received == 1
        assert kinds(one) == []


# ------------------------------------------------------------------------------ closing


async def test_closing_hands_back_and_ends_the_pull(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    async with process(server, fresh_queue()) as one, process(server, one.queue) as two:
        lane = await open_lane(one, credit=5)
        await one.stored(5)
        in_hand = await receive(lane)
        await wait_until(lambda: lane.statistics().waiting == 4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane.close)
            nursery.start_soon(lane.close)
        with pytest.raises(LaneClosed):
            await lane.receive()
        await waiting(one, 0)
        other = await open_lane(two, credit=10)
        back: list[Delivery] = [await receive(other) for _ in range(4)]
        assert {d.sequence for d in back} == {2, 3, 4, 5}
        lane.ack(in_hand)
        assert await lane.confirm()
        for delivery in back:
            other.ack(delivery)
        assert await other.confirm()
        assert await two.backlog() == (0, 0)


async def test_closing_leaves_no_subscription(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with process(server, fresh_queue()) as one:
        before = len(of(one).connection._subscriptions)
        for number in range(5):
            lane = await open_lane(one, credit=10)
            if number % 2:
                lane.set_credit(1)
            await lane.close()
        await wait_until(lambda: len(of(one).connection._subscriptions) == before)
        assert of(one)._lanes == set()


async def test_closing_without_a_server(own_server: ServerProcess) -> None:
    async with process(own_server, "q") as one:
        lane = await open_lane(one)
        await trio.to_thread.run_sync(own_server.kill)
        with trio.fail_after(10):
            await lane.close()


async def test_closing_when_cancelled(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one)
        with trio.CancelScope() as scope:
            scope.cancel()
            await lane.close()
        await waiting(one, 0)
        with trio.fail_after(10):
            await lane.close()


async def test_twelve_token_acknowledgement_subjects() -> None:
    """T3: a server that sends the long form of acknowledgement subjects."""
    with ServerProcess(config="feature_flags { js_ack_fc_v2: true }") as server:
        async with process(server, "q") as one:
            lane = await open_lane(one, credit=1)
            await one.stored(1)
            first = await receive(lane)
            assert first.reply.count(b".") >= 10
            assert (first.sequence, first.num_delivered) == (1, 1)
            assert abs(first.timestamp_ns - time.time_ns()) < 60e9
            lane.nak(first)
            again = await receive(lane)
            assert (again.sequence, again.num_delivered) == (1, 2)
            lane.ack(again)
            await one.stored(2)
            for number in (2, 3):
                delivery = await receive(lane)
                assert delivery.sequence == number
                lane.ack(delivery)
            assert await lane.confirm()
            assert await one.backlog() == (0, 0)
            assert kinds(one) == []
