"""Whoever talks to the real world needs Trio, with the real clock (PC-104)."""

from __future__ import annotations

import sys

import sniffio
import trio

from ._errors import UsageError


def under_mock_clock() -> bool:
    """Whether this run's time is virtual."""
    testing = sys.modules.get("trio.testing")
    return testing is not None and isinstance(trio.lowlevel.current_clock(), testing.MockClock)


def refuse_mock_clock(what: str) -> None:
    """Raise `UsageError` if this run is under Trio's `MockClock`, alone or in a `Stepper`.

    Virtual time stands still, or jumps, while real I/O is under way: a time-out would fire at once,
    or never. A program that has not imported `trio.testing` does not pay for it here.
    """
    if under_mock_clock():
        raise UsageError(
            f"{what} was started under a mock clock, which would skip timeouts while real I/O is "
            "under way. Use the real clock, or the memory backend"
        )


def require_trio(what: str) -> None:
    """Raise `UsageError` where no Trio code runs, as below `asyncio.run`.

    Without it the first wait would fail there, with "Task got bad yield" or the like. Whether a
    Trio task runs is not the question: where trio-asyncio is imported, `asyncio.run` starts one.
    """
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        library = "nothing"
    if library != "trio":
        raise UsageError(
            f"{what} runs in Trio, and this is {library}: start the program with trio.run(main), "
            "not with asyncio.run(main); from trio-asyncio's asyncio code, go through "
            "trio_asyncio.trio_as_aio"
        )
