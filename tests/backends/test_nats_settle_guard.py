"""A settle that the server may not have read does not outlive its lease (`_settle_guard.py`)."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import pytest
import trio

from shove_actors.backends import BackendEvent, margins
from shove_actors.backends.nats._lane import NatsLane
from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .nats_process import of, open_lane, process
from .world import receive

LEASE_S = 2.0


async def shard(one: object) -> NatsLane:
    return await open_lane(one, max_ack_pending=1, ack_wait_s=LEASE_S)  # type: ignore[arg-type]


async def test_settles_are_proven_and_the_proof_is_shared(own_server: ServerProcess) -> None:
    async with process(own_server, "q") as one:
        lane = await shard(one)
        guard = of(one).guard
        for _ in range(5):
            await one.stored(1)
            lane.ack(await lane.receive())
        await wait_until(lambda: guard.proofs)
        before = guard.proofs
        await trio.sleep(LEASE_S / 2)
        assert guard.proofs == before, "nothing to prove, no PING"
        assert before <= 3
        assert guard.cuts == 0


async def test_unread_settle_cuts_the_connection_before_its_lease_ends(
    own_server: ServerProcess,
) -> None:
    async with process(own_server, "q") as one:
        lane = await shard(one)
        await one.stored(1)
        delivery = await lane.receive()
        lost: list[float] = []

        def hear(event: BackendEvent) -> None:
            if event.kind == "disconnected":
                lost.append(trio.current_time())

        of(one).listen(hear)
        own_server.pause()
        try:
            lane.ack(delivery)
            await wait_until(lambda: lost, 2 * LEASE_S)
        finally:
            own_server.resume()
        assert of(one).guard.cuts == 1
        assert lost[0] - delivery.leased_at <= LEASE_S
        with trio.fail_after(10):
            await of(one).wait_connected()
        # It had reached the server's kernel, so it was read after all: nobody was served meanwhile.
        await one.stored(1)
        with trio.fail_after(10):
            after = await lane.receive()
        assert after.sequence in (delivery.sequence, delivery.sequence + 1)


async def test_plain_lanes_prove_nothing(own_server: ServerProcess) -> None:
    async with process(own_server, "q") as one:
        lane = await open_lane(one, credit=5, ack_wait_s=0.5)
        await one.stored(1)
        lane.ack(await lane.receive())
        await trio.sleep(0.5)
        assert of(one).guard.proofs == 0


async def test_latest_delivery_of_a_shard_owns_it(own_server: ServerProcess) -> None:
    """Not the one before, and not after it was settled."""
    async with process(own_server, "q") as one, process(own_server, "q") as two:
        await one.stored(2)
        mine = await shard(one)
        first = await mine.receive()
        assert await one.backend.owns(first)
        mine.set_credit(0)
        theirs = await shard(two)
        again = await receive(theirs)
        assert (again.sequence, again.num_delivered) == (first.sequence, 2)
        assert not await one.backend.owns(first)
        assert await two.backend.owns(again)
        theirs.ack(again)
        assert await theirs.confirm()
        assert not await two.backend.owns(again)


@pytest.mark.parametrize("ack_wait_s", [0.5, 1.0, 4.0, 30.0])
async def test_age_of_a_delivery_is_known_for_every_lease(
    own_server: ServerProcess, ack_wait_s: float
) -> None:
    """Idle for longer than the lease, and yet what comes then is fresh, and known to be."""
    async with process(own_server, "q") as one:
        lane = await open_lane(one, credit=5, ack_wait_s=ack_wait_s)
        await trio.sleep(min(2.0, 2 * ack_wait_s))
        await one.stored(1)
        with trio.fail_after(10):
            delivery = await lane.receive()
        age = trio.current_time() - delivery.leased_at
        assert age <= ack_wait_s * margins.STALE_SHARE
        lane.ack(delivery)
        assert await lane.confirm()


async def test_stall_is_noticed_for_a_short_lease(own_server: ServerProcess) -> None:
    """A delivery that is read after its lease is left to whoever has it by then."""
    async with process(own_server, "q") as one:
        lane = await open_lane(one, credit=5, ack_wait_s=0.5)
        await trio.sleep(0.3)
        publish_blocking(own_server, "q")
        time.sleep(0.8)  # noqa: ASYNC251 - what is tested
        with trio.fail_after(10):
            delivery = await lane.receive()
        assert trio.current_time() - delivery.leased_at < 0.5 * margins.STALE_SHARE
        assert delivery.num_delivered > 1, "the first was not begun"


def publish_blocking(server: ServerProcess, subject: str) -> None:
    """Without giving the event loop a turn."""
    parts = urlsplit(server.url)
    assert parts.port is not None
    with socket.create_connection(("127.0.0.1", parts.port), 5) as sock:
        sock.sendall(b'CONNECT {"verbose":false}\r\nPUB %b 1\r\nx\r\nPING\r\n' % subject.encode())
        answer = b""
        while b"PONG" not in answer:
            answer += sock.recv(4096)
