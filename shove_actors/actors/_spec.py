"""What a child is and how its supervisor treats it: plain data, checked at construction."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from shove_actors._errors import UsageError

from . import _checks as checks
from ._backoff import Backoff
from ._callables import start_function
from ._intensity import Intensity

if TYPE_CHECKING:
    # The default is what a spec means that says nothing of its messages; Python has it from 3.13.
    from typing_extensions import TypeVar

    from ._context import Context
    from ._dynamic import DynamicSupervisor

    M = TypeVar("M", default=Any)
else:
    from typing import TypeVar

    M = TypeVar("M")


INTENSITY_FIX = "Write Intensity(max_restarts=..., period_s=...)."
BACKOFF_FIX = "Write Backoff(initial_s=..., max_s=...)."
_SHUTDOWN_FIX = "Write Shutdown.within(seconds), Shutdown.KILL or Shutdown.INFINITY."
_CHILD_FIX = "Write ChildSpec(id=..., start=...), supervisor(...), or pool.spec(id=...) for a pool."


class Restart(Enum):
    """When a child is started again after it ended by itself."""

    PERMANENT = "permanent"
    """After any exit. A normal return counts as a restart and is reported as a warning."""
    TRANSIENT = "transient"
    """Only after a crash. A normal return ends the slot for good."""
    TEMPORARY = "temporary"
    """Never, not even when a sibling's crash stopped it."""


class Strategy(Enum):
    """Which children are restarted when one has crashed."""

    ONE_FOR_ONE = "one_for_one"
    """Only that one."""
    ONE_FOR_ALL = "one_for_all"
    """All: the others are stopped in reverse order, then all start in order."""
    REST_FOR_ONE = "rest_for_one"
    """That one and those started after it."""


class AutoShutdown(Enum):
    """Whether a supervisor ends when its significant children have ended by themselves."""

    NEVER = "never"
    ANY = "any"
    ALL = "all"


class OnRestart(Enum):
    """What happens to messages that were waiting when an incarnation ended."""

    KEEP = "keep"
    """The next incarnation gets them. Asks among them keep waiting within their own time."""
    CLEAR = "clear"
    """They are dropped and reported (`DeadLetters`); asks among them end with `ActorGone`."""


class OnStop(Enum):
    """What the receive loop does when the child is asked to stop for good."""

    NOW = "now"
    """It ends at once; what is still waiting is reported (`DeadLetters`)."""
    DRAIN = "drain"
    """No new message is accepted; the loop handles what is waiting and then ends."""


class Kind(Enum):
    """What runs in a slot."""

    WORKER = "worker"
    SUPERVISOR = "supervisor"
    DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Shutdown:
    """How a child is stopped: `Shutdown.within(s)`, `Shutdown.KILL` or `Shutdown.INFINITY`."""

    grace_s: float
    KILL: ClassVar[Shutdown]
    """Cancel without asking. The child's `finally` blocks still run."""
    INFINITY: ClassVar[Shutdown]
    """Ask and wait. For supervisors, which would otherwise leak their own children."""

    def __post_init__(self) -> None:
        checks.grace_seconds(
            "Shutdown.grace_s", self.grace_s, "Use Shutdown.INFINITY to wait without end."
        )

    @classmethod
    def within(cls, grace_s: float) -> Shutdown:
        """Ask, wait up to `grace_s` seconds, then cancel, then wait for the end."""
        return cls(grace_s)


Shutdown.KILL = Shutdown(0.0)
Shutdown.INFINITY = Shutdown(math.inf)


@dataclass(frozen=True, kw_only=True)
class MailboxSpec:
    """Size and policy of a slot's mailbox. Always bounded; the default holds 64 messages."""

    capacity: int = 64
    on_restart: OnRestart = OnRestart.KEEP
    on_stop: OnStop = OnStop.NOW

    def __post_init__(self) -> None:
        checks.whole_number(
            "MailboxSpec.capacity",
            self.capacity,
            1,
            "With 0 a message to oneself could never be sent, and a mailbox is always bounded.",
        )
        checks.member_of("MailboxSpec.on_restart", self.on_restart, OnRestart)
        checks.member_of("MailboxSpec.on_stop", self.on_stop, OnStop)


