"""A bounded mailbox that belongs to the slot, so it outlives incarnations.

The slot keeps one send end and one receive clone for its whole life. Each incarnation receives on
a fresh clone of its own, closed when it ends; because the slot still holds a clone, what is
buffered stays, and senders that wait for room simply keep waiting. (Closing the *last* receive
clone would throw the buffer away and break every sender.) Ending the slot closes both ends, which
turns every later send into `ActorGone`.

Trio's channels are atomic: a cancelled `send` has not sent. Check 30 holds that.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from ._envelope import Envelope
from ._spec import MailboxSpec


@dataclass(frozen=True, kw_only=True)
class MailboxStatistics:
    """What a mailbox looks like at one moment."""

    depth: int
    """Messages waiting."""
    capacity: int
    waiting_senders: int
    """Tasks waiting in `tell` for room."""
    closed: bool
    """Whether new messages are refused."""


class Mailbox:
    """The channel of one slot."""

    __slots__ = ("_receive", "_send", "closed", "send", "send_nowait", "spec")

    def __init__(self, spec: MailboxSpec) -> None:
        self.spec = spec
        self._send, self._receive = trio.open_memory_channel[object](spec.capacity)
        # Bound once: `tell_nowait` is on hot paths.
        self.send_nowait = self._send.send_nowait
        self.send = self._send.send
        self.closed = False

    def receiver(self) -> trio.MemoryReceiveChannel[object]:
        """A fresh receiving end for one incarnation, which must close it."""
        return self._receive.clone()

    def close_send(self) -> None:
        """Accept nothing more. Buffered messages can still be received. Idempotent."""
        self.closed = True
        self._send.close()

    def clear(self, path: str, cause: BaseException | None) -> int:
        """Drop exactly what is buffered now; asks end with `ActorGone`. Returns the count.

        A sender that waits for room is not dropped: it gets its room, for the next incarnation.
        Hence the count is taken first; receiving "until empty" would pull those in and drop them.
        """
        count = self._receive.statistics().current_buffer_used
        for _ in range(count):
            item = self._receive.receive_nowait()
            if type(item) is Envelope:
                item.port.close(path, cause)
        return count

    def terminate(self, path: str, cause: BaseException | None) -> int:
        """Close for good, once; returns how many messages nobody will handle."""
        self.close_send()
        count = self.clear(path, cause)
        self._receive.close()
        return count

    def statistics(self) -> MailboxStatistics:
        """A snapshot of depth, capacity and waiting senders."""
        statistics = self._send.statistics()
        return MailboxStatistics(
            depth=statistics.current_buffer_used,
            capacity=self.spec.capacity,
            waiting_senders=statistics.tasks_waiting_send,
            closed=self.closed,
        )
