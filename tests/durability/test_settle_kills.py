"""A consumer killed at each step of RETRY, DEFER and REJECT.

The steps are: store the copy in the next place, wait for its acknowledgement, acknowledge the
original. Whatever the step, the message is afterwards exactly where it should be, and the next
consumer finishes what was begun: nothing is lost, and every copy exists once.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from .notes import Note
from .plan import Kill, Point
from .support import World

pytestmark = pytest.mark.server

POINTS: tuple[Point, ...] = ("before_store", "after_store", "after_ack")
ID = "order-1"


async def _kill_child_at(world: World, point: Point, target: str, **options: object) -> None:
    kill = Kill(point=point, source=world.queue, target=target)
    child = await world.start(kill=kill, **options)
    await child.killed_itself()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("does", ["retry", "defer"])
async def test_killed_while_it_hops(
    world: Callable[..., World], short_mover_lease: float, does: str, point: Point
) -> None:
    at = world()
    await at.publish(Note(ID, does))
    await _kill_child_at(at, point, at.hold)

    # The message is where the step left it, and in no more places than that.
    assert (
        await at.counts()
        == {
            "before_store": (1, 0, 0),
            "after_store": (1, 1, 0),
            "after_ack": (0, 1, 0),
        }[point]
    )
    assert at.runs(ID) == [0]
    if point != "before_store":
        (held,) = await at.stored(at.hold)
        letter = "r" if does == "retry" else "d"
        assert re.fullmatch(rf"{ID}@1\.[0-9a-f]+-{letter}1", held.msg_id)
        assert held.headers["Shove-Message-Id"] == ID
        assert held.headers["Shove-Retry-Count"] == ("1" if does == "retry" else "0")
        assert held.headers["Shove-Defer-Count"] == ("0" if does == "retry" else "1")
        assert held.headers["Shove-Original-Queue"] == at.queue
        assert at.topic.decode(held.data) == Note(ID, does)

    async with at.healthy():
        await at.quiet()

    assert await at.counts() == (0, 0, 0)
    # The original and its return; one hop copy, also where the hop was made twice.
    assert await at.ever_stored() == (2, 1, 0)
    # The first attempt ran again unless its outcome had been settled; then the second, once.
    later = 1 if does == "retry" else 0
    again = [0] if point == "after_ack" else [0, 0]
    assert at.runs(ID) == [*again, later]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", ["holds", "sequenced"])
async def test_killed_while_it_rejects(
    world: Callable[..., World], kind: str, point: Point
) -> None:
    at = world(kind)
    await at.publish(Note(ID, "reject"))
    await _kill_child_at(at, point, at.dlq)

    assert (
        await at.counts()
        == {
            "before_store": (1, 0, 0),
            "after_store": (1, 0, 1),
            "after_ack": (0, 0, 1),
        }[point]
    )
    assert at.runs(ID) == [0]

    # On a sequenced topic the key goes on, but only after the message before is settled.
    await at.publish(Note("order-2"))
    async with at.healthy():
        await at.quiet()

    assert await at.counts() == (0, 0, 1)
    assert await at.ever_stored() == (2, 0, 1)
    (dead,) = await at.stored(at.dlq)
    assert re.fullmatch(rf"{ID}@1\.[0-9a-f]+-dlq", dead.msg_id)
    assert dead.headers["Shove-Death-Reason"] == "rejected"
    assert dead.headers["Shove-Death-Count"] == "1"
    assert dead.headers["Shove-Original-Queue"] == at.queue
    assert dead.headers["Shove-Original-Sequence"] == "1"
    assert at.topic.decode(dead.data) == Note(ID, "reject")
    assert len(at.runs(ID)) == (1 if point == "after_ack" else 2)
    assert at.runs("order-2") == [0]
    if kind == "sequenced":
        last = at.events("end", id=ID)[-1]
        assert at.events(id="order-2")[0].at > last.at


@pytest.mark.parametrize("point", ["before_nak", "after_nak"])
@pytest.mark.parametrize("kind", ["sequenced", "plain"])
async def test_killed_while_it_retries_in_place(
    world: Callable[..., World], kind: str, point: Point
) -> None:
    # The delay is longer than the lease: coming back after the lease only means that the delayed
    # NAK was lost.
    at = world(kind, hold_s=3.0)
    await at.publish(Note(ID, "retry"), Note("order-2"))
    await _kill_child_at(at, point, "", retry_delay=3.0, prefetch=1)

    assert at.runs(ID) == [0]
    main, _, dead = await at.counts()
    # Only on an unsequenced topic may the next one have overtaken it by now.
    assert dead == 0
    assert main == 2 or (main == 1 and kind == "plain" and at.events("end", id="order-2"))

    async with at.healthy(retry_delay=3.0):
        await at.quiet()

    assert await at.ever_stored() == (2, 0, 0)
    # In place, the server counts: a crash costs a retry as an outcome does.
    assert at.runs(ID) == [0, 1]
    first, second = at.events(id=ID)
    assert second.delivered == 2
    if kind == "sequenced":
        assert at.runs("order-2") == [0]
        assert at.events(id="order-2")[0].at > at.events("end", id=ID)[-1].at
    if point == "after_nak":
        assert second.at - first.at >= 2.9e9
