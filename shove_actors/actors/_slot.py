"""A place under a supervisor: spec, path, mailbox, ref. It outlives incarnations.

The slots of a static supervisor belong to that supervisor's own slot, so they (and every ref to
them) survive a restart of the supervisor too. A dynamic supervisor's slots end with it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import trio

from ._exit import Crashed
from ._gate import Gate
from ._lifecycle import DeadLetters, Ended
from ._mailbox import Mailbox
from ._ref import ActorRef
from ._spec import Kind

if TYPE_CHECKING:
    from ._child import Incarnation
    from ._core import Core
    from ._exit import Exit
    from ._spec import ChildSpec


class State(Enum):
    """What a slot is doing, as a snapshot shows it."""

    DOWN = "down"
    """Not running and not waiting for a timer: not started yet, or behind another child."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    ENDED = "ended"


class Slot:
    """One `ChildSpec` in place. Only its supervisor changes it."""

    __slots__ = (
        "children",
        "core",
        "ended",
        "incarnation",
        "incarnations",
        "last_exit",
        "mailbox",
        "path",
        "ref",
        "spec",
        "state",
    )

    def __init__(self, core: Core, spec: ChildSpec, path: str) -> None:
        self.core = core
        self.spec = spec
        self.path = path
        self.mailbox = Mailbox(spec.mailbox)
        self.ref: ActorRef[Any] = ActorRef(self)
        self.state = State.DOWN
        self.incarnations = 0
        self.last_exit: Exit | None = None
        self.ended = Gate()
        self.incarnation: Incarnation | None = None
        self.children: dict[str, Slot] = {}
        if spec.kind is not Kind.WORKER:
            self.mailbox.close_send()
        if spec.name is not None:
            core.registry.register(spec.name, self.ref)

    @property
    def last_error(self) -> BaseException | None:
        """What the last incarnation crashed with."""
        return self.last_exit.error if isinstance(self.last_exit, Crashed) else None

    def child_path(self, id_: str) -> str:
        """The path of a child of this slot. The root's own path is empty."""
        return f"{self.path}/{id_}" if self.path else id_

    def clear_mailbox(self) -> None:
        """Drop what is waiting, because the policy says so at the end of an incarnation."""
        self._report_dead(self.mailbox.clear(self.path, self.last_error))

    def terminate(self) -> None:
        """End for good, children first: later sends raise `ActorGone`, watchers wake up."""
        if self.ended.is_set():
            return
        for child in reversed(self.children.values()):
            child.terminate()
        self.state = State.ENDED
        self.ended.set()
        self._report_dead(self.mailbox.terminate(self.path, self.last_error))
        self.core.registry.forget(self.ref)
        if not self.core.system.stopping:
            # One that comes and goes in a running system is no part of how the system ended.
            self.core.killed.pop(self.path, None)
        self.core.listeners.emit(Ended(path=self.path, at=trio.current_time(), exit=self.last_exit))

    def _report_dead(self, count: int) -> None:
        if count:
            self.core.dead_letters += count
            self.core.listeners.emit(
                DeadLetters(path=self.path, at=trio.current_time(), count=count)
            )
