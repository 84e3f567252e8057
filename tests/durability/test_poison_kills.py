"""FAIL_ALL with the consumer killed at every step of a message's end.

The steps are: write the key's record, store the dead letter, acknowledge. Whatever the step, no
later message of the key is handled, by whatever process, and the handler is not asked again about a
message whose end was recorded.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest

from shove_actors import NatsConfig, open_broker
from tests.support import wait_until

from .launcher import SOON_S, Child
from .notes import Note
from .plan import Kill, Point
from .support import World, until

# Waits for real leases; `pytest -m slow` (CI does).
pytestmark = [pytest.mark.server, pytest.mark.slow]

POINTS: tuple[Point, ...] = (
    "before_record",
    "after_record",
    "before_store",
    "after_store",
    "after_ack",
)


async def poisoned(at: World) -> list[tuple[str, int]]:
    async with open_broker(NatsConfig(at.url)) as broker:
        return [(found.key, found.sequence) for found in await broker.poisoned(at.topic)]


def kill_at(at: World, point: Point) -> Kill:
    return Kill(point=point, source=at.queue, target=at.dlq)


async def story(at: World) -> list[tuple[str, str]]:
    return [
        (at.topic.decode(letter.data).id, letter.headers["Shove-Death-Reason"])
        for letter in await at.stored(at.dlq)
    ]


@pytest.mark.parametrize("point", POINTS)
async def test_killed_while_it_poisons(world: Callable[..., World], point: Point) -> None:
    at = world("fail_all", shards=1)
    await at.publish(Note("bad", "reject"), Note("late-1"), Note("other", key="o"))
    child = await at.start(kill=kill_at(at, point))
    await child.killed_itself()

    recorded = point != "before_record"
    assert await poisoned(at) == ([("k", 1)] if recorded else [])
    left = 2 if point == "after_ack" else 3
    buried = 1 if point in ("after_store", "after_ack") else 0
    assert await at.counts() == (left, 0, buried)
    assert at.runs("bad") == [0]

    await at.publish(Note("late-2"))
    async with at.healthy():
        await at.quiet()

    assert await story(at) == [
        ("bad", "rejected"),
        ("late-1", "sequence_failed"),
        ("late-2", "sequence_failed"),
    ]
    assert await at.ever_stored() == (4, 0, 3), "a letter was stored twice"
    assert await poisoned(at) == [("k", 1)]
    assert at.runs("bad") == ([0] if recorded else [0, 0])
    assert at.runs("late-1") == at.runs("late-2") == []
    assert at.runs("other") == [0]
    (first, *_) = await at.stored(at.dlq)
    assert first.headers["Shove-Death-Detail"] == "told to"
    assert first.headers["Shove-Death-Cause"] == "reject"


@pytest.mark.parametrize("point", ["before_store", "after_store", "after_ack"])
async def test_killed_while_it_buries_what_follows(
    world: Callable[..., World], point: Point
) -> None:
    at = world("fail_all", shards=1)
    await at.publish(Note("bad", "reject"))
    async with at.healthy():
        await at.quiet()
    await at.publish(Note("late-1"), Note("late-2"))
    child = await at.start(kill=kill_at(at, point))
    await child.killed_itself()
    async with at.healthy():
        await at.quiet()
    assert await story(at) == [
        ("bad", "rejected"),
        ("late-1", "sequence_failed"),
        ("late-2", "sequence_failed"),
    ]
    assert await at.ever_stored() == (3, 0, 3)
    assert at.runs("late-1") == at.runs("late-2") == []


@pytest.mark.parametrize("point", POINTS)
async def test_killed_while_another_process_waits_for_the_next_message(
    world: Callable[..., World], point: Point
) -> None:
    """The survivor handled the key before, so it has known it as clean."""
    at = world("fail_all", shards=1)
    await at.publish()
    async with at.healthy():
        await at.publish(Note("first"))
        await wait_until(lambda: at.runs("first") == [0], SOON_S)
        victim = await at.start(kill=kill_at(at, point))
        # Whoever gets them; the victim dies of the first that ends in its hands.
        number = 0
        while victim.exit_code is None:
            number += 1
            assert number < 50, "the victim was never given one"
            await at.publish(Note(f"bad-{number}", "reject", key=f"k{number}"))
            await at.publish(Note(f"late-{number}", key=f"k{number}"))
            await until(partial(_settled, at, 2 * number, victim), SOON_S)
        await victim.killed_itself()
        await at.quiet()
    assert [event.id for event in at.events() if event.id.startswith("late")] == []
    letters = await story(at)
    assert len(letters) == 2 * number
    assert sorted(await poisoned(at)) == sorted((f"k{n}", 2 * n) for n in range(1, number + 1))


async def _settled(at: World, letters: int, victim: Child) -> bool:
    return (await at.counts())[2] == letters or victim.exit_code is not None


@pytest.mark.limit(120)
async def test_no_history_lets_a_later_message_through(world: Callable[..., World]) -> None:
    """Two processes, many keys, one process killed in the middle: per key, what was handled is
    what came before its first failure, and the rest is among the dead letters, in order.
    """
    keys, each, shards = 16, 10, 4
    at = world("fail_all", shards=shards)
    choose = random.Random(7)
    fails = {f"key-{n}": choose.randrange(each) for n in range(0, keys, 2)}
    notes = [
        Note(f"key-{n}/{i}", "reject" if fails.get(f"key-{n}") == i else "work", key=f"key-{n}")
        for i in range(each)
        for n in range(keys)
    ]
    await at.publish(*notes)
    victim = await at.start(work_s=0.02, ack_wait=1.5)
    await at.start(work_s=0.02, ack_wait=1.5)
    await wait_until(lambda: len(at.events("end")) >= 30, SOON_S, interval=0.005)
    await victim.kill()
    dead_at = time.monotonic_ns()
    assert any(event.at > dead_at for event in at.events("end")) or await at.counts() != (0, 0, 0)
    await at.quiet(60.0)

    handled: dict[str, list[int]] = defaultdict(list)
    for event in at.events():
        number = int(event.id.partition("/")[2])
        if number not in handled[event.key]:
            handled[event.key].append(number)
    letters: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name, reason in await story(at):
        key, _, text = name.partition("/")
        letters[key].append((int(text), reason))
    for n in range(keys):
        key = f"key-{n}"
        end = fails.get(key, each - 1)
        assert handled[key] == list(range(end + 1)), key
        rest = [(i, "sequence_failed") for i in range(end + 1, each)]
        assert letters[key] == ([(end, "rejected"), *rest] if key in fails else []), key
