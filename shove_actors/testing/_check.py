"""The invariants over a whole history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath

from shove_actors._errors import UsageError

from ._checker import Checker
from ._given import kind_of
from ._history import Event
from ._rules import HistoryRules, HistoryViolation, Violation


def check_history(
    history: Iterable[Event],
    rules: HistoryRules | Mapping[str, HistoryRules] | None = None,
    *,
    complete: bool = False,
) -> Violation | None:
    """The first breach of an invariant in a recorded history, None if there is none.

        violation = check_history(History.read("worker-1.jsonl", "worker-2.jsonl"), rules)
        assert violation is None, violation

    `rules`: for all topics, or by topic. `complete`: the history is over, and what is still stored
    is in it as `remaining`; only then can anything be missed (L, and what was passed over). Pure:
    it looks at nothing else. Some hundred thousand events per second.
    """
    if isinstance(history, (str, bytes, PurePath)) or not isinstance(history, Iterable):
        raise UsageError(
            f"history is {kind_of(history)}: give a History (of a file, History.read(path))"
        )
    events = history if isinstance(history, (list, tuple)) else list(history)
    checker = Checker(rules)
    feed = checker.feed
    try:
        for event in events:
            feed(event)
        if complete:
            checker.finish()
    except HistoryViolation as exc:
        return exc.violation.told_from(events)
    return None
