"""A lane's bad days: restarts, silence, durables and streams that vanish."""

from __future__ import annotations

import pytest
import trio

from shove_actors._errors import ConnectionError, NotPullConsumer, TopologyError
from shove_actors.backends import LaneSpec
from shove_actors.backends.nats import NatsBackend, NatsConfig, _backend, _demand, _recovery
from shove_actors.backends.nats._lane import NatsLane
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import ConsumerConfig
from shove_actors.messaging import TopologyBuilder
from tests.support import wait_until

from .nats_process import FAST, Fresh, kinds, of, open_lane, process, waiting
from .world import Process, receive


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats and looks many times a second, so that their absence is noticed soon."""
    monkeypatch.setattr(_demand, "PULL_HEARTBEAT_S", 0.25)
    monkeypatch.setattr(_backend, "WATCH_S", 0.05)


# ------------------------------------------------------------------------------ bad days


async def test_c15_restart(own_server: ServerProcess) -> None:
    """Reading goes on by itself, with what was stored before, while and after."""
    async with process(own_server, "q") as one:
        lane = await open_lane(one, credit=10)
        await one.stored(5)
        seen: set[int] = set()

        async def read() -> None:
            while len(seen) < 105:
                delivery = await lane.receive()
                seen.add(delivery.sequence)
                lane.ack(delivery)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await wait_until(lambda: len(seen) == 5)
                await trio.to_thread.run_sync(own_server.restart)
                await one.backend.wait_connected()
                await one.stored(100)
        assert seen == set(range(1, 106))
        assert kinds(one).count("disconnected") == kinds(one).count("reconnected") == 1


@pytest.mark.usefixtures("quick")
async def test_c16_a_paused_server(own_server: ServerProcess) -> None:
    """Longer than two heartbeats, and longer than the pull. Then reading goes on."""
    async with process(own_server, "q", ping_interval=60.0) as one:
        lane = await open_lane(one, credit=3)
        await one.stored(1)
        lane.ack(await receive(lane))
        own_server.pause()
        with trio.CancelScope() as scope:
            # Nothing tells of a deadline that has passed; the watch is probing meanwhile.
            await wait_until(lambda: lane.deadline < trio.current_time())
            await wait_until(lambda: lane.deadline < trio.current_time() - 0.3)
            scope.cancel()
        own_server.resume()
        await one.stored(20)
        for _ in range(20):
            delivery = await receive(lane)
            assert len(lane.held) <= 3
            lane.ack(delivery)
        assert await lane.confirm()
        assert "disconnected" not in kinds(one), "the probe had five seconds"


@pytest.mark.usefixtures("quick")
async def test_a_server_that_stays_silent_is_left(
    own_server: ServerProcess, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Black hole: no heartbeat, no PONG. The connection is dropped long before its pings."""
    monkeypatch.setattr(_backend, "PROBE_S", 0.2)
    urls = f"{own_server.url},{server.url}"
    backend = NatsConfig(
        urls, dont_randomize=True, ping_interval=60.0, connect_timeout=0.5, **FAST
    ).create_backend()
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        one = Process(backend, "q")
        await backend.declare([TopologyBuilder("q").build()])
        await one.lane()
        own_server.pause()
        await one.event("reconnected")
        assert backend.connection.server == server.url
        (lost,) = [e for e in one.events if e.kind == "disconnected"]
        assert "stopped answering" in lost.detail
        backend.close()


@pytest.mark.usefixtures("quick")
async def test_silence_of_a_lane_alone(server: ServerProcess, fresh_queue: Fresh) -> None:
    """The connection answers, the pull is lost: another one is sent, the old one cannot steal."""
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one, credit=4)
        await waiting(one, 1)
        # As if the server had forgotten: the inbox is deaf, and the pull lives on unseen.
        of(one).connection.redirect(lane._demand.sid, lambda *message: None)
        await one.event("pull_stalled")
        await waiting(one, 1)
        await one.stored(12)
        for number in range(12):
            delivery = await receive(lane)
            assert (delivery.payload, delivery.num_delivered) == (b"%d" % number, 1)
            assert len(lane.held) <= 4
            lane.ack(delivery)
        assert kinds(one).count("pull_stalled") == 1


@pytest.mark.usefixtures("quick")
async def test_a_slow_handler_is_no_silence(server: ServerProcess, fresh_queue: Fresh) -> None:
    """PC-009: while the only credit is in use there is no pull, so no heartbeat is missing."""
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one, credit=1)
        await one.stored(2)
        first = await receive(lane)
        with trio.move_on_after(1.0):  # four heartbeats
            await lane.receive()
        lane.ack(first)
        lane.ack(await receive(lane))
        assert "pull_stalled" not in kinds(one)


async def test_pulls_expire_and_are_renewed(
    server: ServerProcess, fresh_queue: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """408: one new pull each time, and nothing else."""
    monkeypatch.setattr(_demand, "PULL_EXPIRES_S", 0.3)
    monkeypatch.setattr(_demand, "PULL_HEARTBEAT_S", 0.1)
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one, credit=5)
        await wait_until(lambda: lane.statistics().pulls == 4)
        assert lane.statistics().requested == 5
        await one.stored(7)
        for _ in range(7):
            lane.ack(await receive(lane))
        assert kinds(one) == []


