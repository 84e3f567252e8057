"""What lies between a backend (a process) and the server, and what can go wrong there.

Everything passes here in both directions, so a fault is a state of the link and not a special
case in each verb:

* *stalled*, one way or both: what goes that way waits, in order, and goes on when the stall ends.
  Nobody is told;
* *slow*: everything takes a while, in order;
* *cut*: what was under way is lost in both directions, and both sides know;
* *dead*: the process is gone. Nothing it does has any effect, and nobody tells it anything;
  when it has *left* in good order, those who wait for the link are let go.

From server to client everything waits for `drain`: by the backend's own task, or by whoever does
the server's work. So no publish is answered, and no message arrives, inside the call that caused
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import trio

#: `up` is from the process to the server.
Direction = Literal["up", "down", "both"]

Action = Callable[[], None]


class Clock(Protocol):
    """What a link needs of the server: the time, and to be called at one."""

    def now(self) -> float: ...

    def call_at(self, moment: float, action: Action) -> None: ...


class Link:
    """One connection. `ring` wakes the backend's task. Without a clock it cannot be slow."""

    __slots__ = (
        "_clock",
        "_down",
        "_flowing",
        "_ring",
        "_up",
        "asked",
        "clear",
        "connected",
        "connection",
        "dead",
        "delay_s",
        "left",
        "stalled_down",
        "stalled_up",
    )

    def __init__(self, ring: Action, clock: Clock | None = None) -> None:
        self.connected = False
        #: Changes with every cut, and with every new connection.
        self.connection = 0
        self.stalled_up = False
        self.stalled_down = False
        self.dead = False
        self.left = False
        self.delay_s = 0.0
        #: What is sent takes effect at once.
        self.clear = False
        self._ring = ring
        self._clock = clock
        # When each of them is there, and what happens then.
        self._up: deque[tuple[float, Action]] = deque()
        self._down: deque[tuple[float, Action]] = deque()
        self._flowing = trio.Event()
        #: To be set when the link is cut: whoever waits for an answer gets none any more.
        self.asked: set[trio.Event] = set()

    @property
    def stalled(self) -> bool:
        return self.stalled_up or self.stalled_down

    @property
    def flowing(self) -> bool:
        """Nobody has to wait for it."""
        return self.left or not (self.dead or self.stalled or not self.connected)

    @property
    def waiting(self) -> bool:
        """Something has arrived, or will when the stall ends."""
        return bool(self._down)

    def send(self, action: Action) -> bool:
        """Client to server. False: lost, the link is cut or dead."""
        if self.clear:
            action()
            return True
        if self.dead or not self.connected:
            return False
        self._up.append((self._arrival(self._up, self._arrived_up), action))
        return True

    def deliver(self, action: Action) -> None:
        """Server to client: carried out in the backend's own task."""
        if self.connected and not self.dead:
            down = self._down
            if self.delay_s or (down and down[-1][0]):
                down.append((self._arrival(down, self._ring), action))
            else:
                down.append((0.0, action))
            self._ring()

    def drain(self) -> None:
        down = self._down
        while down and not self.stalled_down:
            moment = down[0][0]
            if moment and self._clock is not None and moment > self._clock.now():
                return
            down.popleft()[1]()

    def slow(self, delay_s: float) -> None:
        """Everything takes this long, each way; 0 is the normal state. Order is kept."""
        self.delay_s = delay_s
        self._update()

    async def wait_flowing(self) -> None:
        """Until neither stalled nor cut, or the backend has left. Forever, if it has crashed."""
        while not self.flowing:
            await self._flowing.wait()

    def stall(self, direction: Direction = "both") -> None:
        if self.connected:
            self.stalled_up |= direction != "down"
            self.stalled_down |= direction != "up"
            self._stop_flowing()
            self._update()

    def unstall(self) -> None:
        if not self.stalled:
            return
        self.stalled_up = self.stalled_down = False
        self._flowing.set()
        self._arrived_up()
        self._ring()

    def cut(self) -> None:
        self.connected = self.stalled_up = self.stalled_down = False
        self.connection += 1
        self._stop_flowing()
        self._up.clear()
        self._down.clear()
        for asked in self.asked:
            asked.set()
        self._update()

    def restore(self) -> None:
        self.connected = True
        self.connection += 1
        self._flowing.set()
        self._update()

    def kill(self) -> None:
        self.cut()
        self.dead = True
        self._ring()

    def leave(self) -> None:
        """An orderly end: whoever waits for the link is let go."""
        self.kill()
        self.left = True
        self._flowing.set()

    def _update(self) -> None:
        self.clear = (
            self.connected
            and not (self.dead or self.stalled_up or self._up)
            and self.delay_s == 0.0
        )

    def _stop_flowing(self) -> None:
        # One event for the whole interruption: a stall may turn into a cut under a waiting task.
        if self._flowing.is_set():
            self._flowing = trio.Event()

    def _arrival(self, queue: deque[tuple[float, Action]], wake: Action) -> float:
        """When what is sent now will be there: never before what was sent earlier."""
        if self._clock is None:
            return 0.0
        moment = self._clock.now() + self.delay_s
        if queue:
            moment = max(moment, queue[-1][0])
        if self.delay_s:
            self._clock.call_at(moment, wake)
        return moment

    def _arrived_up(self) -> None:
        """Everything that has got to the server by now."""
        up = self._up
        while up and not self.stalled_up and self.connected and not self.dead:
            moment = up[0][0]
            if self._clock is not None and moment > self._clock.now():
                break
            # What an action sends in turn goes behind: it is younger than all of these.
            up.popleft()[1]()
        self._update()