@dataclass(frozen=True, kw_only=True)
class SupervisorSpec:
    """A static supervisor's children and rules. Made by `supervisor()`."""

    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: Intensity = field(default_factory=Intensity)
    children: tuple[ChildSpec, ...] = ()
    auto_shutdown: AutoShutdown = AutoShutdown.NEVER

    def __post_init__(self) -> None:
        checks.member_of("strategy", self.strategy, Strategy)
        checks.instance_of("intensity", self.intensity, Intensity, INTENSITY_FIX)
        checks.member_of("auto_shutdown", self.auto_shutdown, AutoShutdown)
        # Frozen means nothing if somebody else still holds the list.
        checks.instance_of("SupervisorSpec.children", self.children, tuple, "Use supervisor().")
        seen: set[str] = set()
        for child in self.children:
            checks.instance_of("one of children", child, ChildSpec, _CHILD_FIX)
            if child.id in seen:
                raise UsageError(
                    f"child id {child.id!r} is used twice: ids are unique under one supervisor. "
                    "Rename one of them."
                )
            seen.add(child.id)
            if child.significant and self.auto_shutdown is AutoShutdown.NEVER:
                raise UsageError(
                    f"child {child.id!r} is significant, but auto_shutdown is NEVER, so nothing "
                    "would ever happen. Set auto_shutdown to ANY or ALL, or drop significant."
                )
            check_paced(child, self.intensity)
        if self.auto_shutdown is not AutoShutdown.NEVER and not any(
            child.significant for child in self.children
        ):
            raise UsageError(
                f"auto_shutdown is {self.auto_shutdown}, but no child is significant, so nothing "
                "would ever happen. Make a child significant, or leave auto_shutdown out."
            )
        pools: set[int] = set()
        for path, pool in _pools(self.children):
            if id(pool) in pools:
                raise UsageError(
                    f"the DynamicSupervisor at {path!r} stands in another place of this tree as "
                    "well: one object runs in one place. Make one for each."
                )
            pools.add(id(pool))


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """A dynamic supervisor's rules. Made by `DynamicSupervisor.spec()`."""

    pool: DynamicSupervisor
    intensity: Intensity
    stop_grace_s: float | None


