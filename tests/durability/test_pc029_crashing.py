"""PC-029: a message that ends its process every time reaches the dead letters all the same."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from .launcher import Child
from .notes import HARD_EXIT, Note
from .support import World, until

pytestmark = pytest.mark.server

MAX_RETRIES = 3
#: The fifth restart decides; see `runtime/_attempts.py` for the one attempt under suspicion.
STARTS = 6


@pytest.mark.parametrize("kind", ["holds", "sequenced", "plain"])
@pytest.mark.limit(90)
async def test_pc029_message_that_ends_its_process_is_dead_lettered(
    world: Callable[..., World], kind: str
) -> None:
    at = world(kind)
    await at.publish(Note("bad", "exit"), *[Note(f"good{n}") for n in range(3)])

    started: list[Child] = []
    while len(started) < STARTS:
        child = await at.start(max_retries=MAX_RETRIES, prefetch=10)
        started.append(child)

        async def decided(child: Child = child) -> bool:
            return child.exit_code is not None or await at.counts() == (0, 0, 1)

        await until(decided)
        if child.exit_code is None:
            break
        assert child.exit_code == HARD_EXIT, child.log

    # One attempt, as many again as retries are allowed, one under suspicion, then the verdict.
    assert len(started) == STARTS
    assert len(at.runs("bad")) == 2 + MAX_RETRIES
    assert not at.events("end", id="bad")
    (dead,) = await at.stored(at.dlq)
    assert dead.headers["Shove-Death-Reason"] == "crashed"
    assert dead.headers["Shove-Death-Cause"] == "crash"
    assert dead.headers["Shove-Original-Sequence"] == "1"
    assert at.topic.decode(dead.data) == Note("bad", "exit")
    # Those behind it were delivered as often, and taken along as often. They are handled.
    for n in range(3):
        assert at.runs(f"good{n}") == [0]

    started[-1].signal(signal.SIGTERM)
    assert await started[-1].ended() == 0
