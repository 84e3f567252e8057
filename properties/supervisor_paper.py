"""What a supervisor's children do when they are notes on paper, and what always holds.

Part of `PlanWorld`: a child ends, is asked, cancelled or out of time; the ordered stop. What the
plan makes of it is in `supervisor_model.py`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from supervisor_child import (
    OVERRUN_S,
    PERIOD_S,
    Boom,
    Child,
    Fact,
    Manner,
    Seen,
    Setup,
    TooSlow,
)

from shove_actors.actors import (
    AutoShutdown,
    Crashed,
    Exit,
    Killed,
    Returned,
    StartFailed,
    State,
    Stopped,
    Strategy,
)
from shove_actors.actors._plan import PlanState
from shove_actors.actors._plan_types import (
    GiveUp,
    Phase,
    PlanAction,
)

GROUPS = (Strategy.REST_FOR_ONE, Strategy.ONE_FOR_ALL)


@dataclass(frozen=True)
class Report:
    """Something the supervisor will be told."""

    word: str
    child: Child
    exit: Exit | None = None


class PaperChildren:
    """The attributes are those of `PlanWorld`, which explains them."""

    setup: Setup
    now: float
    dynamic: bool
    hard: bool
    stopping: bool
    ended: bool
    final: PlanAction | None
    state: PlanState
    children: dict[str, Child]
    facts: list[Fact]
    late: list[str]
    killed: list[str]
    restarts: list[float]
    queue: deque[Report]
    adds: dict[str, list[str] | None]
    removes: dict[int, tuple[Child, str | None]]
    _due: list[Report]
    _seen: deque[Seen]
    _known_late: set[tuple[Child, int]]
    _cursor: list[Child] | None
    _stop_begun: set[Child]
    _graces: dict[str, float]

    # ------------------------------------------------------------------ what children do

    def _end(self, child: Child, how: str, *, go_on: bool = True) -> None:
        """Its function ends: how is crash, return, or cancel."""
        assert child.alive
        exit_: Exit = Returned() if child.asked_at is None else Stopped()
        if how == "crash":
            exit_ = Crashed(error=Boom(f"{child.id}.{child.number}"))
            if child.asked_at is not None or child.killed_at is not None or self.stopping:
                self._late(child, True)
        elif how == "cancel" or child.killed_at is not None:
            exit_ = Killed()
        child.alive = False
        child.unwatch()
        child.last_exit = exit_
        child.state = State.DOWN
        if child.up:
            self._due.append(Report("down", child, exit=exit_))
        elif not self.stopping:
            self._due.append(Report("rejected", child, exit=exit_))
        if go_on:
            self._go_on_stopping()

    def _start_error(self, child: Child, exit_: Exit | None) -> StartFailed:
        error = StartFailed(child.id)
        slot = self.state.slots.get(child.id)
        if isinstance(exit_, Crashed):
            error.__cause__ = exit_.error
        elif child.start_cancelled and not (slot is not None and slot.leaving):
            error.__cause__ = TooSlow()
        return error

    def _late(self, child: Child, late: bool) -> None:
        if late and (child, child.number) not in self._known_late:
            self._known_late.add((child, child.number))
            self.late.append(f"{child.id}.{child.number}")

    def _timers(self, child: Child) -> None:
        if child.start_due <= self.now:
            self._cancel_start(child)
        if child.grace_due <= self.now:
            self._grace_over(child)
        if child.overrun_due <= self.now:
            assert child.killed_at is not None
            since = self.now - child.killed_at
            self.facts.append(("overrun", child.id, self.now, since, child.number))
            child.overrun_due += OVERRUN_S

    def _cancel_start(self, child: Child) -> None:
        child.start_due = math.inf
        child.start_cancelled = True
        if child.traits.manner is not Manner.STUBBORN:
            self._end(child, "cancel")

    def _stop_child(self, child: Child, grace_s: float) -> None:
        """Ask, or carry on where another stop has left off."""
        if grace_s == 0:
            self._kill(child)
            return
        if child.asked_at is None:
            child.asked_at = self.now
            child.state = State.STOPPING
            self.facts.append(("asked", child.id, self.now, grace_s, child.number))
        child.in_grace, child.grace_due = True, child.asked_at + grace_s
        no_time = self.hard or child.grace_due <= self.now
        if child.traits.manner is Manner.PROMPT and not (no_time and self._saw_killed(child)):
            self._end(child, "return")
        elif no_time:
            self._grace_over(child)

    def _saw_killed(self, child: Child) -> bool:
        """With no grace at all it is a race whether a prompt child is faster."""
        return ("down", child.id, "Killed", self.now) in self._seen

    def _grace_over(self, child: Child) -> None:
        child.in_grace, child.grace_due = False, math.inf
        if child.killed_at is None:
            self.facts.append(("grace over", child.id, self.now, 0.0, child.number))
        self._kill(child)

    def _kill(self, child: Child) -> None:
        if child.killed_at is None:
            child.killed_at = self.now
            child.state = State.STOPPING
            if child.up:
                self.killed.append(child.id)
        child.overrun_due = child.killed_at + OVERRUN_S
        while child.overrun_due <= self.now:
            child.overrun_due += OVERRUN_S
        if child.traits.manner is not Manner.STUBBORN:
            self._end(child, "cancel")

    # ------------------------------------------------------------------- the ordered stop

    def _begin_stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        for child in list(self.children.values()):
            child.unwatch()
            if child.starting and not child.start_cancelled:
                self._cancel_start(child)
        for event in self.state.deferred:
            self._late(self.children[event.id], isinstance(event.exit, Crashed))
        self._cursor = list(self.children.values())
        self._go_on_stopping()

    def _go_on_stopping(self) -> None:
        """Last first, each waited for; the children of a pool all at once."""
        if self._cursor is None:
            return
        for child in reversed(list(self._cursor)):
            if child not in self._cursor:
                continue
            if child.alive and child not in self._stop_begun:
                self._stop_begun.add(child)
                if child.up:
                    self._stop_child(child, self._grace_of(child))
                else:
                    self._kill(child)
            if child.alive:
                if self.dynamic:
                    continue
                return
            if child in self._cursor:
                self._cursor.remove(child)
                self._over_with(child)
        if not self._cursor:
            self.ended = True
            for id_, result in self.adds.items():
                self.adds[id_] = ["ActorGone"] if result is None else result

    def _grace_of(self, child: Child) -> float:
        if child.id in self._graces:
            return self._graces[child.id]
        if self.stopping and self.dynamic and self.setup.pool_grace_s is not None:
            return self.setup.pool_grace_s
        return child.traits.grace_s

    def _over_with(self, child: Child) -> None:
        child.state = State.ENDED
        for ticket, (who, _) in self.removes.items():
            if who is child:
                self.removes[ticket] = (who, type(child.last_exit).__name__)

    # ------------------------------------------------------------------ what always holds

    def check(self) -> None:
        recent = [t for t in self.restarts if t >= self.now - PERIOD_S]
        assert len(recent) <= self.setup.budget + (1 if isinstance(self.final, GiveUp) else 0)
        busy = any(child.under_way for child in self._living())
        if self.queue or self.stopping or busy:
            return
        assert not self.state.deferred
        for slot in self.state.slots.values():
            child = self.children[slot.id]
            assert child.alive is (slot.phase is Phase.UP)
            if slot.phase in (Phase.UP, Phase.ENDED):
                continue
            assert slot.phase is Phase.DOWN
            assert self.state.wake_at is not None, "down, with nothing to wait for"
            if self.setup.strategy not in GROUPS:
                assert slot.not_before >= self.state.wake_at
        up = [c for c in self._living() if c.up]
        if self.setup.strategy in GROUPS:
            assert [c.began for c in up] == sorted(c.began for c in up), "kept while one before it"
        if self.setup.strategy is Strategy.ONE_FOR_ALL:
            assert all(c.epoch == len(self.restarts) for c in up), "outlived a restart of all"
        if self.setup.auto is AutoShutdown.ANY:  # (nobody in a pool is significant)
            assert not any(c.traits.significant and c.done_with for c in self.children.values())
