"""Every fault on demand, and a random mixture of them that repeats with its seed."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing

from shove_actors._errors import (
    ConnectionError,
    NotConnected,
    PublishError,
    PublishRefused,
    PublishUnknown,
    RequestTimeout,
    StreamFull,
    UsageError,
)
from shove_actors.backends import Delivery, LaneSpec, Post, Stored
from shove_actors.backends.memory import MemoryConfig, MemoryServer
from shove_actors.messaging import MSG_ID, encode_headers
from tests.backends.world import Process, World, drain, nothing_comes, receive

from .support import memory_world

Clock = trio.testing.MockClock


# Not called `server`: that is the fixture with a real one, which refuses virtual time.
@pytest.fixture
def memory() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def world(memory: MemoryServer) -> World:
    return memory_world(memory)


async def test_dropped_ack_brings_the_message_back(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as process:
        await process.stored(2)
        lane = await process.lane(credit=2, ack_wait_s=5.0)
        memory.faults.drop_next_ack()
        await drain(lane, 2)
        # It says so, once: the acknowledgements after it are not to blame.
        assert not await lane.confirm()
        assert await lane.confirm()
        again = await receive(lane)
        assert (again.sequence, again.num_delivered) == (1, 2)
        lane.ack(again)
        await nothing_comes(lane, 60)


async def test_dropped_puback_stores_the_message(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    """The publisher cannot know; publishing again with the same id tells it."""
    async with world.process() as process:
        memory.faults.drop_puback()
        result = await process.publish(headers={MSG_ID: "a"})
        assert isinstance(result, PublishUnknown)
        assert result.stored is None
        assert trio.current_time() == 5.0
        again = await process.publish(headers={MSG_ID: "a"})
        assert again == Stored("q", 1, duplicate=True)


async def test_dropped_renewal_lets_the_lease_end(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as one, world.process() as other:
        await one.stored(1)
        mine = await one.lane(ack_wait_s=5.0)
        held = await receive(mine)
        theirs = await other.lane(ack_wait_s=5.0)
        await trio.sleep(3)
        memory.faults.drop_renewal()
        mine.renew(held)
        assert held.leased_at == 0.0
        assert (await receive(theirs)).num_delivered == 2
        assert trio.current_time() == 5.0


async def test_refused_publish(memory: MemoryServer, world: World, autojump_clock: Clock) -> None:
    world.topology = world.builder().dlq().build()
    async with world.process() as process:
        memory.faults.refuse_publish("q-dlq", StreamFull("on purpose"), times=2)
        for _ in range(2):
            assert isinstance(await process.publish(subject="q-dlq"), StreamFull)
            assert isinstance(await process.publish(), Stored)
        assert await process.publish(subject="q-dlq") == Stored("q-dlq", 1)
        memory.faults.refuse_publish("q-dlq", PublishRefused("no permission"))
        for _ in range(5):
            assert isinstance(await process.publish(subject="q-dlq"), PublishRefused)
        memory.faults.accept_publish("q-dlq")
        assert await process.publish(subject="q-dlq") == Stored("q-dlq", 2)


async def test_disconnect(memory: MemoryServer, world: World, autojump_clock: Clock) -> None:
    """Messages in hand stay in hand; settles are dropped; pulls are renewed afterwards."""
    async with world.process() as process:
        await process.stored(3)
        lane = await process.lane(credit=2, ack_wait_s=5.0)
        one, two = await receive(lane), await receive(lane)
        memory.faults.disconnect(process.backend)
        assert not process.backend.connected
        lane.ack(one)
        assert one.lost
        assert isinstance(await process.publish(), NotConnected)
        memory.faults.reconnect(process.backend)
        assert process.backend.connected
        await process.backend.wait_connected()
        lane.ack(two)
        assert [event.kind for event in process.events] == ["disconnected", "reconnected"]
        third = await receive(lane)
        assert third.sequence == 3
        lane.ack(third)
        again = await receive(lane)
        assert (again.sequence, again.num_delivered) == (1, 2)
        assert trio.current_time() == 5.0


async def test_disconnect_leaves_publishes_unknown(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    """Stored, but the answer was on its way when the connection broke."""
    async with world.process() as process:
        answers: list[object] = []
        block = encode_headers({MSG_ID: "a"})
        process.backend.post([Post("q", b"", block, lambda post, result: answers.append(result))])
        assert len(memory.messages("q")) == 1
        memory.faults.disconnect(process.backend)
        await trio.testing.wait_all_tasks_blocked()
        assert [type(answer) for answer in answers] == [PublishUnknown]
        memory.faults.reconnect(process.backend)
        again = await process.publish(headers={MSG_ID: "a"})
        assert again == Stored("q", 1, duplicate=True)


async def test_disconnected_pull_swallows_nothing(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as one, world.process() as other:
        await one.lane()
        await trio.testing.wait_all_tasks_blocked()
        memory.faults.disconnect(one.backend)
        theirs = await other.lane()
        await other.publish()
        assert (await receive(theirs)).num_delivered == 1


async def test_stall(memory: MemoryServer, world: World, autojump_clock: Clock) -> None:
    """Nobody is told, nothing is lost, and it all happens when the stall ends."""
    async with world.process() as process:
        await process.stored(2)
        lane = await process.lane(credit=2)
        one, two = await receive(lane), await receive(lane)
        memory.faults.stall(process.backend)
        assert process.backend.connected
        lane.ack(one)
        lane.nak(two, 1.0)
        assert not await lane.confirm()
        assert trio.current_time() == 2.0
        assert len(memory.streams["q"].messages) == 2
        memory.faults.unstall(process.backend)
        assert len(memory.streams["q"].messages) == 1
        again = await receive(lane)
        # The delay counts from when the server heard of it.
        assert trio.current_time() == 3.0
        lane.ack(again)
        assert await lane.confirm()


async def test_stalled_settles_after_the_ack_wait(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    """A stale acknowledgement arrives: it settles the message under its new owner."""
    async with world.process() as one, world.process() as other:
        await one.stored(1)
        mine = await one.lane(ack_wait_s=5.0)
        theirs = await other.lane(ack_wait_s=5.0)
        held = await receive(mine)
        memory.faults.stall(one.backend)
        mine.ack(held)
        again = await receive(theirs)
        assert again.num_delivered == 2
        memory.faults.unstall(one.backend)
        assert memory.messages("q") == []
        theirs.nak(again)
        await nothing_comes(theirs, 60)


async def test_a_settle_that_its_lane_has_given_up_on_is_not_read_after_its_lease(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    """A drain asks whether its settles were read, for a while; the guard has more patience."""
    async with world.process() as one, world.process() as other, world.process() as third:
        await one.stored(1)
        lane = await one.lane(ack_wait_s=10.0, max_ack_pending=1)
        held = await receive(lane)
        memory.faults.stall(one.backend)
        lane.nak(held)
        assert not await lane.confirm()
        theirs = await other.lane(ack_wait_s=10.0, max_ack_pending=1)
        with trio.fail_after(11):
            again = await theirs.receive()
        waits = await third.lane(ack_wait_s=10.0, max_ack_pending=1)
        memory.faults.unstall(one.backend)
        await nothing_comes(waits, 5.0)
        theirs.ack(again)


async def test_stalled_publish_times_out_and_is_stored_late(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as process:
        memory.faults.stall(process.backend)
        assert isinstance(await process.publish(headers={MSG_ID: "a"}), PublishUnknown)
        assert memory.messages("q") == []
        memory.faults.unstall(process.backend)
        assert len(memory.messages("q")) == 1


async def test_stalled_renewal_is_on_its_way(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as process:
        await process.stored(1)
        lane = await process.lane(ack_wait_s=10.0)
        held = await receive(lane)
        await trio.sleep(2)
        memory.faults.stall(process.backend)
        lane.renew(held)
        lane.renew(held)
        assert (held.renewing, held.leased_at) == (2.0, 0.0)
        await trio.sleep(3)
        memory.faults.unstall(process.backend)
        await trio.testing.wait_all_tasks_blocked()
        # Confirmed now, and valid from when it was asked for.
        assert (held.renewing, held.leased_at) == (None, 2.0)
        memory.faults.stall(process.backend)
        lane.renew(held)
        memory.faults.disconnect(process.backend)
        assert held.renewing is None


async def test_crash_settles_nothing(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    """SIGKILL with one message in a handler, one waiting, and an acknowledgement unsent."""
    async with world.process() as one, world.process() as other:
        await one.stored(3)
        mine = await one.lane(credit=2, ack_wait_s=5.0)
        held = await receive(mine)
        memory.faults.crash(one.backend)
        mine.ack(held)
        await mine.close()
        theirs = await other.lane(credit=5, ack_wait_s=5.0)
        came = []
        for _ in range(3):
            came.append((await receive(theirs)).sequence)
        assert came == [3, 1, 2]
        assert trio.current_time() == 5.0


async def test_crashed_process_never_hears_again(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as one, world.process() as other:
        lane = await one.lane()
        memory.faults.crash(one.backend)
        assert not one.backend.connected
        with pytest.raises(trio.TooSlowError):
            await one.publish()
        await nothing_comes(lane, 100)
        with trio.move_on_after(100) as connecting:
            await one.backend.wait_connected()
        assert connecting.cancelled_caught
        with trio.move_on_after(100) as asking:
            await one.backend.backlog("q", "q-consumer")
        assert asking.cancelled_caught
        assert one.events == []
        with pytest.raises(UsageError, match="not open"):
            memory.faults.reconnect(one.backend)
        assert await other.publish() == Stored("q", 1)


async def test_crashed_name_may_be_used_again(memory: MemoryServer, autojump_clock: Clock) -> None:
    config = MemoryConfig(server=memory, name="worker")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            await nursery.start(config.create_backend().run)
            memory.faults.crash("worker")
        await nursery.start(config.create_backend().run)
        assert list(memory.backends) == ["worker"]
        nursery.cancel_scope.cancel()


async def test_restart_breaks_every_connection(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as one, world.process() as other:
        lanes = [await one.lane(credit=1), await other.lane(credit=1)]
        await one.stored(1)
        await trio.testing.wait_all_tasks_blocked()
        holder = next(lane for lane in lanes if lane.held)
        memory.faults.restart()
        # Pulls are made again, what is in hand stays there, its lease goes on.
        holder.ack(await receive(holder))
        await one.stored(4)
        complete = 0
        for _ in range(2):
            for lane in lanes:
                lane.ack(await receive(lane))
                complete += 1
        assert complete == 4
        for process in (one, other):
            assert [event.kind for event in process.events] == ["disconnected", "reconnected"]


async def test_restart_does_not_reconnect_who_was_cut_off(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as one:
        memory.faults.disconnect(one.backend)
        memory.faults.restart()
        assert not one.backend.connected
        memory.faults.reconnect(one.backend)
        assert one.backend.connected


async def test_durable_deleted_while_cut_off(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    """Nobody could tell this process; it finds out on coming back."""
    async with world.process() as process:
        lane = await process.lane()
        await process.stored(1)
        held = await receive(lane)
        memory.faults.disconnect(process.backend)
        await world.delete_durable("q", "q-consumer")
        memory.faults.reconnect(process.backend)
        assert held.lost
        # The same message waits until its former handler has ended.
        await nothing_comes(lane, 5)
        lane.forget(held)
        assert (await receive(lane)).num_delivered == 1
        assert process.events[-1].kind in ("lane_recreated", "reconnected")


def test_wrong_calls_say_what_is_right(memory: MemoryServer) -> None:
    with pytest.raises(UsageError, match="count"):
        memory.faults.drop_next_ack(0)
    with pytest.raises(UsageError, match="drop_ack"):
        memory.faults.sometimes(drop_ack=1.5)
    with pytest.raises(UsageError, match="times"):
        memory.faults.refuse_publish("q", StreamFull("x"), times=0)
    with pytest.raises(UsageError, match="PublishError"):
        memory.faults.refuse_publish("q", ValueError("x"))
    with pytest.raises(UsageError, match="open are: none"):
        memory.faults.crash("nobody")


async def storm(seed: int) -> list[tuple[int, int]]:
    """Three processes share one shard under every random fault; two crash or are cut on the way.

    Returns what was handled, (number, delivery count), in the order of handling.
    """
    server = MemoryServer(seed=seed)
    server.faults.sometimes(drop_ack=0.2, drop_puback=0.2, drop_renewal=0.2, deliver_twice=0.1)
    world = memory_world(server)
    handled: list[tuple[int, int]] = []
    in_hand: set[int] = set()
    complete = trio.Event()

    async def work(process: Process) -> None:
        lane = await process.backend.open_lane(
            LaneSpec(stream="q", durable="q-consumer", credit=2, max_ack_pending=1, ack_wait_s=5.0)
        )
        while True:
            delivery = await lane.receive()
            with trio.CancelScope() as scope:
                delivery.on_lost = scope.cancel
                await handle(delivery)
                lane.ack(delivery)
            if delivery.lost:
                lane.forget(delivery)

    async def handle(delivery: Delivery) -> None:
        number = int(delivery.payload)
        assert number not in in_hand, "handled twice at once"
        in_hand.add(number)
        try:
            await trio.sleep(1.0)
        finally:
            in_hand.discard(number)
        handled.append((number, delivery.num_delivered))
        if number == 29:
            complete.set()

    async with (
        world.process() as publisher,
        world.process() as one,
        world.process() as two,
        world.process() as three,
    ):
        for number in range(30):
            while isinstance(
                await publisher.publish(b"%d" % number, headers={MSG_ID: f"{number}"}),
                PublishError,
            ):
                pass
        scopes = [trio.CancelScope() for _ in range(3)]

        async def confined(scope: trio.CancelScope, process: Process) -> None:
            with scope:
                await work(process)

        with trio.fail_after(10_000):
            async with trio.open_nursery() as nursery:
                for scope, process in zip(scopes, (one, two, three), strict=True):
                    nursery.start_soon(confined, scope, process)
                await trio.sleep(7.5)
                server.faults.crash(one.backend)
                scopes[0].cancel()
                await trio.sleep(7.5)
                server.faults.stall(two.backend)
                await trio.sleep(1)
                server.faults.unstall(two.backend)
                server.faults.restart()
                await complete.wait()
                nursery.cancel_scope.cancel()
    return handled


@pytest.mark.parametrize("seed", range(20))
async def test_random_faults_lose_nothing_and_keep_the_order(
    seed: int, autojump_clock: Clock
) -> None:
    handled = await storm(seed)
    counts = Counter(number for number, _ in handled)
    assert set(counts) == set(range(30))
    first_times = list(dict.fromkeys(number for number, _ in handled))
    assert first_times == sorted(first_times)


def test_the_same_seed_hits_the_same_events() -> None:
    """One message at a time, so that nothing is left to Trio's choice among ready tasks."""

    async def history(seed: int) -> list[tuple[int, int, float]]:
        server = MemoryServer(seed=seed)
        server.faults.sometimes(drop_ack=0.4, deliver_twice=0.2)
        seen = []
        async with memory_world(server).process() as process:
            await process.stored(30)
            lane = await process.lane(max_ack_pending=1, ack_wait_s=5.0)
            while server.messages("q"):
                with trio.move_on_after(20):
                    delivery = await lane.receive()
                    seen.append((delivery.sequence, delivery.num_delivered, trio.current_time()))
                    lane.ack(delivery)
        return seen

    def run(seed: int) -> object:
        return trio.run(history, seed, clock=trio.testing.MockClock(autojump_threshold=0))

    assert run(7) == run(7)
    assert run(7) != run(8)


