"""A hold mover killed at each step of bringing a message back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from .notes import Note
from .plan import Kill, Point
from .support import World

pytestmark = pytest.mark.server

ID = "order-1"


@pytest.mark.parametrize("point", ["before_store", "after_store", "after_ack"])
async def test_mover_killed_while_it_returns_a_message(
    world: Callable[..., World], short_mover_lease: float, point: Point
) -> None:
    at = world()
    await at.publish(Note(ID, "retry"))
    hop = await at.start(kill=Kill(point="after_ack", source=at.queue), movers="none")
    await hop.killed_itself()
    assert await at.counts() == (0, 1, 0)

    mover = await at.start(
        kill=Kill(point=point, source=at.hold, target=at.queue),
        movers="only",
        mover_lease_s=short_mover_lease,
    )
    await mover.killed_itself()
    assert (
        await at.counts()
        == {
            "before_store": (0, 1, 0),
            "after_store": (1, 1, 0),
            "after_ack": (1, 0, 0),
        }[point]
    )
    if point != "before_store":
        (back,) = await at.stored(at.queue)
        assert re.fullmatch(rf"{ID}@1\.[0-9a-f]+-m", back.msg_id)
        assert back.headers["Shove-Message-Id"] == ID
        assert back.headers["Shove-Retry-Count"] == "1"

    async with at.healthy():
        await at.quiet()

    assert await at.counts() == (0, 0, 0)
    assert await at.ever_stored() == (2, 1, 0)
    assert at.runs(ID) == [0, 1]


@pytest.mark.parametrize("point", ["before_nak", "after_nak"])
async def test_mover_killed_while_it_lets_a_message_wait(
    world: Callable[..., World], short_mover_lease: float, point: Point
) -> None:
    """A message that is not due yet is in a mover's hands for an instant only, but it is there."""
    at = world(hold_s=2.5)
    await at.publish(Note(ID, "defer"))
    hop = await at.start(kill=Kill(point="after_ack", source=at.queue), movers="none")
    await hop.killed_itself()
    mover = await at.start(
        kill=Kill(point=point, source=at.hold), movers="only", mover_lease_s=short_mover_lease
    )
    await mover.killed_itself()
    assert await at.counts() == (0, 1, 0)
    (held,) = await at.stored(at.hold)

    async with at.healthy():
        await at.quiet()

    assert await at.ever_stored() == (2, 1, 0)
    assert at.runs(ID) == [0, 0]
    # Not before its time, although it was delivered again before that.
    last = at.events(id=ID)[-1]
    age_ns = time.monotonic_ns() - last.at
    handled_at = time.time() - age_ns / 1e9
    assert handled_at - held.time.timestamp() >= 2.45


async def test_killed_mover_delays_a_message_by_its_own_short_lease(
    world: Callable[..., World],
) -> None:
    """With the package's own lease: the message is due in 0.5 s, and not half a minute later."""
    at = world(hold_s=0.5)
    await at.publish(Note(ID, "retry"))
    hop = await at.start(kill=Kill(point="after_ack", source=at.queue), movers="none")
    await hop.killed_itself()
    mover = await at.start(
        kill=Kill(point="before_store", source=at.hold, target=at.queue), movers="only"
    )
    await mover.killed_itself()
    assert await at.counts() == (0, 1, 0)

    async with at.healthy():
        await at.quiet(15.0)
    assert await at.ever_stored() == (2, 1, 0)
    assert at.runs(ID) == [0, 1]
