"""The steps of a fault plan: at a moment, or at an event. Their `repr` is code that makes them."""

from __future__ import annotations

from dataclasses import dataclass

from shove_actors._errors import UsageError
from shove_actors.backends.memory import FaultEvent
from shove_actors.runtime._checks import check_seconds, check_whole

from ._fault_kinds import ALL_FAULTS, EVENTS_OF, Fault
from ._given import check_one_of, kind_of

EVENTS: tuple[FaultEvent, ...] = ("publish", "deliver", "ack", "nak", "renew")


@dataclass(frozen=True, slots=True, repr=False)
class At:
    """A fault at a moment: seconds since the plan was installed."""

    moment: float
    fault: Fault

    def __post_init__(self) -> None:
        check_seconds(self.moment, "at(moment, fault): moment")
        check_fault(self.fault)

    def __repr__(self) -> str:
        return f"at({self.moment!r}, {self.fault!r})"


@dataclass(frozen=True, slots=True, repr=False)
class On:
    """A fault at the n-th event of a kind, counted from 1 over all processes."""

    event: FaultEvent
    nth: int
    fault: Fault

    def __post_init__(self) -> None:
        check_one_of(self.event, "on(event, nth, fault): event", EVENTS)
        check_whole(self.nth, "on(event, nth, fault): nth", least=1, why=": counted from 1")
        check_fault(self.fault)
        possible = EVENTS_OF.get(type(self.fault))
        if possible is not None and self.event not in possible:
            raise UsageError(
                f"{self.fault!r} cannot happen to the event {self.event!r}, only to "
                f"{' and '.join(possible)}"
            )

    def __repr__(self) -> str:
        return f"on({self.event!r}, {self.nth}, {self.fault!r})"


def check_fault(fault: object) -> None:
    if not isinstance(fault, ALL_FAULTS):
        raise UsageError(f"fault is {kind_of(fault)}: give one, such as LoseAck()")


def check_step(step: object, number: int) -> None:
    if isinstance(step, (At, On)):
        return
    if isinstance(step, ALL_FAULTS):
        raise UsageError(
            f"step {number} of the plan does not say when: give on('ack', 1, {step!r}), or "
            f"at(2.0, {step!r})"
        )
    raise UsageError(
        f"step {number} of the plan is {kind_of(step)}: give on(...) and at(...), one by one "
        "(of a list, FaultPlan(*steps))"
    )


def at(moment: float, fault: Fault) -> At:
    """`fault`, this many seconds after the plan was installed; an event fault: to the next one."""
    return At(moment, fault)


def on(event: FaultEvent, nth: int, fault: Fault) -> On:
    """`fault` at the `nth` event of this kind, counted from 1 over all processes."""
    return On(event, nth, fault)
