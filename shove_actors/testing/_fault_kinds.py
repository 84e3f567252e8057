"""What can go wrong, one frozen record per fault. Their `repr` is the code that makes them.

`process` is the name of a `MemoryConfig`. None is the process to which the event belongs, or, at a
moment, the one that has been open for longest. Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, TypeAlias, get_args

from shove_actors.backends.memory import Direction
from shove_actors.runtime._checks import check_seconds, check_switch

from ._given import check_one_of, check_text


class Printer(Protocol):
    """What Hypothesis prints with."""

    def text(self, text: str, /) -> object: ...


class _Fault:
    """Validates and prints. Not for users: the faults below are."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            name = f"{type(self).__name__}: {field.name}"
            if field.name.endswith("_s"):
                check_seconds(value, name)
            elif field.name in ("after", "killed"):
                check_switch(value, name)
            elif field.name == "direction":
                check_one_of(value, name, get_args(Direction))
            elif value is not None or field.name != "process":
                check_text(value, name)

    def __repr__(self) -> str:
        changed = ", ".join(
            f"{field.name}={value!r}"
            for field in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) != field.default
        )
        return f"{type(self).__name__}({changed})"

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        """In the steps of a failing example; Hypothesis would show the fields of a dataclass."""
        printer.text(repr(self))


@dataclass(frozen=True, slots=True, repr=False)
class LoseAck(_Fault):
    """A settle (ack or nak) that never reaches the server; its process believes it did."""


@dataclass(frozen=True, slots=True, repr=False)
class LateAck(_Fault):
    """A settle that takes its time. On a shard one that is not there by the end of its lease never
    arrives: its process cuts the connection."""

    by_s: float = 1.0


@dataclass(frozen=True, slots=True, repr=False)
class LosePuback(_Fault):
    """The message is stored, and its publisher is not told."""


@dataclass(frozen=True, slots=True, repr=False)
class LatePuback(_Fault):
    """The message is stored at once, and its publisher is told later."""

    by_s: float = 1.0


@dataclass(frozen=True, slots=True, repr=False)
class LoseRenewal(_Fault):
    """A sign of life that never reaches the server."""


@dataclass(frozen=True, slots=True, repr=False)
class DeliverTwice(_Fault):
    """A delivery that is followed by a second one of the same message, to the same process."""


@dataclass(frozen=True, slots=True, repr=False)
class Crash(_Fault):
    """SIGKILL: nothing that the process does has any effect from here on.

    At an event, before it takes effect, or `after` that.
    """

    process: str | None = None
    after: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Disconnect(_Fault):
    """The connection breaks, with all that is on its way, and is back after a while."""

    process: str | None = None
    for_s: float = 1.0


@dataclass(frozen=True, slots=True, repr=False)
class Stall(_Fault):
    """Nothing passes, and nobody is told; then it all arrives, in order."""

    process: str | None = None
    for_s: float = 1.0
    direction: Direction = "both"


@dataclass(frozen=True, slots=True, repr=False)
class Slow(_Fault):
    """Everything takes `by_s` longer, each way."""

    process: str | None = None
    by_s: float = 0.2
    for_s: float = 5.0


@dataclass(frozen=True, slots=True, repr=False)
class RestartServer(_Fault):
    """The server is killed (or shut down), and is back after `down_s`. See `Faults.restart`."""

    down_s: float = 0.0
    killed: bool = True


@dataclass(frozen=True, slots=True, repr=False)
class DeleteConsumer(_Fault):
    """Somebody deletes a durable: everything that is unsettled comes again."""

    stream: str
    durable: str


@dataclass(frozen=True, slots=True, repr=False)
class StreamFull(_Fault):
    """The stream takes nothing new for a while."""

    stream: str
    for_s: float = 5.0


#: Happens to an event of its kind.
EventFault: TypeAlias = LoseAck | LateAck | LosePuback | LatePuback | LoseRenewal | DeliverTwice
#: Happens to a process or to the server, at any moment.
WorldFault: TypeAlias = (
    Crash | Disconnect | Stall | Slow | RestartServer | DeleteConsumer | StreamFull
)
Fault: TypeAlias = EventFault | WorldFault
ALL_FAULTS: tuple[type[Fault], ...] = get_args(Fault)

#: The events that an event fault can happen to.
EVENTS_OF: dict[type[object], tuple[str, ...]] = {
    LoseAck: ("ack", "nak"),
    LateAck: ("ack", "nak"),
    LosePuback: ("publish",),
    LatePuback: ("publish",),
    LoseRenewal: ("renew",),
    DeliverTwice: ("deliver",),
}
