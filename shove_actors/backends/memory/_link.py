"""What lies between a backend (a process) and the server, and what can go wrong there.

Everything passes here in both directions, so a fault is a state of the link and not a special
case in each verb:

* *stalled*: both directions wait, in order, and go on when the stall ends. Nobody is told;
* *cut*: what was under way is lost in both directions, and both sides know;
* *dead*: the process is gone. Nothing it does has any effect, and nobody tells it anything;
  when it has *left* in good order, those who wait for the link are let go.

From server to client everything waits for the backend's own task (`drain`). So no publish is
answered, and no message arrives, inside the call that caused it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio


class Link:
    """One connection. `ring` wakes the backend's task."""

    __slots__ = ("_down", "_flowing", "_ring", "_up", "connected", "dead", "left", "stalled")

    def __init__(self, ring: Callable[[], None]) -> None:
        self.connected = False
        self.stalled = False
        self.dead = False
        self.left = False
        self._ring = ring
        self._up: deque[Callable[[], None]] = deque()
        self._down: deque[Callable[[], None]] = deque()
        self._flowing = trio.Event()

    @property
    def waiting(self) -> bool:
        """Something has arrived, or will when the stall ends."""
        return bool(self._down)

    def send(self, action: Callable[[], None]) -> bool:
        """Client to server. False: lost, the link is cut or dead."""
        if self.dead or not self.connected:
            return False
        if self.stalled:
            self._up.append(action)
        else:
            action()
        return True

    def deliver(self, action: Callable[[], None]) -> None:
        """Server to client: carried out in the backend's own task."""
        if self.connected and not self.dead:
            self._down.append(action)
            self._ring()

    def drain(self) -> None:
        while self._down and not self.stalled:
            self._down.popleft()()

    async def wait_flowing(self) -> None:
        """Until neither stalled nor cut, or the backend has left. Forever, if it has crashed."""
        while not self.left and (self.dead or self.stalled or not self.connected):
            await self._flowing.wait()

    def stall(self) -> None:
        if self.connected and not self.stalled:
            self.stalled = True
            self._stop_flowing()

    def unstall(self) -> None:
        if not self.stalled:
            return
        self.stalled = False
        self._flowing.set()
        # What an action sends in turn goes straight through: it is younger than all of these.
        for action in self._take_up():
            action()
        self._ring()

    def cut(self) -> None:
        self.connected = self.stalled = False
        self._stop_flowing()
        self._up.clear()
        self._down.clear()

    def restore(self) -> None:
        self.connected = True
        self._flowing.set()

    def kill(self) -> None:
        self.cut()
        self.dead = True
        self._ring()

    def leave(self) -> None:
        """An orderly end: whoever waits for the link is let go."""
        self.kill()
        self.left = True
        self._flowing.set()

    def _stop_flowing(self) -> None:
        # One event for the whole interruption: a stall may turn into a cut under a waiting task.
        if self._flowing.is_set():
            self._flowing = trio.Event()

    def _take_up(self) -> list[Callable[[], None]]:
        taken = list(self._up)
        self._up.clear()
        return taken
