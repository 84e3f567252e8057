"""Whoever talks to the real world needs the real clock (PC-104)."""

from __future__ import annotations

import sys

import trio

from ._errors import UsageError


def refuse_mock_clock(what: str) -> None:
    """Raise `UsageError` if this run is under Trio's `MockClock`, alone or in a `Stepper`.

    Virtual time stands still, or jumps, while real I/O is under way: a time-out would fire at once,
    or never. A program that has not imported `trio.testing` does not pay for it here.
    """
    testing = sys.modules.get("trio.testing")
    if testing is not None and isinstance(trio.lowlevel.current_clock(), testing.MockClock):
        raise UsageError(
            f"{what} was started under a mock clock, which would skip timeouts while real I/O is "
            "under way. Use the real clock, or the memory backend"
        )