# ---------------------------------------------------------------------------- requests that change


async def test_a_mark_that_has_left_is_written_although_its_writer_has_given_up(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as one, world.process() as other:
        memory.faults.stall(one.backend)
        with trio.move_on_after(1.0):
            await one.backend.write_mark("q", "k", b"late", revision=0)
        assert (await other.backend.read_mark("q", "k")).value is None
        memory.faults.unstall(one.backend)
        assert (await other.backend.read_mark("q", "k")).value == b"late"


async def test_a_mark_is_written_and_its_writer_never_told(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as one, world.process() as other:
        memory.faults.stall(one.backend, "down")
        with pytest.raises(RequestTimeout):
            await one.backend.write_mark("q", "k", b"stored", revision=0)
        assert (await other.backend.read_mark("q", "k")).value == b"stored"


async def test_a_request_that_is_cut_off_on_its_way_changes_nothing(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as one, world.process() as other:
        memory.faults.stall(one.backend)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def write() -> None:
                with pytest.raises(ConnectionError, match="cut off"):
                    await one.backend.write_note("q", 1, b"note")

            await trio.sleep(1)
            memory.faults.disconnect(one.backend)
        memory.faults.reconnect(one.backend)
        assert await other.backend.read_note("q", 1) is None


async def test_a_slow_request_changes_something_halfway(
    memory: MemoryServer, world: World, autojump_clock: Clock
) -> None:
    async with world.process() as one, world.process() as other:
        memory.faults.slow(one.backend, 2.0)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.backend.write_note, "q", 1, b"note")
            await trio.sleep(1.9)
            assert await other.backend.read_note("q", 1) is None
            await trio.sleep(0.2)
            assert await other.backend.read_note("q", 1) == b"note"
        assert trio.current_time() - began == pytest.approx(4.0)