async def test_c17_durable_deleted(server: ServerProcess, fresh_queue: Fresh) -> None:
    """PC-002: made again with the same settings, what was in hand is let go, the event tells."""
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one, credit=2, ack_wait_s=7.0, max_ack_pending=33)
        await one.stored(1)
        in_hand = await receive(lane)
        lost = trio.Event()
        in_hand.on_lost = lost.set
        await waiting(one, 1)
        await of(one).js.delete_consumer(one.queue, f"{one.queue}-consumer")
        await one.event("lane_recreated")
        assert lost.is_set()
        lane.ack(in_hand)  # too late: dropped, not sent; what came again may go on
        again = await receive(lane)
        assert (again.payload, again.num_delivered) == (b"0", 1)
        assert again.sequence in lane.held
        lane.ack(again)
        info = await of(one).js.consumer_info(one.queue, f"{one.queue}-consumer")
        assert (info.config.ack_wait, info.config.max_ack_pending) == (7.0, 33)


async def test_durable_deleted_again_while_it_is_brought_back(
    server: ServerProcess, fresh_queue: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Race: gone between being made and being looked at. Once more, and the lane lives on."""
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one, credit=2)
        js, name, looks = of(one).js, f"{one.queue}-consumer", 0
        identity = type(of(one)).identity

        async def gone_at_first(backend: NatsBackend, spec: LaneSpec) -> str:
            nonlocal looks
            looks += 1
            if looks == 1:
                await js.delete_consumer(one.queue, name)
            return await identity(backend, spec)

        monkeypatch.setattr(type(of(one)), "identity", gone_at_first)
        await js.delete_consumer(one.queue, name)
        await one.event("lane_recreated")
        await one.stored(1)
        lane.ack(await receive(lane))
        assert looks >= 2


async def test_c17_durable_deleted_while_disconnected(own_server: ServerProcess) -> None:
    """B6: nobody could tell us; the first pull is answered by 503."""
    async with process(own_server, "q") as one:
        lane = await open_lane(one)
        of(one).connection.drop_session("by the test")
        async with process(own_server, "other") as two:
            await of(two).js.delete_consumer("q", "q-consumer")
            await two.publish(subject="q")
        delivery = await receive(lane)
        lane.ack(delivery)


async def test_stream_deleted_and_made_again(
    server: ServerProcess, fresh_queue: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PC-003: told once, asked for at growing pauses, and reading goes on."""
    monkeypatch.setattr(_recovery, "RECOVER_FIRST_S", 0.05)
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one)
        asked = 0
        ensure = of(one).ensure_durable

        async def counting(spec: LaneSpec) -> bool:
            nonlocal asked
            asked += 1
            return await ensure(spec)

        monkeypatch.setattr(of(one), "ensure_durable", counting)
        # Deleted before it sees the pull, the server would not say so: heartbeats would tell then.
        await waiting(one, 1)
        await of(one).js.delete_stream(one.queue)
        await one.event("lane_waiting")
        await wait_until(lambda: asked >= 4)
        # 0, 0.05, 0.15, 0.35, 0.75, ... : a hot loop would have asked hundreds of times.
        assert asked <= 6
        await one.backend.declare([TopologyBuilder(one.queue).build()])
        await one.stored(1)
        lane.ack(await receive(lane))
        assert kinds(one).count("lane_waiting") == 1
        assert "lane_recreated" in kinds(one)


async def test_pulls_that_fail_at_once_do_not_spin(
    server: ServerProcess, fresh_queue: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The durable is there and every pull is answered by 503: paced all the same."""
    monkeypatch.setattr(_recovery, "RECOVER_FIRST_S", 0.2)
    async with process(server, fresh_queue()) as one:
        lane = await open_lane(one)
        right = lane._demand.subject
        lane._demand.subject = b"nobody.listens.here"
        before = lane.statistics().pulls
        of(one).connection.drop_session("by the test")
        with trio.move_on_after(1.0):
            await lane.receive()
        assert 2 <= lane.statistics().pulls - before <= 8
        lane._demand.subject = right
        await one.stored(1)
        lane.ack(await receive(lane))


async def test_a_push_consumer_ends_the_lane(server: ServerProcess, fresh_queue: Fresh) -> None:
    async with process(server, fresh_queue()) as one:
        js = of(one).js
        config = ConsumerConfig(
            name=f"{one.queue}-consumer",
            durable_name=f"{one.queue}-consumer",
            deliver_subject="push.there",
        )
        await js.put_consumer(one.queue, config)
        with pytest.raises(TopologyError, match="push consumer"):
            await one.lane()
        # And one that turns up under a lane that is already reading:
        spec = LaneSpec(stream=one.queue, durable=f"{one.queue}-consumer")
        lane = NatsLane(of(one), spec)
        lane.start()
        with trio.fail_after(10), pytest.raises(NotPullConsumer, match="push consumer"):
            await lane.receive()
        lane.set_credit(5)
        assert lane.statistics().requested == 0, "nothing is asked for after the end"
        await lane.close()


async def test_backend_that_runs_again_finds_its_lanes(own_server: ServerProcess) -> None:
    """The supervisor restarts the bridge; a lane that was being recovered is not forgotten."""
    backend = NatsConfig(own_server.url, max_reconnect_attempts=1, **FAST).create_backend()
    one = Process(backend, "q")
    lane: NatsLane | None = None
    async with trio.open_nursery() as nursery:

        async def first_life(*, task_status: trio.TaskStatus[None]) -> None:
            with pytest.raises(ConnectionError):
                await backend.run(task_status=task_status)

        await nursery.start(first_life)
        await backend.declare([TopologyBuilder("q").build()])
        lane = await open_lane(one)
        await waiting(one, 1)
        await backend.js.delete_stream("q")
        await one.event("lane_waiting")
        await trio.to_thread.run_sync(own_server.kill)
    await trio.to_thread.run_sync(own_server.restart)
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        await backend.declare([TopologyBuilder("q").build()])
        await one.stored(1)
        lane.ack(await receive(lane))
        await lane.close()
        backend.close()
