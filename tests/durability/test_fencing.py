"""A handler has ended, or nothing of it goes on, before its message is somebody else's.

Whatever comes between a process and its server: the server stands still, the network swallows
everything, the event loop is blocked, the process itself is stopped. Two processes share a queue in
each of these tests; the journals say, by the machine's clock, who ran when.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import msgspec
import pytest
import trio

from shove_actors import (
    Broker,
    MessageMetadata,
    NatsConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends import margins
from shove_actors.backends.nats import NatsBackend
from shove_actors.embedded import ServerProcess
from tests.proxy import open_proxy
from tests.support import wait_until

from .launcher import SOON_S
from .notes import Event, Note
from .overlaps import intervals, out_of_order, overlaps
from .support import World

# Waits for real leases; `pytest -m slow` (CI does).
pytestmark = [pytest.mark.server, pytest.mark.slow]

LEASE_S = 2.0
#: Standing still for this long is too long.
TOO_LONG_S = 1.6 * LEASE_S


def one_at_a_time(at: World) -> None:
    """What every one of these tests ends with."""
    events = sorted(
        [*at.events("start"), *at.events("end"), *at.events("interrupted")], key=lambda e: e.at
    )
    calls = intervals(events, {})
    assert overlaps(calls) == []
    done: dict[int, int] = {}
    for event in at.events("end"):
        done.setdefault(event.sequence, event.at)
    assert out_of_order(calls, done) == []


def the_only(events: list[Event]) -> Event:
    [event] = events
    return event


@pytest.mark.limit(120)
@pytest.mark.parametrize("lease_s", [1.0, LEASE_S])
async def test_server_stopped(
    own_world: Callable[..., World], own_server: ServerProcess, lease_s: float
) -> None:
    at = own_world("sequenced", shards=1)
    await at.publish(Note("m1", "gate"), Note("m2"))
    one = await at.start(ack_wait=lease_s)
    await wait_until(lambda: at.events(id="m1"), SOON_S)
    two = await at.start(ack_wait=lease_s)
    await trio.sleep(1.5 * lease_s)  # renewed meanwhile, and older than what a kill could forget
    stopped = time.monotonic_ns()
    own_server.pause()
    try:
        await wait_until(lambda: at.events("interrupted", id="m1"), SOON_S)
        await trio.sleep(max(0, 1.6 * lease_s - (time.monotonic_ns() - stopped) / 1e9))
    finally:
        own_server.resume()
    cut = the_only(at.events("interrupted", id="m1"))
    assert cut.who == one.plan.name
    assert cut.at - stopped < lease_s * 1e9, "cancelled before the lease could end"
    at.open_gate()
    await at.quiet(40.0)
    await two.kill()
    one_at_a_time(at)
    assert [e.id for e in at.events("end")] == ["m1", "m2"]


@pytest.mark.limit(120)
@pytest.mark.parametrize("lease_s", [1.0, LEASE_S])
async def test_connection_black_holed(world: Callable[..., World], lease_s: float) -> None:
    at = world("sequenced", shards=1)
    await at.publish(Note("m1", "gate"), Note("m2"))
    async with open_proxy(at.url) as proxy:
        one = await at.start(ack_wait=lease_s, url=proxy.url)
        await wait_until(lambda: at.events(id="m1"), SOON_S)
        two = await at.start(ack_wait=lease_s)
        await trio.sleep(1.2 * lease_s)
        proxy.freeze()
        await wait_until(lambda: len(at.events(id="m1")) == 2, SOON_S)
        cut = the_only(at.events("interrupted", id="m1"))
        first, second = at.events(id="m1")
        assert (first.who, cut.who, second.who) == (one.plan.name, one.plan.name, two.plan.name)
        assert cut.at < second.at
        at.open_gate()
        await wait_until(lambda: at.events("end", id="m2"), SOON_S)
        proxy.thaw()
        await at.quiet(40.0)
        await one.kill()
    one_at_a_time(at)
    assert [e.id for e in at.events("end")] == ["m1", "m2"]


@pytest.mark.limit(120)
async def test_event_loop_blocked_by_another_handler(world: Callable[..., World]) -> None:
    """m1 sleeps for less than the block takes: it must not wake up behind its lease."""
    at = world("sequenced", shards=2)
    await at.publish(Note("m1", "work", key="a"), Note("m2", key="a"))
    one = await at.start(ack_wait=LEASE_S, work_s=1.5 * LEASE_S)
    await wait_until(lambda: at.events(id="m1"), SOON_S)
    await at.publish(Note("b1", "block", key=other_shard("a")))
    await wait_until(lambda: at.events(id="b1"), SOON_S)
    two = await at.start(ack_wait=LEASE_S, work_s=0.0)
    await wait_until(lambda: at.events("end", id="m2"), SOON_S)
    await wait_until(lambda: at.events("end", id="b1", who=one.plan.name), SOON_S)
    await wait_until(lambda: at.events("interrupted", id="m1"), SOON_S)
    unblocked = the_only(at.events("end", id="b1", who=one.plan.name))
    cut = the_only(at.events("interrupted", id="m1"))
    assert cut.who == one.plan.name
    assert cut.at - unblocked.at < 0.5e9
    assert [e.who for e in at.events("end", id="m1")] == [two.plan.name]
    await at.quiet(40.0)
    assert "the event loop was blocked" in one.log


def other_shard(key: str) -> str:
    """A key that does not share the shard of `key`, of two."""
    shard_of = SequencedTopic(
        Note,
        key=lambda note: note.key,
        topology=TopologyBuilder("x")
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(2)
        .allow_message_loss()
        .build(),
    ).shard_of
    taken = shard_of(key)
    return next(c for c in "bcdefgh" if shard_of(c) != taken)


@pytest.mark.limit(120)
@pytest.mark.parametrize("kind", ["plain", "sequenced"])
async def test_process_stopped_settles_nothing_and_starts_nothing_old(
    world: Callable[..., World], kind: str
) -> None:
    """Its buffers are full of what is somebody else's by the time it goes on."""
    at = world(kind, shards=1)
    # On a shard each of them may go to the standing request of the stopped process first.
    behind = [Note(f"n{n}") for n in range(9 if kind == "plain" else 2)]
    await at.publish(Note("m1", "work"), *behind)
    one = await at.start(ack_wait=LEASE_S, work_s=0.7 * LEASE_S)
    await wait_until(lambda: at.events(id="m1"), SOON_S)
    one.signal(signal.SIGSTOP)
    two = await at.start(ack_wait=LEASE_S, work_s=0.0)
    await wait_until(
        lambda: len(at.events("end", who=two.plan.name)) == 1 + len(behind), 2 * SOON_S
    )
    resumed = time.monotonic_ns()
    one.signal(signal.SIGCONT)
    await wait_until(lambda: at.events("interrupted", id="m1"), SOON_S)
    assert the_only(at.events("interrupted", id="m1")).at - resumed < 1e9
    # It is alive and well, and gets what comes now.
    await two.kill()
    await at.publish(Note("new"))
    await wait_until(lambda: at.events("end", id="new"), SOON_S)
    assert [e.id for e in at.events(who=one.plan.name)] == ["m1", "new"]
    assert [e.id for e in at.events("end", who=one.plan.name)] == ["new"]
    await at.quiet(40.0)


