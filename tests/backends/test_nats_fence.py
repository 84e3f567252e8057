"""What becomes of a shard's delivery when the connection is lost (see `_fence.py`)."""

from __future__ import annotations

import pytest
import trio

from shove_actors._errors import UnavailableError
from shove_actors.backends import LaneSpec
from shove_actors.backends.nats import NatsBackend, _fence
from shove_actors.backends.nats._lane import NatsLane
from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .nats_process import of, open_lane, process

LEASE_S = 5.0


async def shard(one: object, **changes: object) -> NatsLane:
    return await open_lane(one, max_ack_pending=1, ack_wait_s=LEASE_S, **changes)  # type: ignore[arg-type]


async def lose_connection(backend: NatsBackend) -> None:
    backend.connection.drop_session("the test says so")
    with trio.fail_after(10):
        await wait_until(lambda: not backend.connected, interval=0.001)
        await backend.wait_connected()


async def test_a_young_delivery_is_fenced_and_given_back_to_the_same_server(
    own_server: ServerProcess,
) -> None:
    async with process(own_server, "q") as one:
        lane = await shard(one)
        await one.stored(1)
        first = await lane.receive()
        cancelled = trio.Event()
        first.on_lost = cancelled.set
        await lose_connection(of(one))
        assert cancelled.is_set()
        assert first.lost
        assert first.fenced
        started = trio.current_time()
        lane.forget(first)  # its handler has ended
        with trio.fail_after(LEASE_S * 0.8):
            again = await lane.receive()
        assert trio.current_time() - started < LEASE_S * 0.8, "given back, not waited for"
        assert again.sequence == first.sequence
        assert not again.lost
        lane.ack(again)
        assert await lane.confirm()


async def test_a_handler_that_ends_while_disconnected_is_given_back_after_the_reconnect(
    own_server: ServerProcess,
) -> None:
    async with process(own_server, "q") as one:
        lane = await shard(one)
        await one.stored(1)
        first = await lane.receive()
        first.on_lost = lambda: lane.forget(first)  # unwinds at once, before the reconnect
        await lose_connection(of(one))
        with trio.fail_after(LEASE_S * 0.8):
            again = await lane.receive()
        assert again.sequence == first.sequence
        lane.ack(again)
        assert await lane.confirm()


async def test_a_restarted_server_gets_nothing_back(own_server: ServerProcess) -> None:
    """It may have delivered the message to somebody else, whose delivery a NAK would end."""
    async with process(own_server, "q") as one:
        lane = await shard(one)
        await one.stored(1)
        first = await lane.receive()
        await trio.to_thread.run_sync(own_server.kill)
        await trio.to_thread.run_sync(own_server.restart)
        await of(one).wait_connected()
        assert first.fenced
        sent: list[bytes] = []
        lane._conn.write = sent.append  # type: ignore[method-assign,assignment]
        lane.forget(first)
        assert not [data for data in sent if b"-NAK" in data]


async def test_an_older_delivery_keeps_its_lease(
    own_server: ServerProcess,
) -> None:
    """The server knows of it for long: a blip of the network must not cancel its handler."""
    async with process(own_server, "q") as one:
        lane = await shard(one)
        await one.stored(1)
        first = await lane.receive()
        first.arrived_at -= _fence.FORGETFUL_S
        leased_at = first.leased_at
        await lose_connection(of(one))
        assert not first.lost
        # Renewed first thing after the reconnect.
        await wait_until(lambda: first.leased_at > leased_at, interval=0.001)
        lane.ack(first)
        assert await lane.confirm()
        backlog = await one.backend.backlog("q", "q-consumer")
        assert backlog is not None
        assert (backlog.pending, backlog.ack_pending) == (0, 0)


async def test_an_unsequenced_lane_is_not_fenced(own_server: ServerProcess) -> None:
    async with process(own_server, "q") as one:
        lane = await open_lane(one, credit=1, ack_wait_s=LEASE_S)
        assert isinstance(lane.spec, LaneSpec)
        await one.stored(1)
        first = await lane.receive()
        await lose_connection(of(one))
        assert not first.lost
        lane.ack(first)
        assert await lane.confirm()


async def test_settles_of_a_durable_in_doubt_are_not_sent_by_closing(
    own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane closes before it is known whether the durable is still the same."""
    async with process(own_server, "q") as one:
        lane = await open_lane(one, credit=2, ack_wait_s=30.0)
        await one.stored(1)
        first = await lane.receive()
        asked, forever = trio.Event(), trio.Event()

        async def never(spec: LaneSpec) -> bool:
            asked.set()
            await forever.wait()
            raise UnavailableError("not now")

        monkeypatch.setattr(of(one), "ensure_durable", never)
        lane._recovery.begin("the test says so")
        await asked.wait()
        lane.ack(first)
        await lane.close()
        forever.set()
        await wait_until(lambda: not lane._recovery.active)
        assert first.lost
        backlog = await one.backend.backlog("q", "q-consumer")
        assert backlog is not None
        assert backlog.ack_pending == 1, "still the server's, delivered again after its lease"
