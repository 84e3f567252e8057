"""A retry or deferral that is waiting when everything dies, or when nobody is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import trio

from shove_actors._errors import StreamNotFound
from shove_actors.embedded import ServerProcess
from shove_actors.messaging import attempts_stream
from tests.support import wait_until

from .notes import Note
from .plan import Kill
from .support import World, until

pytestmark = pytest.mark.server

#: `_hold_mover.DUE_SLACK_NS`: the server's timers are not finer.
SLACK = timedelta(milliseconds=2)


@pytest.mark.limit(90)
async def test_waiting_for_five_seconds_survives_killing_everything(
    own_world: Callable[..., World], own_server: ServerProcess
) -> None:
    """A RETRY and a DEFER of 5 s; consumers and server are killed with SIGKILL and come back.

    Both times compared are the server's: when the held copy was stored, and when its return was.
    """
    worlds = {"retry": own_world(hold_s=5.0), "defer": own_world(hold_s=5.0)}
    children = []
    for does, at in worlds.items():
        await at.publish(Note(f"{does}-1", does))
        children.append(await at.start())
    held_since = {}
    for does, at in worlds.items():

        async def hopped(at: World = at) -> bool:
            return await at.counts() == (0, 1, 0)

        await until(hopped)
        (held,) = await at.stored(at.hold)
        held_since[does] = held.time

    for child in children:
        await child.kill()
    await trio.to_thread.run_sync(own_server.kill)
    await trio.to_thread.run_sync(own_server.restart)
    for at in worlds.values():
        assert await at.counts() == (0, 1, 0)
    returned_at = {}
    for does, at in worlds.items():
        # Nobody consumes yet, so that the returned copy is there to be looked at.
        mover = await at.start(movers="only")

        async def back(at: World = at) -> bool:
            return await at.counts() == (1, 0, 0)

        await until(back)
        (copy,) = await at.stored(at.queue)
        returned_at[does] = copy.time
        await mover.kill()
        async with at.healthy():
            await at.quiet()
        assert await at.ever_stored() == (2, 1, 0)
        assert at.runs(f"{does}-1") == [0, 1 if does == "retry" else 0]

    for does in worlds:
        waited = returned_at[does] - held_since[does]
        assert waited >= timedelta(seconds=5) - SLACK, f"{does} came back after {waited}"


async def test_retry_in_place_survives_killing_everything(
    own_world: Callable[..., World], own_server: ServerProcess
) -> None:
    """The lane is waiting for five seconds when consumer and server are killed.

    How much of a delayed NAK a killed server remembers is its own affair; that the message comes
    again, with its lane still closed behind it, is ours.
    """
    at = own_world("sequenced", hold_s=5.0)
    await at.publish(Note("order-1", "retry"), Note("order-2"))
    child = await at.start()
    await wait_until(lambda: at.events("end"))

    async def noted() -> bool:
        # The attempt is written down before its NAK; killed earlier, it would count as none.
        try:
            return bool(await at.stored(attempts_stream(at.queue)))
        except StreamNotFound:
            return False

    await until(noted)
    await child.kill()
    await trio.to_thread.run_sync(own_server.kill)
    await trio.to_thread.run_sync(own_server.restart)
    assert await at.counts() == (2, 0, 0)
    async with at.healthy():
        await at.quiet()
    assert at.runs("order-1") == [0, 1]
    assert at.runs("order-2") == [0]
    assert at.events(id="order-2")[0].at > at.events("end", id="order-1")[-1].at
    assert await at.ever_stored() == (2, 0, 0)


async def test_held_messages_wait_until_a_process_runs(world: Callable[..., World]) -> None:
    at = world(hold_s=0.5)
    await at.publish(Note("order-1", "retry"))
    child = await at.start(kill=Kill(point="after_ack", source=at.queue), movers="none")
    await child.killed_itself()
    (held,) = await at.stored(at.hold)

    overdue = held.time.timestamp() + 1.5
    await wait_until(lambda: time.time() > overdue)
    assert await at.counts() == (0, 1, 0)
    assert (await at.stored(at.hold))[0] == held

    async with at.healthy():
        await at.quiet()
    assert await at.ever_stored() == (2, 1, 0)
    assert at.runs("order-1") == [0, 1]
