"""What all parts of a `Checker` share: where it is in the history, and what has gone wrong."""

from __future__ import annotations

import math

from ._history import Event
from ._rules import HistoryViolation, Letter, Violation

#: A delay is compared with this much of it: clocks round.
ALMOST = 0.999
#: Seconds for which what goes wrong may last.
LASTS_S = 30.0
#: How much later than its delay a retry may come, and be due to it rather than to a lease.
SOON_S = 1.0


class CheckPart:
    """`index`: of the event that is looked at."""

    def __init__(self) -> None:
        self.index = -1
        #: Faults and killed processes so far, and the time of the last one.
        self._troubles = 0
        self._trouble_at = -math.inf
        #: Something has gone wrong by now, a process has ended otherwise than in order.
        self._disturbed = False
        #: A durable was deleted: the next one counts deliveries, and so retries in place, from one.
        self._recounts = False
        #: When something happened last that may keep a note from being written; see `_not_noted`.
        self._noteless_at = -math.inf
        #: When the server was restarted, and when a durable was deleted.
        self._restarts: list[float] = []
        self._deletions: list[float] = []
        #: Up to which message a server may have forgotten that it has delivered it.
        self._forgotten = 0.0
        self._knows_settled = False

    def _breach(
        self,
        rule: Letter,
        event: Event,
        sentence: str,
        *,
        end: bool = False,
        about: Event | None = None,
    ) -> HistoryViolation:
        return HistoryViolation(
            Violation(
                rule=rule,
                sentence=sentence,
                index=None if end else self.index,
                event=event,
                about=about if about is not None else event,
            )
        )
