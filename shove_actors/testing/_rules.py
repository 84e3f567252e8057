"""What a history is held to, and how a breach of it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from shove_actors._errors import UsageError
from shove_actors.runtime._checks import check_seconds, check_switch, check_whole

from ._given import check_kind
from ._history import Event

#: The invariants by their letters; see `check_history`.
Letter: TypeAlias = Literal["O", "I", "L", "B", "P", "T"]
LETTERS = frozenset("OILBPT")

#: How many events of the same matter are shown before and after the one that breaks a rule.
_BEFORE, _AFTER = 8, 2

_SWITCHES = (
    "fail_all",
    "dead_letters",
    "quiescent",
    "calm",
    "replays",
    "suspects",
    "keyed",
    "publishes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRules:
    """How a topic was consumed, as far as the invariants depend on it.

    `max_retries` and `handler_timeout` (seconds) as given to `register`. `fail_all`: the topic's
    `SequenceFailure`. `dead_letters`: whether it has a dead-letter queue; without one, what is
    given up is gone. `only`: the letters of the invariants to check. `quiescent`: in the end
    everything has been handled or is a dead letter, nothing is stored any more. `calm`: until the
    first `fault` or `crashed` nothing has gone wrong, so nothing is tried twice under one number,
    or before its time (`retry_delays`, seconds by retry, the last one from there on, unless the
    handler has asked for another one). Otherwise an attempt whose note was lost may come again.
    With it also: no handler outlasts its time-out unless it shields itself, no id is stored twice
    within the duplicate window, and a key stays in its shard. `replays`: keys are released by
    replaying their dead letters, never otherwise. `suspects`: the history tells when one is tried
    (`suspected`). `keyed`: many keys of a shard are handled at once, one message of each.
    `publishes`: everybody who publishes to the topic is recorded, so that what nobody has published
    cannot be handled.
    """

    max_retries: int = 10
    handler_timeout: float | None = 30.0
    fail_all: bool = False
    dead_letters: bool = True
    only: str = "OILBPT"
    quiescent: bool = False
    calm: bool = False
    retry_delays: tuple[float, ...] = ()
    replays: bool = False
    suspects: bool = False
    keyed: bool = False
    publishes: bool = False

    def __post_init__(self) -> None:
        check_whole(self.max_retries, "max_retries")
        if self.handler_timeout is not None:
            check_seconds(self.handler_timeout, "handler_timeout", positive=True, why=", or None")
        for name in _SWITCHES:
            check_switch(getattr(self, name), name)
        check_kind(self.retry_delays, "retry_delays", tuple, "a tuple of seconds, one per retry")
        for delay in self.retry_delays:
            check_seconds(delay, "retry_delays: a delay")
        check_kind(self.only, "only", str, "letters of the invariants, such as 'OI'")
        if not LETTERS.issuperset(self.only):
            raise UsageError(f"only={self.only!r}: letters of {''.join(sorted(LETTERS))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """The first event that breaks an invariant. `str` of it is the whole story.

    `rule`: its letter. `sentence`: what is wrong. `index`: of the event in the history; None for
    what only the end shows. `about`: of which message it is. `around`: the story, one event per
    line.
    """

    rule: Letter
    sentence: str
    index: int | None
    event: Event
    about: Event
    around: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"({self.rule}) {self.sentence}", *self.around])

    def told_from(self, events: Sequence[Event]) -> Violation:
        """The same, with the events around it."""
        about, at = self.about, self.index if self.index is not None else len(events)
        before: list[str] = []
        for index in range(min(at, len(events)) - 1, -1, -1):
            if len(before) == _BEFORE:
                break
            if _concerns(events[index], about):
                before.append(f"    {events[index]}")
        lines = before[::-1]
        if self.index is not None:
            lines.append(f"--> {self.event}")
            after = [e for e in events[at + 1 : at + 200] if _concerns(e, about)]
            lines += [f"    {e}" for e in after[:_AFTER]]
        return replace(self, around=tuple(lines))


class HistoryViolation(AssertionError):
    """A history breaks an invariant. `violation` says which, and where."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


def _concerns(event: Event, about: Event) -> bool:
    if event.kind in ("crashed", "opened", "closed"):
        return True
    if event.kind == "fault":
        return event.process in ("", about.process)
    if event.topic != about.topic:
        return False
    if event.id == about.id and event.id:
        return True
    if about.key is not None and event.key == about.key:
        return True
    return about.shard is not None and event.shard == about.shard
