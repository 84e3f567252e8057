"""What an iterator or a consume loop reads from: pull, push and ordered readings are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from ._message import Message
from ._options import check_callback

#: Hears of what went wrong: notices, after which reading goes on, and what ends it.
OnError = Callable[[Exception], object]
#: How many notices are kept for those who look.
NOTICES_KEPT = 100


def check_on_error(on_error: OnError | None) -> OnError | None:
    """Raises `InvalidOption` for what is no plain function."""
    return None if on_error is None else check_callback("on_error", on_error)


class Source(Protocol):
    """One reading. `ready`, `start`, `open`; in the end `close`, within the nursery."""

    name: str

    async def ready(self) -> None:
        """Wait for the connection; raises what makes waiting useless."""
        ...

    def start(self, nursery: trio.Nursery, /) -> None: ...
    def open(self) -> None: ...
    async def receive(self) -> Message:
        """The next message, not yet `done`."""
        ...

    def receive_nowait(self) -> Message: ...
    def done(self, message: Message, /) -> None:
        """It was taken, or its handler has returned."""
        ...

    def stop(self) -> None: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...
    @property
    def recent(self) -> tuple[Exception, ...]: ...
    @property
    def buffered(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def pulls(self) -> int: ...
