"""Waiting for a condition on a real server or a real process.

Only for things that tell nobody when they change; everything else has an event to wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio


async def wait_until(
    predicate: Callable[[], object],
    timeout: float = 10.0,
    interval: float = 0.01,
    message: str = "",
) -> None:
    """Returns once `predicate()` is true; fails the test after `timeout` seconds.

    The predicate is called in the Trio thread and must not block. Real clock only: under a mock
    clock the time-out would pass before anything real has happened.
    """
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(predicate, timeout, message))
        await trio.sleep(interval)


def wait_until_sync(
    predicate: Callable[[], object],
    timeout: float = 10.0,
    interval: float = 0.01,
    message: str = "",
) -> None:
    """`wait_until` for code outside Trio."""
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(predicate, timeout, message))
        time.sleep(interval)


def _too_late(predicate: Callable[[], object], timeout: float, message: str) -> str:
    what = message or getattr(predicate, "__qualname__", repr(predicate))
    return f"still not true after {timeout:g} s: {what}"
