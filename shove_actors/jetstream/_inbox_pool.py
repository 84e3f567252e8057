"""Inboxes that outlive a fetch, so that the next one costs no SUB and no UNSUB.

Only an inbox that the server has no request for any more is given back: the batch was filled, or a
status has ended it. Any other ends with its subscription, and so does what the server would still
have sent there.

Each use has a subject of its own below the subscription's wildcard. Statuses come on that subject,
so a late one cannot be taken for an answer to the next request; deliveries come on the stream's
subject, and are welcome whenever they come.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ._subscriptions import Sink
from ._wire import pub

if TYPE_CHECKING:
    from ._traffic import Traffic

#: As many wait for their next use; a few fetches at a time are common, hundreds are not.
KEPT = 8


class InboxPool:
    """Of one connection."""

    __slots__ = ("_count", "_idle", "_traffic")

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._count = itertools.count(1)
        self._idle: list[tuple[bytes, int]] = []

    def __len__(self) -> int:
        """How many subscriptions wait for their next use."""
        return len(self._idle)

    def take(self, sink: Sink) -> tuple[bytes, bytes, int]:
        """The subject to name in the request, the inbox it belongs to, and its subscription."""
        if self._idle:
            inbox, sid = self._idle.pop()
            self._traffic.redirect(sid, sink)
        else:
            inbox = self._traffic.new_inbox()
            sid = self._traffic.subscribe(inbox + b".*", sink)
        return inbox + b".%x" % next(self._count), inbox, sid

    def give_back(self, inbox: bytes, sid: int) -> None:
        """Nothing is under way for it."""
        if len(self._idle) < KEPT:
            self._traffic.redirect(sid, self._refuse)
            self._idle.append((inbox, sid))
        else:
            self._traffic.forget_subscription(sid)

    def _refuse(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        """More than was asked for: somebody else may want it."""
        if reply.startswith(b"$JS.ACK."):
            self._traffic.write(pub(reply, b"", b"-NAK"))
