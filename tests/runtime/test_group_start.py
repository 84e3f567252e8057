"""A group that is asked to stop, or loses its connection, before it has started."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

import pytest
import trio
import trio.testing

from shove_actors import (
    AuditLog,
    ConnectionError,
    NatsConfig,
    Outcome,
    UnavailableError,
    audited,
    open_broker,
)
from shove_actors.embedded import ServerProcess
from shove_actors.runtime import SupervisorOutcome
from shove_actors.runtime._audit import PREPARE_TIMEOUT_S
from tests.support import wait_until

from .world import Journal, Order, World, ack

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

CLEAN = SupervisorOutcome()


class Hanging:
    """A sink that never gets ready."""

    def __init__(self) -> None:
        self.asked = trio.Event()

    async def prepare(self) -> None:
        self.asked.set()
        await trio.sleep_forever()

    async def audit(self, record: object) -> None:
        """Nothing to keep."""


# ------------------------------------------------------------------ a stop before the start


async def test_the_signal_ends_a_start(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, audited(ack, sink := Hanging()))
        assert await group.run_until(sink.asked.wait) == CLEAN
        assert trio.current_time() < PREPARE_TIMEOUT_S


async def test_sigterm_ends_a_start(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, audited(ack, sink := Hanging()))

        async def send() -> None:
            await sink.asked.wait()
            os.kill(os.getpid(), signal.SIGTERM)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert (await group.run_until()).exit_code == 0


async def test_a_group_stopped_while_it_starts_reports_started(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Or whoever waits in `nursery.start` gets a RuntimeError for an orderly stop."""
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, audited(ack, sink := Hanging()))
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await sink.asked.wait()
                group.stop()

            nursery.start_soon(stop)
            await nursery.start(group.serve)
        assert group.outcome == CLEAN


async def test_a_signal_ends_a_start_on_a_server_that_does_not_answer(
    own_server: ServerProcess, memory_world: World
) -> None:
    topic = memory_world.topic()
    async with open_broker(NatsConfig(own_server.url)) as broker:
        await broker.declare(topic)
        group = broker.consumer_group()
        group.register(topic, ack)
        own_server.pause()
        try:
            with trio.fail_after(4):  # a request alone waits for 5
                assert await group.run_until(partial(trio.sleep, 0.2)) == CLEAN
        finally:
            own_server.resume()


async def test_a_sink_that_is_never_ready_is_named(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        group = broker.consumer_group()
        group.register(topic, audited(ack, Hanging()))
        with pytest.raises(UnavailableError, match=r"audit sink Hanging was not ready within 10 s"):
            await group.run_until(trio.sleep_forever)
        assert trio.current_time() == pytest.approx(PREPARE_TIMEOUT_S, abs=1)


# ------------------------------------------------------------------ a connection that is lost


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_start_outlives_a_lost_connection(
    own_server: ServerProcess, memory_world: World, when: str
) -> None:
    """With hold queues and the audit log, which have requests of their own."""
    topic = memory_world.topic()
    done: Journal[str] = Journal()

    async def handle(message: Order) -> Outcome:
        done.add(message.name)
        return Outcome.ACK

    config = NatsConfig(own_server.url, reconnect_wait=0.05, reconnect_jitter=0.0)
    async with open_broker(config) as broker:
        await broker.declare(topic)
        await broker.publisher().publish(topic, Order("kept"))
        group = broker.consumer_group()
        group.register(topic, audited(handle, AuditLog(broker)))
        if when == "before":
            await trio.to_thread.run_sync(own_server.kill)
            await wait_until(lambda: not broker.backend.connected)
        else:
            own_server.pause()  # so that a request is under way when the server dies
        back = trio.Event()

        async def outage() -> None:
            await trio.sleep(0.5)
            if when == "meanwhile":
                await trio.to_thread.run_sync(own_server.kill)
            await trio.sleep(0.5)
            back.set()
            await trio.to_thread.run_sync(own_server.restart)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(outage)
            await nursery.start(group.serve)
            assert back.is_set()
            await done.until(1)
            group.stop()
        assert group.outcome == CLEAN


async def test_a_connection_that_gives_up_ends_a_start(
    own_server: ServerProcess, memory_world: World
) -> None:
    topic = memory_world.topic()
    config = NatsConfig(
        own_server.url, reconnect_wait=0.05, reconnect_jitter=0.0, max_reconnect_attempts=3
    )

    async def start_without_a_server() -> None:
        async with open_broker(config) as broker:
            await broker.declare(topic)
            group = broker.consumer_group()
            group.register(topic, ack)
            await trio.to_thread.run_sync(own_server.kill)
            await group.run_until(trio.sleep_forever)

    with trio.fail_after(30), pytest.raises(BaseExceptionGroup) as caught:
        await start_without_a_server()
    # The group may have heard of it before the broker has cancelled it.
    assert caught.value.split(ConnectionError)[1] is None
