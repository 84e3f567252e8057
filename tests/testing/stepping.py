"""Steps that the tests of the stepper share."""

from __future__ import annotations

import sys

import trio
import trio.testing

if sys.version_info < (3, 11):
    pass


async def double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return number * 2


async def fail(text: str = "boom") -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError(text)


async def fail_after(seconds: float) -> None:
    await trio.sleep(seconds)
    raise ValueError("late")


async def stubborn() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


def in_trio_run() -> bool:
    try:
        trio.lowlevel.current_clock()
    except RuntimeError:
        return False
    return True
