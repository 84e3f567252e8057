"""The inbox of one reader and the requests that name it; for the client and for the lanes.

Invariant: a pull never outlives its inbox. The inbox changes with every reconnect and ends with
`close`, so a pull that the server still remembers has nobody to deliver to and cannot swallow a
message (PC-004), and no surplus can arrive after a reconnect (PC-006). The same is done when a pull
fell silent or is taken back: the pull may live on, unseen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ._connection import Connection
from ._subscriptions import Sink
from ._wire import pub


class StartSoon(Protocol):
    """As a nursery's."""

    def __call__(self, function: Callable[[int], Awaitable[None]], sid: int, /) -> object: ...


class PullLine:
    """`on_message` hears what answers the requests, `on_late` what answers an abandoned one.

    `start_soon` starts a task that may outlast this call; the owner of the line waits for it.
    """

    __slots__ = ("_conn", "_on_late", "_on_message", "_start_soon", "inbox", "sid", "subject")

    def __init__(
        self,
        conn: Connection,
        subject: bytes,
        *,
        on_message: Sink,
        on_late: Sink,
        start_soon: StartSoon,
    ) -> None:
        self._conn = conn
        self._on_message = on_message
        self._on_late = on_late
        self._start_soon = start_soon
        self.subject = subject
        self.inbox = conn.new_inbox()
        self.sid = conn.subscribe(self.inbox, on_message)

    def send(self, body: bytes) -> bool:
        """False, and nothing sent: there is no connection."""
        return self._conn.write(pub(self.subject, self.inbox, body))

    def disconnected(self) -> None:
        """The server forgets our pulls; a new inbox makes sure of it."""
        self.inbox = self._conn.new_inbox()
        self._conn.move_subscription(self.sid, self.inbox)

    def abandon(self) -> None:
        """End whatever pulls the server still has: their inbox goes away."""
        old = self.sid
        self._conn.redirect(old, self._on_late)
        self.inbox = self._conn.new_inbox()
        self.sid = self._conn.subscribe(self.inbox, self._on_message)
        self._start_soon(self._conn.unsubscribe, old)

    async def close(self) -> None:
        """What the server had sent before still arrives, then nothing."""
        await self._conn.unsubscribe(self.sid)
