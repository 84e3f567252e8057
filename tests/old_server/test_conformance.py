"""The backend on an old server: the whole conformance suite, and what needs a newer one says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import trio

from shove_actors import FeatureUnavailable
from shove_actors._errors import ApiError, ConsumerNotFound
from shove_actors.backends.nats import NatsConfig
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream, connect
from tests.backends.conformance import CHECKS, FAULT_CHECKS, World, check_id
from tests.backends.disturbance import NatsDisturbance
from tests.backends.proxy import open_proxies
from tests.backends.world import Check, receive
from tests.jetstream.kit import texts_of

#: What 2.9 cannot do whatever is asked of it; the test below says what holds instead.
SERVERS_OWN = {"fault_an_acknowledgement_survives_a_kill_at_once"}
#: By name of the check: what it needs, and from which version on.
NEEDS_NEWER = {"stream_full_by_bytes": r"max_bytes needs nats-server 2\.10\.5"}


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
async def test_conformance(
    check: Check, server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    async with connect(server.url) as js:
        world = World(
            create_backend=NatsConfig(server.url).create_backend,
            queue=fresh_queue(),
            delete_stream=js.delete_stream,
            delete_durable=partial(delete_durable, js),
        )
        refusal = NEEDS_NEWER.get(check_id(check))
        if refusal is None:
            await check(world)
            return
        with pytest.raises(Exception) as caught:  # noqa: PT011 - or a group of it, see below
            await check(world)
        shown = list(texts_of(caught.value))
        assert any(
            FeatureUnavailable.__name__ in text and re.search(refusal, text) for text in shown
        )


async def delete_durable(js: JetStream, stream: str, durable: str) -> None:
    """2.9 fails to, with "directory not empty", while it writes the durable's state."""
    for last in (False, False, False, True):
        try:
            await js.delete_consumer(stream, durable)
            return
        except ConsumerNotFound:
            return
        except ApiError as exc:
            if last or "not empty" not in exc.description:
                raise


@pytest.mark.parametrize(
    "check", [c for c in FAULT_CHECKS if check_id(c) not in SERVERS_OWN], ids=check_id
)
async def test_conformance_on_a_bad_day(check: Check, own_server: ServerProcess) -> None:
    async with open_proxies("127.0.0.1", own_server.port) as proxies:
        disturbance = NatsDisturbance(own_server, proxies)

        async def delete_stream(name: str) -> None:
            async with connect(own_server.url) as js:
                await js.delete_stream(name)

        await check(
            World(
                create_backend=disturbance.create,
                queue="q",
                delete_stream=delete_stream,
                delete_durable=disturbance.delete_durable,
                disturbance=disturbance,
            )
        )


async def test_a_killed_server_may_deliver_again_what_was_acknowledged(
    own_server: ServerProcess,
) -> None:
    """2.9 writes what is gone from a stream some time later. Nothing is lost, whatever comes."""
    async with open_proxies("127.0.0.1", own_server.port) as proxies:
        disturbance = NatsDisturbance(own_server, proxies)

        async def nobody(name: str) -> None:
            raise AssertionError(name)

        world = World(
            create_backend=disturbance.create,
            queue="q",
            delete_stream=nobody,
            delete_durable=disturbance.delete_durable,
            disturbance=disturbance,
        )
        async with world.process() as one:
            await one.stored(2)
            lane = await one.lane(max_ack_pending=1, ack_wait_s=4.0)
            lane.ack(await receive(lane))
            assert await lane.confirm()
            await disturbance.restart(killed=True)
            with trio.fail_after(10):
                await one.backend.wait_connected()
            handled: list[int] = []
            with trio.fail_after(20):
                while 2 not in handled:
                    delivery = await lane.receive()
                    if delivery.lost:
                        lane.forget(delivery)
                    else:
                        handled.append(delivery.sequence)
                        lane.ack(delivery)
            assert handled in ([2], [1, 2])
