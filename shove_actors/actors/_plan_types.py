"""The vocabulary of the plan: what a supervisor is told, and what it is told to do.

Events go in, actions come out, a `PlanSlot` is what is remembered about one child. See `_plan.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ._backoff import Backoff
from ._exit import Exit
from ._spec import Restart


class Phase(Enum):
    """Where a slot is, in the eyes of the plan."""

    NEW = "new"
    STARTING = "starting"
    UP = "up"
    DOWN = "down"
    DOOMED = "doomed"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class PlanSlot:
    """What the plan knows about one slot."""

    id: str
    restart: Restart = Restart.PERMANENT
    significant: bool = False
    backoff: Backoff | None = None
    phase: Phase = Phase.NEW
    fresh: bool = True
    """Never been up: failing to start is the starter's business, not a crash."""
    leaving: bool = False
    """Ends for good once stopped."""
    failures: int = 0
    """In a row; an incarnation that lived long enough starts the count over."""
    up_since: float = 0.0
    not_before: float = 0.0


@dataclass(frozen=True)
class Tick:
    """Time has passed (a timer is due), or the supervisor begins."""


@dataclass(frozen=True, kw_only=True)
class Add:
    """A new child (dynamic only)."""

    slot: PlanSlot


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Somebody wants this child gone for good (dynamic only)."""

    id: str


@dataclass(frozen=True, kw_only=True)
class ChildUp:
    """The child said it is started."""

    id: str


@dataclass(frozen=True, kw_only=True)
class ChildRejected:
    """The child ended before it was up. `draw` in [0, 1) is for jitter."""

    id: str
    error: Exception
    draw: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ChildDown:
    """A child that was up has ended, asked or not. `draw` in [0, 1) is for jitter."""

    id: str
    exit: Exit
    draw: float = 0.0


PlanEvent = Tick | Add | Remove | ChildUp | ChildRejected | ChildDown


@dataclass(frozen=True, kw_only=True)
class StartChild:
    """Start it; answer with `ChildUp` or `ChildRejected`."""

    id: str


@dataclass(frozen=True, kw_only=True)
class StopChild:
    """Stop it (or cancel its start); answer with `ChildDown` or `ChildRejected`."""

    id: str


@dataclass(frozen=True, kw_only=True)
class Forget:
    """The slot has ended for good."""

    id: str


@dataclass(frozen=True, kw_only=True)
class Delay:
    """Nothing to do but to tell: the slot waits before its next start."""

    id: str
    delay_s: float
    failures: int


@dataclass(frozen=True)
class Ready:
    """All children have been started: the supervisor itself is started."""


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """A child added at run time did not start; its slot is gone."""

    id: str
    error: Exception


@dataclass(frozen=True, kw_only=True)
class FailStart:
    """A child did not start the first time: the supervisor cannot start. Final."""

    id: str
    error: Exception


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """The budget is used up. Final."""

    id: str
    exit: Exit


@dataclass(frozen=True)
class Finish:
    """Automatic shutdown: the significant children have ended by themselves. Final."""


PlanAction = StartChild | StopChild | Forget | Delay | Ready | Refuse | FailStart | GiveUp | Finish
