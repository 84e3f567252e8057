"""Whether a connection can be used: up, down for now, or over, and why.

Invariant: whoever waits is woken by every change that can end the wait (up, over), and looks again
at what is true then; an event says "look", never "it is up". A connection that was up for less
than a pass and is down again leaves the wait going on.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from shove_actors._errors import BrokerClosed, ConnectionError


class Availability:
    """What `Connection.run` knows of its own life. `text` makes an exception fit to be shown."""

    __slots__ = ("_change", "_ended", "_over", "_text", "_up", "closing")

    def __init__(self, text: Callable[[BaseException], str]) -> None:
        self._text = text
        self._up = False
        self._change = trio.Event()
        self._over = trio.Event()
        self._ended: Exception | None = None
        #: Asked to close. For good: a connection is not opened again after that.
        self.closing = False

    def begin(self) -> None:
        """A run begins, the first one or another one after a failure."""
        self._ended = None
        self._over = trio.Event()
        if self._change.is_set():
            self._change = trio.Event()

    def up(self) -> None:
        self._up = True
        self._change.set()

    def down(self) -> None:
        self._up = False
        self._change = trio.Event()

    def end(self, why: Exception) -> None:
        """The run is over: nobody waits any longer."""
        self._ended = why
        self._change.set()
        self._over.set()

    async def wait_up(self) -> None:
        """Return once connected; raise why not, once that is final."""
        while not self._up:
            self._check_open()
            await self._change.wait()
            self._check_open()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def wait_over(self) -> None:
        await self._over.wait()

    def _check_open(self) -> None:
        ended = self._ended
        if isinstance(ended, (BrokerClosed, ConnectionError)):
            raise type(ended)(str(ended))  # each caller gets a traceback of its own
        if ended is not None:
            raise ConnectionError(f"the connection has ended: {self._text(ended)}") from ended
        if self.closing:
            raise BrokerClosed("the connection is closed; use it inside its `async with` block")
