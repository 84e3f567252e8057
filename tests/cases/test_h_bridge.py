"""Section H of the cases: the bridge between Trio and asyncio."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from importlib.metadata import version

import pytest
import trio
import trio_asyncio

from shove_actors import BrokerClosed, NatsConfig, Outcome, Topic, TopologyBuilder, open_broker
from shove_actors.backends.nats import NatsBackend
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, connect
from shove_actors.jetstream._crossing import LET_GO_S, cross
from tests.jetstream.kit import Events, connected, fast
from tests.runtime.world import Journal, Order, World, consuming
from tests.support import wait_until


def loop_of(connection: Connection) -> trio_asyncio.TrioEventLoop:
    loop = connection._loop
    assert loop is not None
    return loop


# ------------------------------------------------------------------ PC-094


@pytest.mark.parametrize("kind", ["callback", "task", "handler"])
async def test_pc094_stray_failure_ends_a_session_only(
    kind: str, server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(fast(server.url)) as (js, events):
        loop = loop_of(js.connection)
        if kind == "callback":
            loop.call_soon(lambda: [][0])
        elif kind == "task":

            async def fail() -> None:
                raise ValueError("nobody awaits this")

            task = loop.create_task(fail())
            await js.connection.flush()
            assert task.done()
            del task
            gc.collect()
        else:
            loop.call_exception_handler({"message": "Task was destroyed but it is pending!"})
        lost = await events.wait("disconnected")
        assert "failure inside the NATS client" in str(lost.error)
        await events.wait("reconnected")
        await js.account_info()
    assert events.kinds == ["disconnected", "reconnected", "closed"]
    assert "asyncio reported a failure" in caplog.text


async def test_pc094_other_actors_do_not_notice(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    """A group that is being served, and publishers, go on; nothing of the tree restarts."""
    topic = Topic(Order, TopologyBuilder(fresh_queue()).dlq().build())
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    config = NatsConfig(server.url, reconnect_wait=0.02, reconnect_jitter=0.0)
    async with open_broker(config) as broker:
        await broker.declare(topic)
        assert isinstance(broker.backend, NatsBackend)
        # What was on its way to us when a session ended comes again after its lease.
        async with consuming(broker, topic, handle, ack_wait=1.0):
            for number in range(10):
                if number % 3 == 1:
                    loop_of(broker.backend.connection).call_soon(lambda: 1 / 0)
                await broker.publisher().publish(topic, Order(str(number)))
            # At least once: some may have come twice.
            await wait_until(lambda: len(set(seen.entries)) == 10)
        assert set(seen.entries) == {str(number) for number in range(10)}
        assert broker.backend.connection.reconnects == 3


# ------------------------------------------------------------------ PC-095


async def test_pc095_call_that_ignores_its_first_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with trio_asyncio.open_loop() as loop:
        ignored = 0

        async def stubborn() -> None:
            nonlocal ignored
            for _ in range(2):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    ignored += 1
                    if ignored == 2:
                        raise

        started = trio.current_time()
        with trio.move_on_after(0.1) as scope:
            await cross(loop, stubborn())
        assert scope.cancelled_caught
        assert trio.current_time() - started < 0.1 + LET_GO_S + 2.0
        assert ignored == 1
        assert "stubborn ignores its cancellation" in caplog.text
        with trio.move_on_after(0.05) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
    assert ignored == 2, "left behind, but not beyond the loop's end"


async def test_pc095_what_comes_too_late_is_disposed_of() -> None:
    async with trio_asyncio.open_loop() as loop:
        release = asyncio.Event()
        disposed = trio.Event()

        async def late() -> str:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            return "a session"

        def dispose(result: str) -> None:
            assert result == "a session"
            disposed.set()

        with trio.move_on_after(0.05) as scope:
            await cross(loop, late(), dispose=dispose)
        assert scope.cancelled_caught
        release.set()
        with trio.fail_after(5):
            await disposed.wait()


async def test_pc095_result_that_was_there_first_is_not_lost() -> None:
    async with trio_asyncio.open_loop() as loop:

        async def swallow() -> str:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
            return "opened"

        with trio.move_on_after(0.05) as scope:
            assert await cross(loop, swallow()) == "opened"
        assert not scope.cancelled_caught

        async def fail() -> None:
            raise ValueError("as it is")

        with pytest.raises(ValueError, match="as it is"):
            await cross(loop, fail())
    with pytest.raises(RuntimeError, match="closed"):
        await cross(loop, swallow())


# ------------------------------------------------------------------ PC-098


async def test_pc098_cancelled_before_it_runs(server: ServerProcess) -> None:
    """A Trio call made from asyncio, and ours the other way: no waiter is left."""
    major, minor = version("trio-asyncio").split(".")[:2]
    assert (int(major), int(minor)) >= (0, 16)
    async with trio_asyncio.open_loop() as loop:
        future = loop.trio_as_future(trio.sleep_forever)
        future.cancel()
        with trio.fail_after(5), pytest.raises(asyncio.CancelledError):
            await loop.run_aio_future(future)
        ran = 0

        async def call() -> None:
            nonlocal ran
            ran += 1

        with trio.CancelScope() as scope:
            scope.cancel()
            await cross(loop, call())
        assert scope.cancelled_caught
        assert ran == 0
        returned = 0
        for _ in range(50):
            # Scheduled, and cancelled in the same pass: it ran and returned, or it did neither.
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def one() -> None:
                    nonlocal returned
                    await cross(loop, call())
                    returned += 1

                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert ran == returned
        ours = [task for task in asyncio.all_tasks(loop) if not task.done()]
        assert ours == []
    async with connect(fast(server.url)) as js:
        for _ in range(50):
            with trio.CancelScope() as scope:
                scope.cancel()
                await js.connection.flush()
            assert scope.cancelled_caught
        await js.connection.flush()
        pings = [f for f in js.connection._link.client._pongs if not f.done()]  # type: ignore[union-attr]
        assert pings == []


# ------------------------------------------------------------------ PC-099


async def test_pc099_after_the_broker_is_closed(world: World, clock: object) -> None:
    topic = world.topic()
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        await publisher.publish(topic, Order("x"))
    with pytest.raises(BrokerClosed, match="closed"):
        await publisher.publish(topic, Order("y"))
    with pytest.raises(BrokerClosed, match="closed"):
        await broker.declare(topic)
    with pytest.raises(BrokerClosed, match="closed"):
        broker.consumer_group()


async def test_pc099_from_a_task_of_another_tree(world: World, clock: object) -> None:
    """Started before the broker was opened, so outside of its loop and nurseries: it works, and
    once the broker is closed it is told so."""
    topic = world.topic()
    send, receive = trio.open_memory_channel[object](1)
    results: Journal[object] = Journal()

    async def outsider() -> None:
        async for publisher in receive:
            try:
                results.add(await publisher.publish(topic, Order("x")))  # type: ignore[attr-defined]
            except BrokerClosed as exc:
                results.add(exc)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(outsider)
        async with world.broker(topic) as broker:
            publisher = broker.publisher()
            await send.send(publisher)
            await results.until(1)
        await send.send(publisher)
        await results.until(2)
        send.close()
    assert results.entries[0].sequence == 1  # type: ignore[attr-defined]
    assert isinstance(results.entries[1], BrokerClosed)


async def test_pc099_connection_after_its_block(server: ServerProcess) -> None:
    async with connect(fast(server.url)) as js:
        await js.account_info()
    connection = js.connection
    for call in (js.account_info, connection.wait_connected):
        with pytest.raises(BrokerClosed, match="closed"):
            await call()
    assert not connection.connected
    assert not connection.publish(b"a", b"b")
    connection.close()
    events = Events(connection)
    await connection.wait_ended()
    assert events.all == []