StartFunction = Callable[["Context[M]"], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class ChildSpec(Generic[M]):
    """One slot under a supervisor. `M` is what its actor receives: that of its `Context`.

    `start` is an async function that takes a `Context`, says `ctx.started()` when it is ready and
    then works until it is asked to stop (`of_class` makes one from a class). `id` is unique under
    the supervisor and becomes part of the path. `name`, if given, is unique in the whole system
    and found with `system.whereis(name)`.

    `shutdown` (default: 5 s of grace), `start_timeout_s` (default: none; `StartFailed` after it)
    and `overrun_s` are seconds. A child that does not end although it was cancelled is reported
    every `overrun_s` and waited for: nothing inside one process can end it.

    Raises `UsageError` for a combination that cannot work.

    Example::

        ChildSpec(id="counter", start=counter, shutdown=Shutdown.within(10))
    """

    id: str
    start: StartFunction[M] | SupervisorSpec | PoolSpec
    restart: Restart = Restart.PERMANENT
    shutdown: Shutdown = field(default_factory=lambda: Shutdown.within(5.0))
    mailbox: MailboxSpec = field(default_factory=MailboxSpec)
    backoff: Backoff | None = None
    start_timeout_s: float | None = None
    significant: bool = False
    overrun_s: float = 5.0
    name: str | None = None

    def __post_init__(self) -> None:
        checks.readable("ChildSpec.id", self.id)
        if "/" in self.id:
            raise UsageError(
                f"ChildSpec.id is {self.id!r}: it must not contain '/', because it is one step of "
                "a path. Leave the '/' out."
            )
        self._check_types()
        if self.significant and self.restart is Restart.PERMANENT:
            raise UsageError(
                f"child {self.id!r} is permanent and significant: a permanent child never ends by "
                "itself. Make it TRANSIENT or TEMPORARY."
            )
        if self.kind is not Kind.WORKER and self.shutdown != Shutdown.INFINITY:
            raise UsageError(
                f"child {self.id!r} is a supervisor, so its shutdown must be Shutdown.INFINITY: "
                "each of its children has a grace of its own."
            )

    def _check_types(self) -> None:
        what = f"child {self.id!r}:"
        if not isinstance(self.start, (SupervisorSpec, PoolSpec)):
            start_function(f"{what} start", self.start)
        checks.member_of(f"{what} restart", self.restart, Restart)
        checks.instance_of(f"{what} shutdown", self.shutdown, Shutdown, _SHUTDOWN_FIX)
        checks.instance_of(
            f"{what} mailbox", self.mailbox, MailboxSpec, "Write MailboxSpec(capacity=...)."
        )
        checks.optional(f"{what} backoff", self.backoff, Backoff, BACKOFF_FIX)
        if self.start_timeout_s is not None:
            checks.positive_seconds(
                f"{what} start_timeout_s",
                self.start_timeout_s,
                "For no limit use None.",
                finite=False,
            )
        checks.flag(f"{what} significant", self.significant)
        checks.positive_seconds(
            f"{what} overrun_s", self.overrun_s, "It is the pause between two reports."
        )
        if self.name is not None:
            checks.readable(f"{what} name", self.name)

    @property
    def kind(self) -> Kind:
        """Worker, static supervisor or dynamic supervisor."""
        if isinstance(self.start, SupervisorSpec):
            return Kind.SUPERVISOR
        return Kind.DYNAMIC if isinstance(self.start, PoolSpec) else Kind.WORKER


def _ordered(what: str, children: object) -> tuple[ChildSpec, ...]:
    """The children as a tuple; refuses what has no order. `SupervisorSpec` checks each."""
    if not isinstance(children, Iterable) or isinstance(children, (str, bytes, Mapping, Set)):
        raise checks.refusal(
            what, children, "it must be a list or tuple of ChildSpec, in start order. Write [...]."
        )
    return tuple(children)


def _pools(children: Iterable[ChildSpec]) -> Iterator[tuple[str, DynamicSupervisor]]:
    """Every pool below, with its path from here."""
    for child in children:
        if isinstance(child.start, PoolSpec):
            yield child.id, child.start.pool
        elif isinstance(child.start, SupervisorSpec):
            for path, pool in _pools(child.start.children):
                yield f"{child.id}/{path}", pool


def check_paced(child: ChildSpec, intensity: Intensity) -> None:
    """Refuse a restart loop that nothing would ever slow down or end."""
    if (
        intensity.max_restarts is None
        and child.backoff is None
        and child.restart is not Restart.TEMPORARY
    ):
        raise UsageError(
            f"child {child.id!r} has no backoff under a supervisor with unlimited restarts: a "
            "crash at start would be a hot loop. Give the child a Backoff, or the supervisor a "
            "budget (Intensity.max_restarts)."
        )


def supervisor(
    *,
    id: str,
    children: Sequence[ChildSpec],
    strategy: Strategy = Strategy.ONE_FOR_ONE,
    intensity: Intensity | None = None,
    restart: Restart = Restart.PERMANENT,
    backoff: Backoff | None = None,
    auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
    significant: bool = False,
    name: str | None = None,
) -> ChildSpec:
    """A supervisor as a child: starts `children` in order, stops them in reverse.

    It counts as started once all its children are, and gives up with `RestartIntensityExceeded`,
    a crash in the eyes of its own supervisor. Its shutdown is always `Shutdown.INFINITY`.

    Raises `UsageError` for duplicate ids and for rules that contradict each other.
    """
    if intensity is None:
        intensity = Intensity()
    checks.member_of("supervisor() auto_shutdown", auto_shutdown, AutoShutdown)
    if auto_shutdown is not AutoShutdown.NEVER and restart is Restart.PERMANENT:
        raise UsageError(
            f"supervisor {id!r} has auto_shutdown but is permanent: it would be started again each "
            "time it shuts itself down. Make it TRANSIENT or TEMPORARY."
        )
    return ChildSpec(
        id=id,
        start=SupervisorSpec(
            strategy=strategy,
            intensity=intensity,
            children=_ordered("supervisor() children", children),
            auto_shutdown=auto_shutdown,
        ),
        restart=restart,
        shutdown=Shutdown.INFINITY,
        backoff=backoff,
        significant=significant,
        name=name,
    )
