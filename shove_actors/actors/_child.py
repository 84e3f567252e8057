"""One incarnation: a task in its own cancel scope, and the report of how it ended.

*The race.* A child runs unshielded while it starts, so that cancelling its supervisor cancels the
start; once started it is shielded, so that only its supervisor stops it, in order and with grace.
The switch happens inside `started()`. But Trio's `TaskStatus.started()` silently does *not* move
the task if the start is being cancelled at that moment: the task stays under the cancelled
`start()`. Shielding it then would make `start()` wait for a task that nothing can cancel any more
(a prototype hung for ever). Hence the shield is raised only if the task's parent nursery really
is the supervisor's. Proof: `test_started_late_after_its_timeout_is_a_failed_start`. (Check 7, the
same race by a stop, passes even without the guard: a stop also cancels the child's own scope.)

*The invariant.* An ordinary error never leaves `run`: it becomes an exit, posted as an event when
everything the function had opened is closed. Only fatal exceptions (and foreign cancellations
during the start) travel through the nursery. The decision is made after the scope has taken its
own `Cancelled` out of the group. Proof: checks 23 to 26 and 36.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import trio

from shove_actors._errors import UsageError

from ._context import Context
from ._exit import Crashed, Exit, Killed, Returned, Stopped, split_error
from ._gate import Gate
from ._lifecycle import Exited, MessageLost, Started, StopRequested
from ._slot import State
from ._spec import OnRestart, OnStop, Restart

if TYPE_CHECKING:
    from ._slot import Slot

Runner = Callable[["Incarnation"], Awaitable[None]]


class Parent(Protocol):
    """What an incarnation tells its supervisor."""

    @property
    def nursery(self) -> trio.Nursery: ...

    @property
    def stopping(self) -> bool: ...

    def child_started(self, incarnation: Incarnation) -> None: ...

    def child_ended(self, incarnation: Incarnation, exit_: Exit, fatal: bool) -> None: ...


class Stoppable(Protocol):
    """A supervisor that runs inside an incarnation."""

    def request_stop(self, final: bool) -> None: ...


@trio.lowlevel.disable_ki_protection
async def _run_unprotected(runner: Runner, incarnation: Incarnation) -> None:
    # The supervisor's own frames are protected from Ctrl-C; what users wrote must not be, or a
    # busy child could not be interrupted at all.
    await runner(incarnation)


class Incarnation:
    """One run of a slot's function."""

    __slots__ = (
        "_parent",
        "_runner",
        "_status",
        "asked_at",
        "context",
        "ended",
        "exit",
        "final",
        "killed_at",
        "number",
        "receiver",
        "scope",
        "slot",
        "subtree",
        "task",
        "up",
    )

    def __init__(self, slot: Slot, parent: Parent, runner: Runner) -> None:
        slot.incarnations += 1
        self.slot = slot
        self.number = slot.incarnations
        self.ended = Gate()
        self.scope = trio.CancelScope()
        self.task: trio.lowlevel.Task | None = None
        self.receiver = slot.mailbox.receiver()
        self.context: Context[Any] = Context(self, self.receiver)
        self.subtree: Stoppable | None = None
        self.exit: Exit | None = None
        # Started *and* moved into the supervisor's nursery: from here on a child of its own.
        self.up = False
        self.asked_at: float | None = None
        self.final = False
        self.killed_at: float | None = None
        self._parent = parent
        self._runner = runner
        self._status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED

    @trio.lowlevel.enable_ki_protection
    def mark_started(self) -> None:
        """Called by `ctx.started()`."""
        self._status.started()
        # It would keep the nursery of the start alive, a kilobyte for as long as the actor lives.
        self._status = trio.TASK_STATUS_IGNORED
        if self.task is None or self.task.parent_nursery is not self._parent.nursery:
            return
        self.up = True
        self.scope.shield = True
        self.slot.state = State.RUNNING
        self.slot.core.listeners.emit(
            Started(path=self.slot.path, at=trio.current_time(), incarnation=self.number)
        )
        self._parent.child_started(self)

    def request_stop(self, final: bool, grace_s: float) -> None:
        """Ask to stop. `final`: the slot will not run again, so a draining mailbox is closed."""
        if self.asked_at is None:
            self.asked_at = trio.current_time()
            self.slot.state = State.STOPPING
            self.slot.core.listeners.emit(
                StopRequested(
                    path=self.slot.path,
                    at=self.asked_at,
                    incarnation=self.number,
                    grace_s=grace_s,
                )
            )
        self.final = self.final or final
        self.context._ask_to_stop()
        if self.subtree is not None:
            self.subtree.request_stop(self.final)
        elif final and self.slot.spec.mailbox.on_stop is OnStop.DRAIN:
            self.slot.mailbox.close_send()
        else:
            # Wakes a waiting `receive`; what is buffered stays with the slot.
            self.receiver.close()

    def adopt(self, subtree: Stoppable) -> None:
        """A supervisor now runs in this incarnation. No stop can have come before: only who is
        up is asked, and a supervisor is up when all its children are."""
        self.subtree = subtree

    def kill(self) -> None:
        """Cancel. The function's `finally` blocks run; its end is waited for."""
        if self.killed_at is None:
            self.killed_at = trio.current_time()
            self.slot.state = State.STOPPING
            self.scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The task. Raises nothing but what must go through the nursery."""
        self.task = trio.lowlevel.current_task()
        self._status = task_status
        del task_status
        error: BaseException | None = None
        try:
            with self.scope:
                with self.receiver:
                    await _run_unprotected(self._runner, self)
        except BaseException as exc:
            error = exc
        # Nothing below waits: the asker learns at the instant of the crash.
        ordinary, rest = (None, None) if error is None else split_error(error)
        fatal = rest is not None and not _only_cancelled(rest)
        if self.up and rest is not None and not fatal:
            # A running child is shielded, and its own scope has taken its own `Cancelled` out. So
            # nobody cancelled: passed on, it would end the nursery in silence. Proof:
            # `test_race_foreign_cancelled_is_a_crash`.
            if ordinary is None:
                ordinary = UsageError(
                    f"actor {self.slot.path!r} raised a trio.Cancelled that belongs to another "
                    "task. Raise an error of your own instead of one saved from elsewhere."
                )
                ordinary.__cause__ = rest
            rest = None
        self._finish(ordinary, rest, fatal)
        if error is not None and fatal:
            raise error
        if rest is not None:
            raise rest

    def _finish(self, ordinary: Exception | None, rest: BaseException | None, fatal: bool) -> None:
        if ordinary is not None:
            exit_: Exit = Crashed(error=ordinary)
        elif rest is not None and fatal:
            # Nothing restarts it: the tree goes down. But nobody killed it either.
            exit_ = Crashed(error=rest)
        elif rest is not None or self.killed_at is not None:
            exit_ = Killed()
        else:
            exit_ = Returned() if self.asked_at is None else Stopped()
        self.exit = exit_
        try:
            self._report(exit_, ordinary, rest if fatal else ordinary)
        finally:
            # Whatever went wrong above: who waits for this end must not wait for ever.
            self.ended.set()
            self._parent.child_ended(self, exit_, fatal)

    def _report(self, exit_: Exit, ordinary: Exception | None, cause: BaseException | None) -> None:
        slot, now = self.slot, trio.current_time()
        slot.last_exit = exit_
        slot.incarnation = None
        slot.state = State.DOWN
        busy = self.context._close(cause)
        asked = self.asked_at is not None or self.killed_at is not None
        if self.up:
            level = logging.INFO
            if isinstance(exit_, Crashed):
                level = logging.ERROR
            elif isinstance(exit_, Returned) and slot.spec.restart is Restart.PERMANENT:
                level = logging.WARNING
            emit = slot.core.listeners.emit
            emit(Exited(path=slot.path, at=now, level=level, incarnation=self.number, exit=exit_))
            if busy and not isinstance(exit_, (Returned, Stopped)):
                slot.core.messages_lost += 1
                emit(MessageLost(path=slot.path, at=now, incarnation=self.number))
        if ordinary is not None and (asked or self._parent.stopping):
            slot.core.note_late(slot.path, ordinary)
        if slot.spec.mailbox.on_restart is OnRestart.CLEAR:
            slot.clear_mailbox()


def _only_cancelled(error: BaseException) -> bool:
    if isinstance(error, trio.Cancelled):
        return True
    parts = getattr(error, "exceptions", None)
    return parts is not None and all(_only_cancelled(part) for part in parts)