# ------------------------------------------------------------------ the settle that was not read


class Step(msgspec.Struct):
    name: str
    key: str


class Run:
    """Two consumers of one topic in this process, and what they did."""

    def __init__(self, queue: str, shards: int) -> None:
        self.topic = SequencedTopic(
            Step,
            key=lambda step: step.key,
            topology=TopologyBuilder(queue)
            .sequenced(SequenceFailure.SKIP)
            .routing_shards(shards)
            .hold_queue(1)
            .dlq()
            .build(),
        )
        self.calls: list[tuple[str, str, int, float, float]] = []
        self.started: list[tuple[str, str]] = []
        self.gate = trio.Event()
        self.work_s = 0.6
        #: How long a handler takes to end that is cancelled.
        self.unwind_s = 0.0

    async def handle(self, who: str, step: Step, metadata: MessageMetadata) -> Outcome:
        begun = trio.current_time()
        self.started.append((who, step.name))
        try:
            if metadata.num_delivered == 1 and step.name.startswith("first"):
                await self.gate.wait()
            else:
                await trio.sleep(self.work_s)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.unwind_s)
            raise
        finally:
            assert metadata.shard is not None
            self.calls.append((who, step.name, metadata.shard, begun, trio.current_time()))
        return Outcome.ACK

    async def join(self, stack: AsyncExitStack, who: str, url: str) -> Broker:
        config = NatsConfig(url, reconnect_wait=0.05, reconnect_jitter=0.01)
        broker = await stack.enter_async_context(open_broker(config))
        await broker.declare(self.topic)
        group = broker.consumer_group()

        async def handle(step: Step, metadata: MessageMetadata) -> Outcome:
            return await self.handle(who, step, metadata)

        group.register(self.topic, handle, ack_wait=LEASE_S, handler_timeout=None)
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(partial(group.serve, drain_timeout=5))
        stack.callback(group.stop)
        return broker

    def overlaps(self) -> list[str]:
        found = []
        for index, (who, name, shard, begun, ended) in enumerate(self.calls):
            for who2, name2, shard2, begun2, ended2 in self.calls[index + 1 :]:
                if shard == shard2 and begun < ended2 and begun2 < ended:
                    found.append(f"{who}/{name} and {who2}/{name2} on shard {shard}")
        return found


def in_hand(broker: Broker) -> int:
    return sum(len(lane.held) for lane in broker.leases._lanes)


