"""How often what goes wrong, and what it is, drawn from a seed.

Gaps are drawn, not events: between two faults of a kind of event lies a geometric number of events,
between two faults at a moment an exponential time. So an event at which nothing happens costs
nothing.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields, replace

from shove_actors._errors import UsageError
from shove_actors.backends.memory import Direction, FaultEvent, MemoryServer
from shove_actors.runtime._checks import check_number, check_whole

from ._fault_kinds import (
    Crash,
    DeleteConsumer,
    DeliverTwice,
    Disconnect,
    Fault,
    LateAck,
    LatePuback,
    LoseAck,
    LosePuback,
    LoseRenewal,
    Printer,
    RestartServer,
    Slow,
    Stall,
    StreamFull,
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Rates:
    """How often a drawn plan lets what happen.

    Of the event faults and of `crash`: the share of all events of that kind (0 to 1; of `crash`, of
    all settles and publishes). The others: times per second. `longest_s`: durations are drawn
    evenly up to it; `longest_down_s`: for how long a server is down.
    """

    lose_ack: float = 0.002
    late_ack: float = 0.002
    lose_puback: float = 0.002
    late_puback: float = 0.002
    lose_renewal: float = 0.05
    deliver_twice: float = 0.002
    crash: float = 0.0005
    disconnect: float = 0.02
    stall: float = 0.02
    slow: float = 0.01
    restart: float = 0.01
    delete_consumer: float = 0.0
    stream_full: float = 0.0
    longest_s: float = 5.0
    longest_down_s: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            share = field.name in _SHARES
            rule = "a number from 0 to 1" if share else "a finite number, 0 or more"
            check_number(value, f"Rates: {field.name}", rule)
            if not 0 <= value <= (1.0 if share else math.inf):
                raise UsageError(f"Rates: {field.name}={value!r}: {rule}")

    def __repr__(self) -> str:
        """The shorter way to write it."""
        usual = {field.name: field.default for field in fields(self)}
        none = {name: usual[name] if name.startswith("longest") else 0.0 for name in usual}
        ways = []
        for call, start in (("Rates", usual), ("Rates.only", none)):
            given = [(name, getattr(self, name)) for name in usual]
            changed = [f"{name}={value!r}" for name, value in given if value != start[name]]
            ways.append(f"{call}({', '.join(changed)})")
        return min(ways, key=len)

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        printer.text(repr(self))

    @classmethod
    def only(cls, **rates: float) -> Rates:
        """These, and nothing else: `Rates.only(disconnect=0.1)`."""
        none = {f.name: 0.0 for f in fields(cls) if not f.name.startswith("longest")}
        return cls(**{**none, **rates})

    def for_batches(self, size: int) -> Rates:
        """Of events: in a small batch about as many faults as in one of some hundred messages.

        And not more than a few processes killed in any: each is started again, which takes as long
        as some hundred deliveries.
        """
        check_whole(size, "size", least=1)
        times = max(1.0, _BATCH / size)
        shares = {name: min(_MOST, getattr(self, name) * times) for name in _SHARES}
        shares["crash"] = min(shares["crash"], _CRASHES / size)
        return replace(self, **shares)


_SHARES = (
    "lose_ack",
    "late_ack",
    "lose_puback",
    "late_puback",
    "lose_renewal",
    "deliver_twice",
    "crash",
)
_TIMED = ("disconnect", "stall", "slow", "restart", "delete_consumer", "stream_full")

#: Which rates are about which kind of event.
_OF_EVENT: dict[FaultEvent, tuple[str, ...]] = {
    "publish": ("lose_puback", "late_puback", "crash"),
    "deliver": ("deliver_twice",),
    "ack": ("lose_ack", "late_ack", "crash"),
    "nak": ("lose_ack", "late_ack", "crash"),
    "renew": ("lose_renewal",),
}
_PLAIN: dict[str, Fault] = {
    "lose_ack": LoseAck(),
    "lose_puback": LosePuback(),
    "lose_renewal": LoseRenewal(),
    "deliver_twice": DeliverTwice(),
}
_DIRECTIONS: tuple[Direction, ...] = ("both", "up", "down")
_FAR = 1 << 61

#: Messages of a batch for which the rates are meant, and the largest share in a smaller one.
_BATCH = 500
_MOST = 0.2
#: Processes that are killed during a batch, about.
_CRASHES = 8


class Drawn:
    """The dice of one plan."""

    __slots__ = ("_events", "_gap_rate", "_rates", "_rng", "_weights", "for_s", "spare")

    def __init__(
        self, rng: random.Random, rates: Rates, for_s: float, spare: frozenset[str]
    ) -> None:
        self.for_s = for_s
        self.spare = spare
        self._rng = rng
        self._rates = rates
        self._weights = [getattr(rates, name) for name in _TIMED]
        self._gap_rate = sum(self._weights)
        self._events = {
            event: (names, [getattr(rates, name) for name in names])
            for event, names in _OF_EVENT.items()
        }

    def event(self, event: FaultEvent) -> tuple[int, Fault | None]:
        """After how many events of this kind the next fault comes, and which it is."""
        names, weights = self._events[event]
        share = min(1.0, sum(weights))
        if share <= 0.0:
            return _FAR, None
        if share >= 1.0:
            gap = 1
        else:
            gap = 1 + int(math.log(1.0 - self._rng.random()) / math.log(1.0 - share))
        [name] = self._rng.choices(names, weights)
        return gap, self._event_fault(name)

    def _event_fault(self, name: str) -> Fault:
        if name == "crash":
            return Crash(after=self._rng.random() < 0.5)
        if name == "late_ack":
            return LateAck(self._seconds())
        if name == "late_puback":
            return LatePuback(self._seconds())
        return _PLAIN[name]

    def gap(self) -> float:
        """Seconds until something happens at a moment; infinity for never."""
        return self._rng.expovariate(self._gap_rate) if self._gap_rate else math.inf

    def fault(self, server: MemoryServer) -> Fault | None:
        """What happens now. None: there is nobody it could happen to."""
        rng, rates = self._rng, self._rates
        [name] = rng.choices(_TIMED, self._weights)
        if name == "restart":
            down_s = rng.uniform(0.0, rates.longest_down_s) if rng.random() < 0.5 else 0.0
            return RestartServer(round(down_s, 3), killed=rng.random() < 0.75)
        if name == "delete_consumer":
            found = [(s, d) for s in sorted(server.streams) for d in server.streams[s].durables]
            return DeleteConsumer(*rng.choice(found)) if found else None
        if name == "stream_full":
            streams = sorted(server.streams)
            return StreamFull(rng.choice(streams), self._seconds()) if streams else None
        processes = list(server.backends)
        if not processes:
            return None
        process = rng.choice(processes)
        if name == "disconnect":
            return Disconnect(process, self._seconds())
        if name == "stall":
            return Stall(process, self._seconds(), rng.choice(_DIRECTIONS))
        return Slow(process, round(rng.uniform(0.0, 0.5), 3), self._seconds())

    def _seconds(self) -> float:
        return round(self._rng.uniform(0.0, self._rates.longest_s), 3)
