"""`release(replay=True)` with the consumer, or the server, killed at every step of it.

Per letter: handle, delete from the dead-letter queue. At the end: remove the key's record,
acknowledge the control message. Whatever the step, the letters are handled in their order, before
anything newer of the key, and none that was deleted is handled again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from shove_actors import NatsConfig, open_broker
from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .launcher import SOON_S
from .notes import Note
from .plan import Kill, Point
from .support import World
from .test_poison_kills import poisoned, story

# Waits for real leases; `pytest -m slow` (CI does).
pytestmark = [pytest.mark.server, pytest.mark.slow]

LETTERS = ("1", "2", "3")


async def prepare(at: World, *does: str) -> None:
    """Three dead letters of a key, a request to replay them, and a newer message behind it."""
    await at.publish(*(Note(name, how) for name, how in zip(LETTERS, does, strict=True)))
    async with at.healthy():
        await at.quiet()
    assert len(await at.stored(at.dlq)) == 3
    await release(at)
    await at.publish(Note("4"), Note("other", key="o"))


async def release(at: World) -> None:
    async with open_broker(NatsConfig(at.url)) as broker:
        assert await broker.release(at.topic, "k", replay=True)


def replayed(at: World) -> list[str]:
    """Handler calls since the preparation, which called it for the first letter only."""
    return [event.id for event in at.events() if event.id != "other"][1:]


STEPS: list[tuple[Point, int, int]] = [
    # Point, at which deletion, letters handled by then
    ("before_delete", 1, 1),
    ("after_delete", 1, 1),
    ("before_delete", 2, 2),
    ("after_delete", 2, 2),
    ("after_delete", 3, 3),
    ("before_removal", 0, 3),
    ("after_removal", 0, 3),
    ("after_store", 0, 3),
    ("after_ack", 0, 3),
]


@pytest.mark.parametrize(("point", "number", "handled"), STEPS)
async def test_killed_while_it_replays(
    world: Callable[..., World], point: Point, number: int, handled: int
) -> None:
    at = world("fail_all", shards=1)
    await prepare(at, "mend", "mend", "mend")
    child = await at.start(kill=Kill(point=point, source=at.queue, number=number))
    await child.killed_itself()

    assert replayed(at) == list(LETTERS[:handled])
    deleted = handled - (point == "before_delete")
    assert [name for name, _ in await story(at)] == list(LETTERS[deleted:])
    assert await poisoned(at) == (
        [] if point in ("after_removal", "after_store", "after_ack") else [("k", 1)]
    )
    async with at.healthy():
        await at.quiet()

    again = [LETTERS[handled - 1]] if point == "before_delete" else []
    assert replayed(at) == [*LETTERS[:handled], *again, *LETTERS[handled:], "4"]
    assert await at.counts() == (0, 0, 0)
    assert await poisoned(at) == []
    assert at.runs("other") == [0]


async def test_killed_in_a_letters_handler(world: Callable[..., World]) -> None:
    at = world("fail_all", shards=1)
    await prepare(at, "mend", "mend-gate", "mend")
    child = await at.start()
    await wait_until(lambda: replayed(at) == ["1", "2"], SOON_S)
    await child.kill()
    assert [name for name, _ in await story(at)] == ["2", "3"]
    at.open_gate()
    async with at.healthy():
        await at.quiet()
    assert replayed(at) == ["1", "2", "2", "3", "4"]
    assert await at.counts() == (0, 0, 0)
    assert await poisoned(at) == []


@pytest.mark.parametrize("point", ["before_record", "after_record"])
async def test_killed_when_a_letter_fails_again(world: Callable[..., World], point: Point) -> None:
    at = world("fail_all", shards=1)
    await prepare(at, "mend", "reject", "mend")
    child = await at.start(kill=Kill(point=point, source=at.queue))
    await child.killed_itself()
    assert replayed(at) == ["1", "2"]
    assert await poisoned(at) == [("k", 1 if point == "before_record" else 2)]
    async with at.healthy():
        await at.quiet()
    # The record names the request that it ended, which comes again and finds it done.
    assert replayed(at) == (["1", "2", "2"] if point == "before_record" else ["1", "2"])
    assert await poisoned(at) == [("k", 2)]
    assert await story(at) == [
        ("2", "sequence_failed"),
        ("3", "sequence_failed"),
        ("4", "sequence_failed"),
    ]


@pytest.mark.parametrize("young", [False, True])
async def test_server_killed_while_a_letter_is_handled(
    own_world: Callable[..., World], own_server: ServerProcess, young: bool
) -> None:
    """Old deliveries keep their lease over it; young ones are given up and come again."""
    at = own_world("fail_all", shards=1)
    await prepare(at, "mend", "mend-gate", "mend")
    async with at.healthy(ack_wait=5.0):
        await wait_until(lambda: replayed(at) == ["1", "2"], SOON_S)
        if not young:
            await wait_until(lambda: _age(at) > 1.5, SOON_S)
        own_server.kill()
        own_server.restart()
        at.open_gate()
        await at.quiet(40.0)
    order = [name for name in dict.fromkeys(replayed(at)) if name]
    assert order == ["1", "2", "3", "4"]
    assert replayed(at).count("3") == replayed(at).count("4") == 1
    assert await poisoned(at) == []


def _age(at: World) -> float:
    return (time.monotonic_ns() - at.events(id="2")[-1].at) / 1e9
