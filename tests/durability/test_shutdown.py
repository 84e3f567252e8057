"""How a consumer process ends: by a signal, or because its consumers cannot go on.

`ack_wait` is 30 s here: whatever is handled again soon was handed back, not waited out.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial

import pytest

from shove_actors import ExitCode, NatsConfig, jetstream, open_broker
from shove_actors._errors import ConsumerCreateFailed
from shove_actors.jetstream import ConsumerConfig
from tests.support import wait_until

from .launcher import SOON_S, Child
from .notes import Note
from .support import World, until

pytestmark = pytest.mark.server

LONG_LEASE_S = 30.0
BEHIND = 4


async def _busy_child(at: World, *, drain_timeout: float) -> Child:
    """A process in the middle of a long handler, with more messages in its hands."""
    await at.publish(Note("long", "gate"), *(Note(f"next-{n}") for n in range(BEHIND)))
    child = await at.start(ack_wait=LONG_LEASE_S, prefetch=1 + BEHIND, drain_timeout=drain_timeout)
    await wait_until(lambda: at.runs("long") == [0], SOON_S, message="the handler runs")

    async def all_in_hand() -> bool:
        return await at.in_hand(at.queue, at.topic.topology.durable) == 1 + BEHIND

    await until(all_in_hand)
    return child


def _next_ones_done(at: World) -> bool:
    return len(at.events("end")) == BEHIND


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_pc024_signal_hands_back_what_waits_and_lets_the_handler_finish(
    world: Callable[..., World], number: signal.Signals
) -> None:
    at = world()
    child = await _busy_child(at, drain_timeout=60.0)
    async with at.healthy(ack_wait=LONG_LEASE_S):
        before = time.monotonic()
        child.signal(number)
        # The other process has all of them while the first one still works.
        await wait_until(lambda: _next_ones_done(at), SOON_S)
        assert time.monotonic() - before < LONG_LEASE_S / 2
        assert child.exit_code is None
        at.open_gate()
        assert await child.ended() == ExitCode.CLEAN, child.log
        await at.quiet()
    assert await at.ever_stored() == (1 + BEHIND, 0, 0)
    assert at.runs("long") == [0]
    for n in range(BEHIND):
        (run,) = at.events(id=f"next-{n}")
        assert run.retries == 0
        assert run.who != child.plan.name


async def test_pc024_drain_timeout_gives_the_interrupted_message_back(
    world: Callable[..., World],
) -> None:
    at = world()
    child = await _busy_child(at, drain_timeout=0.5)
    before = time.monotonic()
    child.signal(signal.SIGTERM)
    assert await child.ended() == ExitCode.DRAIN_TIMEOUT, child.log
    assert [event.id for event in at.events("interrupted")] == ["long"]
    at.open_gate()
    async with at.healthy(ack_wait=LONG_LEASE_S):
        await at.quiet()
    assert time.monotonic() - before < LONG_LEASE_S / 2
    # Not an attempt: it starts over with the same count, and nothing went through a hold queue.
    assert at.runs("long") == [0, 0]
    assert await at.ever_stored() == (1 + BEHIND, 0, 0)
    assert all(at.runs(f"next-{n}") == [0] for n in range(BEHIND))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_pc024_second_signal_stops_at_once(
    world: Callable[..., World], number: signal.Signals
) -> None:
    at = world()
    child = await _busy_child(at, drain_timeout=3600.0)
    child.signal(number)
    # A second signal before the first was taken would be one signal to the kernel.
    await wait_until(lambda: "draining" in child.log, SOON_S)
    assert child.exit_code is None
    child.signal(number)
    assert await child.ended() == ExitCode.DRAIN_TIMEOUT, child.log
    assert [event.id for event in at.events("interrupted")] == ["long"]
    at.open_gate()
    before = time.monotonic()
    async with at.healthy(ack_wait=LONG_LEASE_S):
        await at.quiet()
    assert time.monotonic() - before < LONG_LEASE_S / 2
    assert at.runs("long") == [0, 0]


async def test_pc024_idle_process_leaves_at_once(world: Callable[..., World]) -> None:
    at = world()
    await at.publish(Note("only"))
    child = await at.start(ack_wait=LONG_LEASE_S, drain_timeout=3600.0)
    await at.quiet()
    child.signal(signal.SIGTERM)
    assert await child.ended() == ExitCode.CLEAN, child.log
    assert child.reasons == ""
    assert at.runs("only") == [0]


async def test_pc118_consumers_that_cannot_go_on_end_the_process(
    world: Callable[..., World],
) -> None:
    """The durable is replaced by a push consumer: every restart meets the same refusal."""
    at = world()
    await at.publish(Note("only"))
    durable = at.topic.topology.durable
    child = await at.start(quick_restarts=True)
    await at.quiet()
    push = ConsumerConfig(
        name=durable, durable_name=durable, deliver_subject=f"{durable}.elsewhere"
    )
    async with jetstream.connect(at.url) as js:
        config = (await js.stream_info(at.queue)).config

        async def replaced() -> bool:
            # Deleting the durable alone is no use: the process has a new one in no time. For its
            # stream it waits, with pauses; if it is first all the same, once more.
            await js.delete_stream(at.queue)
            await js.create_stream(config)
            try:
                await js.put_consumer(at.queue, push)
            except ConsumerCreateFailed:
                return False
            return True

        await until(replaced)
    assert await child.ended() == ExitCode.ERROR, child.log
    assert "push consumer" in child.reasons
    # Which child it was, for whoever has to repair it.
    assert f"{at.queue}-0" in child.reasons


@pytest.mark.limit(120)
async def test_pc022_last_acknowledgement_is_processed_before_the_process_ends(
    world: Callable[..., World],
) -> None:
    """Handle one message, stop at once, start again: fifty times, never handled again.

    Every other time the stop comes while the handler runs, so that the acknowledgement is written
    after everything else has been closed.
    """
    at = world()
    await at.publish()
    for n in range(50):
        note = Note(f"order-{n}", "gate" if n % 2 else "ack")
        async with at.healthy(ack_wait=LONG_LEASE_S) as group:
            async with open_broker(NatsConfig(at.url)) as broker:
                await broker.publisher().publish(at.topic, note, message_id=note.id)
            seen = "start" if n % 2 else "end"
            await wait_until(partial(at.events, seen, id=note.id), interval=0.001)
            group.stop()
            # The gate is looked at every 10 ms; the lanes close at the next step of the loop.
            at.open_gate()
        at.close_gate()
        # No second look: whatever the server does not know by now, it never hears.
        assert await at.counts() == (0, 0, 0), f"after stop {n}"
    assert all(at.runs(f"order-{n}") == [0] for n in range(50))
    assert await at.ever_stored() == (50, 0, 0)
