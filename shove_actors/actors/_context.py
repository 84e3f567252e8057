"""What an actor's function receives: its mailbox, its address, `started()`, the stop request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import trio

from shove_actors._errors import UsageError

from ._envelope import Envelope, ReplyPort

if TYPE_CHECKING:
    from ._child import Incarnation
    from ._ref import ActorRef
    from ._system import ActorSystem

M = TypeVar("M")


class Context(Generic[M]):
    """The world of one incarnation. Made by the supervisor; do not keep it beyond the function.

    Example::

        async def greeter(ctx: Context[str]) -> None:
            ctx.started()
            async for name in ctx:
                ctx.reply(f"hello {name}")

    The loop ends when the actor is asked to stop (at once, or after the waiting messages, by
    `MailboxSpec.on_stop`). Clean up in plain `finally` blocks; await there only inside
    `trio.move_on_after(s, shield=True)`, because the task may be under cancellation.

    One task receives: "the message in hand", which `reply` answers, is one. Give work to child
    tasks as arguments or through a memory channel, with `detach_port()` for the answer. A receive
    beside another one, or by another task while an ask in hand waits for its answer, raises
    `UsageError`: two loops over one context would answer each other's askers.
    Proof: `test_race_two_tasks_receive` and `test_race_another_task_receives_during_an_ask`.
    """

    __slots__ = (
        "_busy",
        "_detached",
        "_incarnation",
        "_port",
        "_receiver",
        "_receiving",
        "_started",
        "_stop_asked",
        "_stop_event",
        "_taker",
    )

    def __init__(
        self, incarnation: Incarnation, receiver: trio.MemoryReceiveChannel[object]
    ) -> None:
        self._incarnation = incarnation
        self._receiver = receiver
        self._port: ReplyPort | None = None
        # Made when first needed, as the event of the stop: an idle actor has neither.
        self._detached: set[ReplyPort] | None = None
        self._stop_event: trio.Event | None = None
        self._stop_asked = False
        self._busy = False
        self._started = False
        self._receiving = False
        self._taker: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        return f"<Context {self.path!r} incarnation {self.incarnation}>"

    @property
    def name(self) -> str:
        """The child's id under its supervisor."""
        return self._incarnation.slot.spec.id

    @property
    def path(self) -> str:
        """The ids from the root to this actor, joined by '/'."""
        return self._incarnation.slot.path

    @property
    def incarnation(self) -> int:
        """Which run of the slot this is, from 1."""
        return self._incarnation.number

    @property
    def self_ref(self) -> ActorRef[M]:
        """This actor's own address."""
        return cast("ActorRef[M]", self._incarnation.slot.ref)

    @property
    def system(self) -> ActorSystem:
        """The system this actor runs in."""
        return self._incarnation.slot.core.system

    @property
    def stop_requested(self) -> trio.Event:
        """Set when the actor is asked to stop. Wait for it, or poll `is_set()`."""
        if self._stop_event is None:
            self._stop_event = trio.Event()
            if self._stop_asked:
                self._stop_event.set()
        return self._stop_event

    def started(self) -> None:
        """Say that the actor is ready; the supervisor goes on to the next child.

        Must be called once, before the first receive. An actor that ends or runs out of
        `start_timeout_s` before it has failed to start. A second call raises `UsageError`.
        """
        if self._started:
            raise UsageError(f"actor {self.path!r} called started() twice. Call it once.")
        self._started = True
        self._incarnation.mark_started()

    # ------------------------------------------------------------------ receiving

    async def receive(self) -> M:
        """The next message. Always a checkpoint; a cancelled receive has taken nothing.

        Taking the next message ends the handling of the one before: if that was an ask and was
        neither answered nor detached, its asker gets `ActorGone`.
        Raises `trio.EndOfChannel` when no message will come any more (asked to stop, or drained).
        """
        self._finish_message()
        self._receiving = True
        try:
            item = await self._receiver.receive()
        except trio.ClosedResourceError:
            raise trio.EndOfChannel from None
        finally:
            self._receiving = False
        return self._take(item)

    def receive_nowait(self) -> M:
        """The next message if one is waiting. For loops that handle many per wake-up.

        Raises `trio.WouldBlock` if none is waiting and `trio.EndOfChannel` as `receive` does. Not
        a checkpoint: a loop around it must contain one.
        """
        self._finish_message()
        try:
            item = self._receiver.receive_nowait()
        except trio.ClosedResourceError:
            raise trio.EndOfChannel from None
        return self._take(item)

    def __aiter__(self) -> Context[M]:
        return self

    async def __anext__(self) -> M:
        # `receive`, written out: most actors live in this loop, and a coroutine less is a tenth
        # of the time of a message and 200 bytes of every idle actor.
        if self._port is None and self._started and not self._receiving:
            self._busy = False
        else:
            self._finish_message()
        item: Any
        self._receiving = True
        try:
            item = await self._receiver.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise StopAsyncIteration from None
        finally:
            self._receiving = False
        self._busy = True
        if type(item) is Envelope:
            self._port = item.port
            self._taker = trio.lowlevel.current_task()
            item = item.message
        message: M = item
        return message

    # ------------------------------------------------------------------ answering

    def reply(self, value: object) -> bool:
        """Answer the message in hand.

        False if nobody waits (it was told, or its asker has left); never an error because of it.
        Answering one ask twice raises `UsageError`.
        """
        return self._port.reply(value) if self._port is not None else False

    @property
    def reply_port(self) -> ReplyPort | None:
        """The port of the message in hand, or None if it was told. Closed by the next receive."""
        return self._port

    def detach_port(self) -> ReplyPort | None:
        """Keep the port of the message in hand beyond the next receive, to answer later.

        If the actor ends before it answers, the asker gets `ActorGone` all the same.
        """
        port, self._port = self._port, None
        if port is not None and port.open:
            port.keeper = self
            if self._detached is None:
                self._detached = set()
            self._detached.add(port)
        return port

    def forget_port(self, port: ReplyPort) -> None:
        """A detached port has been settled. Called by the port."""
        assert self._detached is not None
        self._detached.discard(port)

    # ------------------------------------------------------------------ private

    def _finish_message(self) -> None:
        if not self._started:
            raise UsageError(
                f"actor {self.path!r} receives before ctx.started(): its supervisor still waits "
                "for it, so nothing behind it in the tree can start. Call ctx.started() first."
            )
        port = self._port
        if self._receiving or (
            port is not None and port.open and self._taker is not trio.lowlevel.current_task()
        ):
            raise UsageError(
                f"actor {self.path!r} receives in two tasks: their answers would go to the wrong "
                "askers. Receive in one task; give work to child tasks through a memory channel, "
                "and keep the port of an ask with ctx.detach_port()."
            )
        self._busy = False
        if port is not None:
            port.close(self.path)
            self._port = None
            self._taker = None

    def _take(self, item: object) -> M:
        self._busy = True
        if type(item) is Envelope:
            self._port = item.port
            self._taker = trio.lowlevel.current_task()
            return cast("M", item.message)
        return cast("M", item)

    def _ask_to_stop(self) -> None:
        self._stop_asked = True
        if self._stop_event is not None:
            self._stop_event.set()

    def _close(self, cause: BaseException | None) -> bool:
        """The incarnation has ended. Returns whether a message was in hand."""
        if self._port is not None:
            self._port.close(self.path, cause)
            self._port = None
        self._taker = None
        for port in tuple(self._detached or ()):
            port.close(self.path, cause)
        return self._busy
