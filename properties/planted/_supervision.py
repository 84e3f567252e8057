"""What a supervisor decides, and an autoscaler."""

from __future__ import annotations

from shove_actors.actors import _plan
from shove_actors.actors._backoff import Backoff
from shove_actors.actors._intensity import RestartWindow
from shove_actors.actors._plan import _Step
from shove_actors.runtime import _scaling

from ._defect import Defect, edit

_BOTH = ("plan", "supervisor")

SUPERVISION = (
    Defect(
        name="restart-budget-off-by-one",
        wrong="A supervisor gives up with the last restart that its budget allows.",
        by="end",
        machines=_BOTH,
        plants=(
            edit(
                RestartWindow,
                "exceeded",
                ("len(self.times) > limit", "len(self.times) >= limit"),
            ),
        ),
    ),
    Defect(
        name="temporary-is-restarted",
        wrong="A temporary child that crashes is started again.",
        by="end",
        machines=_BOTH,
        plants=(edit(_plan, "restarts", ("restart is Restart.TRANSIENT and not", "not")),),
    ),
    Defect(
        name="stops-first-to-last",
        wrong="A group that is restarted is stopped in the order in which it was started.",
        by="end",
        machines=_BOTH,
        plants=(
            edit(_Step, "advance", ("reversed(self._slots.values())", "self._slots.values()")),
        ),
    ),
    Defect(
        name="one-for-all-spares-the-first",
        wrong="Under one_for_all the children before the one that crashed go on.",
        by="end",
        machines=_BOTH,
        plants=(
            edit(
                _Step,
                "_group_of",
                ("if self._state.strategy is Strategy.ONE_FOR_ALL:", "if False:"),
                (
                    "if self._state.strategy is Strategy.REST_FOR_ONE:",
                    "if self._state.strategy is not Strategy.ONE_FOR_ONE and not self._dynamic:",
                ),
            ),
        ),
    ),
    Defect(
        name="followers-do-not-wait",
        wrong="Under rest_for_one a child is started while one before it is down.",
        by="end",
        machines=_BOTH,
        plants=(
            edit(
                _Step,
                "_next_due",
                ("if self._state.strategy is not Strategy.ONE_FOR_ONE:", "if False:"),
            ),
            # The pause of who crashed is that of all behind it as well: the other defence.
            edit(_Step, "_drag_down", ("max(slot.not_before, not_before)", "slot.not_before")),
        ),
    ),
    Defect(
        name="backoff-not-kept",
        wrong="A child is started again before its pause is over.",
        by="end",
        machines=_BOTH,
        plants=(edit(_Step, "_next_due", ("if slot.not_before <= self._now:", "if True:")),),
    ),
    Defect(
        name="backoff-without-cap",
        wrong="The jitter makes a pause longer than its cap.",
        by="end",
        machines=_BOTH,
        plants=(
            edit(
                Backoff,
                "delay_s",
                (
                    "return min(self.max_s, base * (1 + self.jitter * draw))",
                    "return base * (1 + self.jitter * draw)",
                ),
            ),
        ),
    ),
    Defect(
        name="deferred-exit-dropped",
        wrong="A child that dies while others are restarted is forgotten.",
        by="end",
        machines=_BOTH,
        plants=(edit(_Step, "apply", ("self._deferred.append(event)", "pass")),),
    ),
    Defect(
        name="autoscaler-without-cooldown",
        wrong="The autoscaler changes the number of consumers again before its cooldown is over.",
        by="property",
        machines=("autoscaler",),
        plants=(edit(_scaling, "stabilise", (" or now - state.acted_at < config.cooldown", "")),),
    ),
)
