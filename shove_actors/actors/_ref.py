"""The address of an actor: valid over restarts, until its slot ends for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, overload

import trio

from shove_actors._errors import ActorGone, MailboxFull, UsageError

from ._envelope import Envelope, ReplyPort, Request
from ._spec import Kind

if TYPE_CHECKING:
    from ._exit import Exit
    from ._mailbox import MailboxStatistics
    from ._slot import Slot

M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")


class ActorRef(Generic[M_contra]):
    """Send messages to one slot. Got from `system.ref(path)`, `start_child` or `ctx.self_ref`.

    A ref never goes stale by a restart: the mailbox belongs to the slot. Messages of one sender
    arrive in the order sent. What a crash interrupts is not handled again (`MessageLost`).
    """

    __slots__ = ("__weakref__", "_send", "_send_nowait", "_slot")

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._send = slot.mailbox.send
        self._send_nowait = slot.mailbox.send_nowait

    def __repr__(self) -> str:
        return f"<ActorRef {self._slot.path!r}{' ended' if self.ended else ''}>"

    @property
    def id(self) -> str:
        """The child's id under its supervisor."""
        return self._slot.spec.id

    @property
    def path(self) -> str:
        """The ids from the root to this slot, joined by '/'."""
        return self._slot.path

    @property
    def ended(self) -> bool:
        """Whether the slot has ended for good."""
        return self._slot.ended.is_set()

    def tell_nowait(self, message: M_contra) -> None:
        """Put a message in the mailbox without waiting.

        Raises `MailboxFull` (the actor is slower than its senders: use `tell` to wait for room)
        and `ActorGone` (the slot has ended, or is draining before its end).
        """
        try:
            self._send_nowait(message)
        except trio.WouldBlock:
            raise MailboxFull(
                f"the mailbox of actor {self.path!r} holds its {self._slot.mailbox.spec.capacity} "
                "messages. Use `tell` to wait for room, or raise MailboxSpec.capacity."
            ) from None
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise self._gone() from self._slot.last_error

    async def tell(self, message: M_contra) -> None:
        """Put a message in the mailbox, waiting for room. Always a checkpoint.

        A cancelled `tell` has not sent. Raises `ActorGone` as `tell_nowait` does, also while
        waiting; a restart of the actor meanwhile goes unnoticed.
        """
        try:
            await self._send(message)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise self._gone() from self._slot.last_error

    @overload
    async def ask(self, message: Request[R], *, timeout: float | None = None) -> R: ...

    @overload
    async def ask(self, message: M_contra, *, timeout: float | None = None) -> object: ...

    async def ask(self, message: object, *, timeout: float | None = None) -> object:
        """Send a message and wait for its answer.

        `timeout` (seconds, None: no limit) covers waiting for room *and* for the answer, and ends
        in `trio.TooSlowError`. Cancelled or timed out, the asker leaves at once; the message may
        still be handled, and the actor is not harmed by answering nobody.

        Raises `ActorGone` at the instant the actor ends with the question in hand or waiting (the
        cause attached, if it crashed), whatever the actor answered with `port.fail`, and
        `UsageError` if an actor asks itself from the task that would have to answer.

        Ask down the tree only; results come up by `tell`. A cycle of asks waits for ever.
        """
        self._refuse_self_ask()
        if timeout is None:
            return await self._ask(message)
        if not timeout >= 0:
            raise UsageError(f"ask timeout is {timeout}: use 0 or more seconds, or None.")
        with trio.fail_after(timeout):
            return await self._ask(message)

    async def watch(self) -> Exit | None:
        """Wait until the slot has ended for good; at once if it has already.

        A restart does not count. Returns the last incarnation's exit (None: it never started).
        Single incarnations are on the event stream (`Exited`).
        """
        await self._slot.ended.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._slot.last_exit

    def statistics(self) -> MailboxStatistics:
        """Depth, capacity and waiting senders of the mailbox."""
        return self._slot.mailbox.statistics()

    async def _ask(self, message: object) -> object:
        port = ReplyPort()
        envelope = Envelope(message, port)
        try:
            # The wait below is the checkpoint; a second scheduler pass just for sending would
            # double the cost of an ask.
            try:
                self._send_nowait(envelope)
            except trio.WouldBlock:
                await self._send(envelope)
            return await port.wait()
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            if port.open:
                raise self._gone() from self._slot.last_error
            raise
        finally:
            port.abandon()

    def _refuse_self_ask(self) -> None:
        incarnation = self._slot.incarnation
        if incarnation is not None and incarnation.task is trio.lowlevel.current_task():
            raise UsageError(
                f"actor {self.path!r} asks itself from the task that would have to answer: this "
                "can never end. Call the function directly, or `tell` yourself."
            )

    def _gone(self) -> ActorGone | UsageError:
        if self._slot.spec.kind is not Kind.WORKER:
            return UsageError(
                f"{self.path!r} is a supervisor and takes no messages. Send to one of its children."
            )
        return ActorGone(
            f"actor {self.path!r} takes no messages any more: its slot has ended or is draining "
            "before its end. Look it up again if it may have been replaced."
        )
