"""What happens in a tree, as records, and listeners that cannot hurt it.

A listener is any function of one event. It runs synchronously inside the supervisor, so it must
be quick and must not wait. One that raises is logged once and removed (Trio's own rule for
instruments): observing a system must never be what takes it down.

A listener that raises `SystemExit`, `KeyboardInterrupt` or another fatal exception does mean to
end the program. It is removed too, but its exception is kept: the tree is stopped in order and the
exception is raised at the system's end, as one of a child would be. It is never raised where the
event came from, in the middle of the tree's book-keeping (`test_fatal_listener_on_any_event`).

Records name paths and carry exits; they never carry a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ._callables import listener_function
from ._exit import Exit

logger = logging.getLogger("shove_actors.actors")


@dataclass(frozen=True, kw_only=True)
class LifecycleEvent:
    """Base of all records. `at` is on Trio's clock; `level` is a `logging` level."""

    path: str
    at: float
    level: int = logging.INFO


@dataclass(frozen=True, kw_only=True)
class Started(LifecycleEvent):
    """An incarnation said it is ready. `incarnation` counts from 1; above 1 it is a restart."""

    incarnation: int


@dataclass(frozen=True, kw_only=True)
class Exited(LifecycleEvent):
    """An incarnation that had started has ended, and everything it had opened is closed.

    `level` is ERROR for a crash and WARNING for a permanent child that simply returned.
    """

    incarnation: int
    exit: Exit


@dataclass(frozen=True, kw_only=True)
class StartRejected(LifecycleEvent):
    """An incarnation ended, or ran out of time, before it said it is ready."""

    incarnation: int
    error: Exception
    level: int = logging.ERROR


@dataclass(frozen=True, kw_only=True)
class BackingOff(LifecycleEvent):
    """The slot waits `delay_s` seconds before its next start, after `failures` in a row."""

    delay_s: float
    failures: int
    level: int = logging.WARNING


@dataclass(frozen=True, kw_only=True)
class StopRequested(LifecycleEvent):
    """The child was asked to stop; it has `grace_s` seconds (0: cancelled without asking)."""

    incarnation: int
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class GraceExpired(LifecycleEvent):
    """The child did not stop within its grace, or a hard stop ended it, and was cancelled."""

    incarnation: int
    level: int = logging.WARNING


@dataclass(frozen=True, kw_only=True)
class Overrun(LifecycleEvent):
    """The child was cancelled `since_s` seconds ago and still runs. It is waited for.

    A start that is cancelled by its timeout or a removal is waited for without this record.
    """

    incarnation: int
    since_s: float
    level: int = logging.ERROR


@dataclass(frozen=True, kw_only=True)
class Escalated(LifecycleEvent):
    """The supervisor at `path` gave up because of `child` and passes `error` on."""

    child: str
    error: Exception
    level: int = logging.ERROR


@dataclass(frozen=True, kw_only=True)
class MessageLost(LifecycleEvent):
    """The incarnation crashed while it handled a message; that message is not handled again."""

    incarnation: int
    level: int = logging.WARNING


@dataclass(frozen=True, kw_only=True)
class DeadLetters(LifecycleEvent):
    """`count` waiting messages were dropped: the slot ended, or clears its mailbox."""

    count: int
    level: int = logging.WARNING


@dataclass(frozen=True, kw_only=True)
class Ended(LifecycleEvent):
    """The slot has ended for good: its ref answers `ActorGone` from now on."""

    exit: Exit | None


@dataclass(frozen=True, kw_only=True)
class SystemStopped(LifecycleEvent):
    """The whole tree has ended; `path` is empty. Last record of a system."""

    error: BaseException | None


Listener = Callable[[LifecycleEvent], None]


class Listeners:
    """The listeners of one system."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.fatal: list[BaseException] = []
        """What listeners raised that is to end the program, to be raised by the system."""
        self.on_fatal: Callable[[], None] = lambda: None

    def add(self, listener: Listener) -> None:
        """Call `listener` with every event from now on. Refuses what cannot be a listener."""
        listener_function("listener", listener)
        self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        """Stop calling `listener`. Unknown ones are ignored: it may have been removed already."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def emit(self, event: LifecycleEvent) -> None:
        """Tell everybody, in the order they were added. Never raises."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except BaseException as exc:
                self.remove(listener)
                # A `Cancelled` here is nobody's cancellation: listeners do not wait.
                if not isinstance(exc, (Exception, trio.Cancelled)):
                    self.fatal.append(exc)
                    self.on_fatal()
                    continue
                logger.exception(
                    "a lifecycle listener raised on %s and was removed; the tree is unaffected",
                    type(event).__name__,
                )