@pytest.mark.limit(120)
@pytest.mark.parametrize("guarded", [True, False], ids=["as it is", "without the wait"])
async def test_an_acknowledgement_read_too_late_opens_no_second_handler(
    server: ServerProcess,
    fresh_queue: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    guarded: bool,
) -> None:
    """A's acknowledgement waits unread until the message has been given to B.

    The counter-check takes the wait away: then B is in its handler when the acknowledgement opens
    the lane, and the next message goes to A.
    """
    if not guarded:
        monkeypatch.setattr(margins, "STALE_ACK_GRACE_S", 0.0)
    run = Run(fresh_queue(), shards=1)
    async with open_proxy(server.url) as proxy, AsyncExitStack() as stack:
        one = await run.join(stack, "A", proxy.url)
        await one.publisher().publish(run.topic, Step("first", "k"))
        await one.publisher().publish(run.topic, Step("second", "k"))
        await wait_until(lambda: run.started, SOON_S)
        await trio.sleep(margins.FORGETFUL_S * 1.1)
        proxy.freeze(down=False, new=False)
        run.gate.set()
        await wait_until(lambda: len(run.calls) == 1, SOON_S)
        two = await run.join(stack, "B", server.url)
        await wait_until(lambda: in_hand(two), SOON_S, interval=0.002)
        if not guarded:
            await wait_until(lambda: ("B", "first") in run.started, SOON_S, interval=0.002)
        await trio.sleep(0.05)
        proxy.thaw()
        await wait_until(lambda: any(c[1] == "second" for c in run.calls), SOON_S)
        await trio.sleep(run.work_s)
    if guarded:
        assert run.overlaps() == []
        assert [name for _, name in run.started] == ["first", "second"]
        assert isinstance(one.backend, NatsBackend)
        assert one.backend.guard.cuts == 1, "A has cut the connection that its settle was stuck in"
    else:
        assert ("B", "first") in run.started


@pytest.mark.limit(120)
async def test_many_shards_of_a_server_that_is_resumed(
    own_server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    """Which comes first in a resumed server, its timers or its sockets, is not ours to choose: with
    many shards both happen."""
    shards = 32
    run = Run(fresh_queue(), shards)
    async with AsyncExitStack() as stack:
        one = await run.join(stack, "A", own_server.url)
        for part in ("first", "second"):
            await one.publisher().publish_batch(
                run.topic, [Step(f"{part}-{n}", f"k{n}") for n in range(200)]
            )
        await wait_until(lambda: len(run.started) == shards, SOON_S)
        two = await run.join(stack, "B", own_server.url)
        await trio.sleep(margins.FORGETFUL_S * 1.1)
        run.work_s = 0.05
        own_server.pause()
        try:
            run.gate.set()
            await trio.sleep(TOO_LONG_S)
        finally:
            own_server.resume()
        await wait_until(
            lambda: len({name for _, name, *_ in run.calls}) == 400, 60, message="all of them"
        )
        assert two.snapshot() is not None
    assert run.overlaps() == []


@pytest.mark.limit(240)
@pytest.mark.parametrize("newcomer", [False, True], ids=["two that run", "one that starts"])
@pytest.mark.parametrize("guarded", [True, False], ids=["as it is", "without the wait"])
async def test_a_killed_server_gives_nothing_away_that_somebody_unwinds_from(
    own_server: ServerProcess,
    fresh_queue: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    guarded: bool,
    newcomer: bool,
) -> None:
    """It has forgotten its last deliveries, and the handlers that had them take a moment to end.

    The other process was there before, or starts right after the kill and has seen nothing of it.
    The counter-check takes the wait away: after one of a few kills, something of the many shards is
    given to the other process, which begins it at once.
    """
    if not guarded:
        monkeypatch.setattr(margins, "RESTART_GRACE_S", 0.0)
    shards = 16
    run = Run(fresh_queue(), shards)
    run.unwind_s, run.work_s = 0.3, 0.05
    async with AsyncExitStack() as stack:
        brokers = [await run.join(stack, "A", own_server.url)]
        if not newcomer:
            brokers.append(await run.join(stack, "B", own_server.url))
        for turn in range(8):
            await (
                brokers[0]
                .publisher()
                .publish_batch(run.topic, [Step(f"first-{turn}-{n}", f"k{n}") for n in range(200)])
            )
            await wait_until(lambda: sum(map(in_hand, brokers)) == shards, SOON_S, interval=0.002)
            await trio.to_thread.run_sync(own_server.kill)
            await trio.to_thread.run_sync(own_server.restart)
            if newcomer:
                brokers.append(await run.join(stack, f"B{turn}", own_server.url))
            await trio.sleep(1.5)
            run.gate.set()
            await wait_until(lambda: sum(map(in_hand, brokers)) == 0, 60.0)
            run.gate = trio.Event()
            if not guarded and run.overlaps():
                break
        run.gate.set()
    assert bool(run.overlaps()) is not guarded
