"""Keyed lanes on a real server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from shove_actors._errors import TopologyError
from shove_actors.backends import BackendEvent
from shove_actors.backends._keyed_pulls import KeyedPulls
from shove_actors.embedded import ServerProcess, embedded_server

from .checks import CHECKS
from .support import LEASE_S, Server, owner

Check = Callable[[Server, str], Awaitable[None]]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__)[6:])
async def test_keyed_lane(
    server: ServerProcess, fresh_queue: Callable[[], str], check: Check
) -> None:
    await check(server, fresh_queue())


async def test_the_server_restarts(own_server: ServerProcess) -> None:
    """Pins are forgotten; handlers go on, and nothing is handled twice."""
    # A lease that outlasts a server's start also where much else is running.
    async with owner(own_server, "q", ack_wait_s=30.0) as one:
        await one.publish("a-1", "a-2", "b-1", "b-2")
        first = [await one.next() for _ in range(2)]
        await trio.to_thread.run_sync(own_server.kill)
        await trio.to_thread.run_sync(own_server.restart)
        await one.nats.wait_connected()
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


async def test_the_next_of_a_key_waits_until_the_acknowledgement_is_read(
    own_server: ServerProcess,
) -> None:
    async with owner(own_server, "q", ack_wait_s=20.0) as one:
        await one.publish("a-1", "a-2", "b-1")
        first, other = await one.next(), await one.next()
        await trio.to_thread.run_sync(own_server.pause)
        one.lane.ack(first)
        assert await one.nothing(0.5), "nobody has read it"
        await trio.to_thread.run_sync(own_server.resume)
        assert (await one.next()).payload == b"a-2"
        one.lane.ack(other)


async def test_a_server_that_refuses_pulls_is_not_asked_at_once_again() -> None:
    """And whoever waits for messages is told why there are none."""
    refuses = "jetstream { limits { max_request_batch: 5 } }"
    async with embedded_server(config=refuses) as server, owner(server, "q") as one:
        told: list[BackendEvent] = []
        one.backend.listen(told.append)
        await one.publish("a-1", "b-1")
        with pytest.raises(TopologyError, match="max_batch"):
            await one.take(3)
        assert 1 <= sum(event.kind == "pull_stalled" for event in told) <= 3


async def test_a_refusal_is_looked_into_also_when_the_pin_has_gone(
    own_server: ServerProcess,
) -> None:
    async with owner(own_server, "q", ack_wait_s=20.0) as one:
        await one.publish("a-1")
        assert await one.take(1) == ["a-1"]
        status = b"NATS/1.0 409 Something Unheard Of\r\n\r\n"
        one.lane._pinned._on_message(b"x", b"", status, b"")  # type: ignore[attr-defined]
        assert one.lane.pulls.stalled
        await one.unpin()
        await one.publish("a-2")
        assert await one.take(1) == ["a-2"]
        assert not one.lane.pulls.stalled


async def test_a_refusal_is_forgotten_with_the_pulls_of_that_time(
    own_server: ServerProcess,
) -> None:
    """Whoever stops pulling stops waiting for the time at which it would have been looked into."""
    async with owner(own_server, "q", ack_wait_s=20.0) as one:
        one.lane.pulls.stall()
        one.lane.pulls.stop()
        assert not one.lane.pulls.stalled


async def test_nothing_turns_in_circles_while_the_stream_is_away(
    own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    top_up = KeyedPulls.top_up

    def counted(self: KeyedPulls, now: float) -> None:
        nonlocal calls
        calls += 1
        top_up(self, now)

    monkeypatch.setattr(KeyedPulls, "top_up", counted)
    async with owner(own_server, "q") as one:
        await one.publish("a-1")
        assert await one.take(1) == ["a-1"]
        await one.delete_stream()
        await trio.sleep(0.3)
        calls = 0
        await trio.sleep(1.0)
        assert calls < 30
        await one.declare()
        await one.publish("a-2")
        assert await one.take(1, within=20.0) == ["a-2"]


async def test_the_answer_to_an_acknowledgement_is_lost(own_server: ServerProcess) -> None:
    """With the connection; the stream is asked, or delivers it again."""
    async with owner(own_server, "q", ack_wait_s=20.0) as one:
        await one.publish("a-1", "a-2")
        first = await one.next()
        one.lane.ack(first)
        one.nats.connection.drop_session("the test says so")
        assert (await one.next()).payload == b"a-2"
