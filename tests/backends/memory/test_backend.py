"""The backend's life: run, close, run again; and when `done` is called."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from shove_actors._errors import (
    BrokerClosed,
    ConnectionError,
    MessageTooLarge,
    NotConnected,
    PublishUnknown,
    RequestTimeout,
)
from shove_actors.backends import BackendEvent, LaneSpec, Post, Stored
from shove_actors.backends.memory import MemoryConfig, MemoryServer
from shove_actors.messaging import TopologyBuilder
from tests.backends.world import receive

from .support import backend_of, memory_world

Clock = trio.testing.MockClock
TOPOLOGY = TopologyBuilder("q").build()


class Answers(list[object]):
    """Collects the results of posts, in the order in which they come."""

    def post(self, payload: bytes = b"", subject: str = "q") -> Post:
        return Post(subject, payload, b"", lambda post, result: self.append(result))


async def test_done_is_never_called_inside_post(autojump_clock: Clock) -> None:
    """Whatever the result: the publisher may not have noted the post yet."""
    server = MemoryServer(max_payload=100)
    async with memory_world(server).process() as process:
        answers = Answers()
        process.backend.post(
            [answers.post(), answers.post(b"x" * 101), answers.post(subject="nowhere")]
        )
        assert answers == []
        await trio.testing.wait_all_tasks_blocked()
        assert len(answers) == 3
        server.faults.disconnect(process.backend)
        process.backend.post([answers.post()])
        assert len(answers) == 3
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(answers[3], NotConnected)


async def test_a_batch_is_answered_in_one_pass(autojump_clock: Clock) -> None:
    async with memory_world(MemoryServer()).process() as process:
        answers = Answers()
        process.backend.post([answers.post() for _ in range(1000)])
        while not answers:
            await trio.lowlevel.checkpoint()
        assert answers == [Stored("q", n) for n in range(1, 1001)]


async def test_before_it_runs(autojump_clock: Clock) -> None:
    backend = MemoryConfig().create_backend()
    assert not backend.connected
    answers = Answers()
    backend.post([answers.post()])
    assert answers == []
    await trio.testing.wait_all_tasks_blocked()
    assert isinstance(answers[0], NotConnected)
    with pytest.raises(ConnectionError, match="not connected"):
        await backend.declare([TOPOLOGY])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.wait_connected)
        await trio.testing.wait_all_tasks_blocked()
        await nursery.start(backend.run)
        backend.close()


async def test_close_flushes(autojump_clock: Clock) -> None:
    """Answers that are due still come; `run` returns at once afterwards."""
    backend = MemoryConfig().create_backend()
    answers = Answers()
    events: list[BackendEvent] = []
    backend.listen(events.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        await backend.declare([TOPOLOGY])
        backend.post([answers.post(), answers.post()])
        backend.close()
        backend.close()
    assert answers == [Stored("q", 1), Stored("q", 2)]
    assert [event.kind for event in events] == ["closed"]
    assert trio.current_time() == 0.0


async def test_close_waits_five_seconds_for_a_stalled_link(autojump_clock: Clock) -> None:
    config = MemoryConfig(ack_timeout=60.0)
    backend = config.create_backend()
    answers = Answers()
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        await backend.declare([TOPOLOGY])
        config.server.faults.stall(backend)
        backend.post([answers.post()])
        backend.close()
    assert isinstance(answers[0], PublishUnknown)
    assert trio.current_time() == 5.0


async def test_after_close(autojump_clock: Clock) -> None:
    backend = MemoryConfig().create_backend()
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        await backend.wait_connected()
        backend.close()
    assert not backend.connected
    with pytest.raises(BrokerClosed):
        backend.post([Answers().post()])
    with pytest.raises(BrokerClosed):
        await backend.declare([TOPOLOGY])
    with pytest.raises(BrokerClosed):
        await backend.run()
    with pytest.raises(ConnectionError, match="closed"):
        await backend.wait_connected()


async def test_close_without_a_run(autojump_clock: Clock) -> None:
    backend = MemoryConfig().create_backend()
    backend.close()
    with pytest.raises(ConnectionError, match="closed"):
        await backend.wait_connected()


async def test_cancelled_and_run_again(autojump_clock: Clock) -> None:
    """As a supervisor does it: lanes and listeners survive, messages in hand too."""
    server = MemoryServer()
    backend = MemoryConfig(server=server).create_backend()
    events: list[str] = []
    backend.listen(lambda event: events.append(event.kind))
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            await nursery.start(backend.run)
            await backend.declare([TOPOLOGY])
            lane = await backend.open_lane(LaneSpec(stream="q", durable="q-consumer"))
            nursery.cancel_scope.cancel()
        assert not backend.connected
        assert not server.backends
        await outer.start(backend.run)
        answers = Answers()
        backend.post([answers.post(b"later")])
        delivery = await receive(lane)
        assert delivery.payload == b"later"
        lane.ack(delivery)
        assert events == ["disconnected", "reconnected"]
        backend.close()


async def test_cancelled_with_answers_under_way(autojump_clock: Clock) -> None:
    backend = MemoryConfig().create_backend()
    answers = Answers()
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        await backend.declare([TOPOLOGY])
        backend.post([answers.post()])
        nursery.cancel_scope.cancel()
    assert len(answers) == 1


async def test_post_has_a_deadline_of_its_own(autojump_clock: Clock) -> None:
    config = MemoryConfig(ack_timeout=60.0)
    async with memory_world(config.server).process() as process:
        config.server.faults.stall(process.backend)
        answers = Answers()
        post = answers.post()
        post.deadline = trio.current_time() + 1.5
        process.backend.post([post])
        await trio.sleep(1.5)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(answers[0], PublishUnknown)
        config.server.faults.unstall(process.backend)
        await trio.testing.wait_all_tasks_blocked()
        assert len(answers) == 1


async def test_requests_time_out_under_a_stall(autojump_clock: Clock) -> None:
    server = MemoryServer()
    async with memory_world(server).process() as process:
        server.faults.stall(process.backend)
        with pytest.raises(RequestTimeout):
            await process.backend.backlog("q", "q-consumer")
        assert trio.current_time() == 5.0
        assert isinstance(await process.backend.diagnose("q"), RequestTimeout)
        server.faults.disconnect(process.backend)
        with pytest.raises(ConnectionError):
            await process.backend.backlog("q", "q-consumer")
        assert isinstance(await process.backend.diagnose("q"), NotConnected)


async def test_a_raising_listener_is_removed(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server = MemoryServer()
    async with memory_world(server).process() as process:
        calls: list[str] = []

        def broken(event: BackendEvent) -> None:
            calls.append(event.kind)
            raise RuntimeError("broken")

        process.backend.listen(broken)
        with caplog.at_level(logging.ERROR):
            server.faults.disconnect(process.backend)
            server.faults.reconnect(process.backend)
        assert calls == ["disconnected"]
        assert len(caplog.records) == 1
        assert [event.kind for event in process.events] == ["disconnected", "reconnected"]


async def test_smaller_max_payload_of_two(autojump_clock: Clock) -> None:
    server = MemoryServer(max_payload=1000)
    assert MemoryConfig(server=server).create_backend().max_payload == 1000
    assert MemoryConfig(server=server, max_payload=10).create_backend().max_payload == 10
    async with memory_world(server).process() as process:
        assert isinstance(await process.publish(b"x" * 1001), MessageTooLarge)
        assert await process.publish(b"x" * 1000) == Stored("q", 1)


async def test_capabilities(autojump_clock: Clock) -> None:
    async with memory_world(MemoryServer()).process() as process:
        seen = process.backend.capabilities
        assert (seen.name, seen.durable, seen.virtual_time) == ("memory", False, True)
        assert backend_of(process).name in repr(process.backend)


async def test_under_the_real_clock() -> None:
    """Nothing depends on virtual time: a lease of 50 ms ends after 50 ms."""
    async with memory_world(MemoryServer()).process() as process:
        lane = await process.lane(credit=1, ack_wait_s=0.05)
        await process.stored(1)
        held = await receive(lane)
        lane.forget(held)
        again = await receive(lane)
        assert again.num_delivered == 2
        assert again.leased_at >= held.leased_at + 0.05
