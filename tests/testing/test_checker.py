"""Each invariant fires on a history written to break it, and on no good one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from shove_actors._errors import UsageError
from shove_actors.testing import (
    Checker,
    Event,
    History,
    HistoryRules,
    HistoryViolation,
    check_history,
)

RULES = HistoryRules(max_retries=2, handler_timeout=30.0)
FAIL_ALL = replace(RULES, fail_all=True)


class Story:
    """A history in short words. Message n of key k: sequence n, shard 0."""

    def __init__(self, *, sequenced: bool = True) -> None:
        self.events: list[Event] = []
        self.sequenced = sequenced
        self.now = 0.0

    def _add(self, kind: Any, number: int | None = None, **facts: Any) -> Story:
        self.now += 1.0
        if number is not None:
            facts = {"topic": "q", "id": f"m{number}", "sequence": number, **facts}
            if self.sequenced:
                facts.setdefault("key", "k")
        facts.setdefault("process", "w1")
        self.events.append(Event(kind, self.now, **facts))
        return self

    def published(self, *numbers: int, **facts: Any) -> Story:
        for number in numbers:
            self._add("published", number, process="pub", **facts)
        return self

    def started(self, number: int, **facts: Any) -> Story:
        if self.sequenced:
            facts.setdefault("shard", 0)
        return self._add("started", number, **facts)

    def ended(self, number: int, outcome: str, **facts: Any) -> Story:
        if self.sequenced:
            facts.setdefault("shard", 0)
        return self._add("ended", number, outcome=outcome, **facts)

    def handled(self, number: int, outcome: str = "ack", **facts: Any) -> Story:
        return self.started(number, **facts).ended(number, outcome, **facts)

    def settled(self, number: int) -> Story:
        return self._add("settled", number, process="")

    def dead(self, number: int, reason: str, **facts: Any) -> Story:
        return self._add("dead", number, process="", detail=reason, **facts)

    def remaining(self, number: int) -> Story:
        return self._add("remaining", number, process="")

    def key(self, kind: str, sequence: int = 0, key: str = "k") -> Story:
        return self._add(kind, process="", topic="q", key=key, sequence=sequence)

    def process(self, kind: str, name: str = "w1") -> Story:
        return self._add(kind, process=name)

    def waits(self, seconds: float) -> Story:
        self.now += seconds
        return self

    def check(self, rules: HistoryRules = RULES, *, complete: bool = False) -> str:
        """The letter of the rule that is broken, "" for none; with its story checked."""
        violation = check_history(self.events, rules, complete=complete)
        if violation is None:
            return ""
        assert f"({violation.rule})" in str(violation)
        assert violation.sentence
        if violation.index is not None:
            assert self.events[violation.index] == violation.event
            assert any(line.startswith("-->") for line in violation.around)
        return violation.rule


def plain() -> Story:
    return Story(sequenced=False)


# ------------------------------------------------------------------------- good histories


@pytest.mark.parametrize(
    ("story", "rules"),
    [
        (Story(), RULES),
        (Story().published(1, 2).handled(1).handled(2), RULES),
        # A retry in place, then the next.
        (Story().published(1, 2).handled(1, "retry").handled(1, attempt=1).handled(2), RULES),
        # The budget used up exactly.
        (
            Story()
            .published(1, 2)
            .handled(1, "retry")
            .handled(1, "raised", attempt=1)
            .handled(1, "retry", attempt=2)
            .dead(1, "max_retries_exceeded")
            .handled(2),
            RULES,
        ),
        # A time-out is an attempt, an interruption is not.
        (
            Story()
            .published(1)
            .started(1)
            .waits(40)
            .ended(1, "cancelled")
            .started(1, attempt=1)
            .ended(1, "cancelled", attempt=1)
            .handled(1, attempt=1),
            RULES,
        ),
        # Killed in the handler: again, by another process, and not counted.
        (Story().published(1).started(1).process("crashed").handled(1, process="w2"), RULES),
        # What a killed process still says does not count.
        (Story().published(1).started(1).process("crashed").ended(1, "ack").remaining(1), RULES),
        # Killed again and again: a dead letter.
        (Story().published(1).started(1).process("crashed").dead(1, "crashed"), RULES),
        # Its note was lost, because something went wrong.
        (
            Story().published(1).handled(1, "retry").process("crashed").handled(1, process="w2"),
            replace(RULES, calm=True),
        ),
        # Two keys in two shards at once.
        (
            Story()
            .published(1)
            .published(2, key="j")
            .started(1)
            .started(2, key="j", shard=1, process="w2")
            .ended(1, "ack")
            .ended(2, "ack", key="j", shard=1, process="w2"),
            RULES,
        ),
        # An acknowledgement that got lost: the same message again, before the next.
        (Story().published(1, 2).handled(1).handled(1).settled(1).handled(2).settled(2), RULES),
        # Never handled, because it cannot be decoded: a foreign producer's.
        (Story().published(2).dead(1, "undecodable").handled(2), RULES),
        # Poisoned, refused, released, handled.
        (
            Story()
            .published(1, 2, 3)
            .handled(1, "reject")
            .key("poisoned", 1)
            .dead(1, "rejected")
            .dead(2, "sequence_failed")
            .key("released", 1)
            .handled(3),
            FAIL_ALL,
        ),
        # Repeated by its publisher when the server had forgotten its id.
        (
            Story()
            .published(1)
            .handled(1, "retry")
            .handled(1, attempt=1)
            .published(1, sequence=9)
            .handled(1, sequence=9),
            RULES,
        ),
        # A name that is used again.
        (
            Story()
            .process("opened")
            .published(1)
            .handled(1)
            .process("closed")
            .process("opened")
            .published(2)
            .handled(2),
            RULES,
        ),
        # On a plain topic: order is free, copies have sequences of their own.
        (
            plain()
            .published(1, 2)
            .handled(2)
            .handled(1, "retry")
            .handled(1, attempt=1, sequence=7),
            RULES,
        ),
        # Two messages at once, and one that is deferred for ever.
        (
            plain()
            .published(1, 2)
            .started(1)
            .started(2)
            .ended(1, "ack")
            .ended(2, "defer")
            .handled(2, "defer", sequence=8)
            .remaining(2),
            RULES,
        ),
        # Given up where nothing keeps it.
        (
            plain().published(1).handled(1, "reject"),
            replace(RULES, dead_letters=False),
        ),
        # A dead letter that an inventory finds as well.
        (
            Story()
            .published(1)
            .handled(1, "reject")
            .dead(1, "rejected", letter=4)
            .dead(1, "rejected", letter=4),
            RULES,
        ),
        # Two of one message, the second when the id of the first was forgotten: after its window.
        (
            Story()
            .published(1)
            .handled(1, "reject")
            .dead(1, "rejected", letter=4)
            .process("crashed")
            .waits(150)
            .handled(1, "reject", process="w2")
            .dead(1, "rejected", letter=5),
            RULES,
        ),
        # Two copies of a message, stored under one id when it had been forgotten.
        (
            plain()
            .published(1)
            .handled(1, "reject")
            .dead(1, "rejected")
            .published(1, sequence=9)
            .handled(1, "reject", sequence=9)
            .dead(1, "rejected", sequence=9),
            RULES,
        ),
        # Handled again by a replay, and given up again.
        (
            Story()
            .published(1)
            .handled(1, "reject")
            .dead(1, "rejected")
            .handled(1, "reject", detail="replay")
            .dead(1, "rejected"),
            RULES,
        ),
        # A duplicate is not stored a second time.
        (plain().published(1).handled(1).published(1, duplicate=True), RULES),
    ],
)
def test_a_good_history(story: Story, rules: HistoryRules) -> None:
    assert story.check(rules, complete=True) == ""
    # What is dropped from its end leaves it good: nothing is demanded too early.
    for length in range(len(story.events)):
        assert check_history(story.events[:length], rules) is None


# -------------------------------------------------------------------------- bad histories


@pytest.mark.parametrize(
    ("story", "rules", "words"),
    [
        # O
        (Story().handled(2).handled(1), RULES, "m1 of key 'k' is handled after m2"),
        (Story().handled(1, "retry").handled(2), RULES, "m2 of key 'k' is handled before m1"),
        (Story().handled(1, "cancelled").handled(2), RULES, "before m1"),
        # The handler has acknowledged it, but the server has not heard of it.
        (
            Story().handled(1).settled(1).handled(2).handled(3),
            RULES,
            "m3 of key 'k' is handled before m2",
        ),
        (
            Story().published(2, detail="batch 1").published(1, detail="batch 1"),
            RULES,
            "m1 of key 'k' was published after the message 2 of its key",
        ),
        # I
        (
            Story().started(1).started(2, key="other"),
            RULES,
            "two messages of shard 0 are in flight: w1 handles m2 while the same process",
        ),
        (
            Story().started(1).started(1, process="w2"),
            RULES,
            "w2 handles m1 while w1 still handles m1",
        ),
        (plain().started(1).started(1, process="w2"), RULES, "w2 handles m1 while w1 still does"),
        # B
        (
            Story().published(1).handled(1, attempt=1),
            RULES,
            "no attempt with retry count 0 has failed",
        ),
        (
            Story().started(1).ended(1, "cancelled").started(1, attempt=1),
            RULES,
            "no attempt with retry count 0 has failed",
        ),
        (Story().handled(1, "defer").handled(1), RULES, ""),
        (
            plain().handled(1, "defer").handled(1, attempt=1, sequence=3),
            RULES,
            "no attempt with retry count 0 has failed",
        ),
        (
            Story()
            .handled(1, "retry")
            .handled(1, "retry", attempt=1)
            .handled(1, "retry", attempt=2)
            .handled(1, attempt=3),
            RULES,
            "m1 is tried again, as retry 3 of 2",
        ),
        (
            Story().handled(1, "retry").handled(1, "retry", attempt=1).handled(1),
            RULES,
            "comes as retry 0, but it had been retry 1",
        ),
        (
            Story().handled(1, "retry").dead(1, "max_retries_exceeded"),
            RULES,
            "its 2 retries are used up, after 1 failed attempt",
        ),
        (Story().handled(1).dead(1, "rejected"), RULES, "nobody did that"),
        (Story().handled(1, "retry").dead(1, "crashed"), RULES, "none was killed by it"),
        # Given up twice.
        (
            Story().handled(1, "reject").dead(1, "rejected").dead(1, "rejected"),
            RULES,
            "m1 has a second dead letter of the same copy",
        ),
        (
            plain().handled(1, "reject").dead(1, "rejected").dead(1, "rejected"),
            RULES,
            "m1 has a second dead letter of the same copy",
        ),
        (
            Story()
            .handled(1, "reject")
            .dead(1, "rejected", letter=1)
            .dead(1, "rejected", letter=2, duplicate=True),
            RULES,
            "m1 has a second dead letter of the same copy",
        ),
        (
            Story().handled(1, "retry").handled(1, "retry"),
            replace(RULES, calm=True),
            "m1 comes as retry 0 again, although that attempt has failed",
        ),
        # P
        (
            Story().handled(1, "reject").key("poisoned", 1).handled(2),
            RULES,
            "m2 is handled although its key 'k' is poisoned",
        ),
        (
            Story().handled(1, "reject").handled(2),
            FAIL_ALL,
            "an earlier message of its key 'k' has failed for good",
        ),
        # T
        (
            Story().process("opened").started(1).process("closed"),
            RULES,
            "w1 has ended while its handler of m1 was still running",
        ),
        (
            Story().process("opened").process("closed").started(1),
            RULES,
            "w1 called a handler for m1 after it had ended",
        ),
        (
            Story().process("opened").process("crashed").started(1),
            RULES,
            "w1 called a handler for m1 after it was killed",
        ),
    ],
)
def test_a_bad_history(story: Story, rules: HistoryRules, words: str) -> None:
    violation = check_history(story.events, rules)
    if not words:
        assert violation is None
        return
    assert violation is not None
    assert words in violation.sentence
    assert story.check(rules) == violation.rule
    # Without its letter the rule is silent; with it alone it speaks.
    others = "".join(set("OILBPT") - {violation.rule})
    rest = check_history(story.events, replace(rules, only=others))
    assert rest is None or rest.rule != violation.rule
    alone = check_history(story.events, replace(rules, only=violation.rule))
    assert alone is not None
    assert alone.sentence == violation.sentence


@pytest.mark.parametrize(
    ("story", "rules", "rule", "words"),
    [
        (Story().published(1, 2).handled(1), RULES, "L", "m2 is lost"),
        (Story().published(1).started(1), RULES, "L", "m1 is lost"),
        (Story().published(1).handled(1, "retry"), RULES, "L", "m1 is lost"),
        (Story().published(1).handled(1, "reject"), RULES, "L", "m1 is lost"),
        (
            Story().published(1, 2).handled(2).remaining(1),
            RULES,
            "O",
            "m1 of key 'k' was passed over: m2",
        ),
        (
            Story().published(1).remaining(1),
            replace(RULES, quiescent=True),
            "L",
            "m1 is still stored",
        ),
    ],
)
def test_what_only_the_end_shows(story: Story, rules: HistoryRules, rule: str, words: str) -> None:
    assert story.check(rules) == ""
    violation = check_history(story.events, rules, complete=True)
    assert violation is not None
    assert (violation.rule, violation.index) == (rule, None)
    assert words in violation.sentence


# -------------------------------------------------------------------------------- the rest


def test_the_first_violation_is_told_with_its_story() -> None:
    story = Story().published(1, 2).handled(1, "retry")
    story.events.append(Event("started", 9.0, "w9", "other-topic", "x", None, None, 1))
    story.handled(2).handled(1, attempt=1)
    violation = check_history(story.events, RULES)
    assert violation is not None
    lines = str(violation).splitlines()
    assert lines[0].startswith("(O) m2 of key 'k' is handled before m1")
    assert any("m1" in line and "retry" in line for line in lines[1:])
    [marked] = [line for line in lines if line.startswith("-->")]
    assert "started" in marked
    assert "m2" in marked
    assert not any("other-topic" in line for line in lines)


def test_rules_by_topic_leave_others_alone() -> None:
    story = Story().handled(2).handled(1)
    assert check_history(story.events, {"other": RULES}) is None
    assert check_history(story.events, {"q": RULES}) is not None


def test_a_checker_speaks_at_once() -> None:
    checker = Checker(RULES)
    events = Story().handled(2).started(1).events
    for event in events[:-1]:
        checker.feed(event)
    with pytest.raises(HistoryViolation, match="handled after m2") as caught:
        checker.feed(events[-1])
    assert caught.value.violation.index == len(events) - 1
    assert checker.started == 2


def test_rules_are_validated() -> None:
    with pytest.raises(UsageError, match="only"):
        HistoryRules(only="OX")
    with pytest.raises(UsageError, match="max_retries"):
        HistoryRules(max_retries=-1)
    with pytest.raises(UsageError, match="handler_timeout"):
        HistoryRules(handler_timeout=0.0)


def test_two_hundred_thousand_events_per_second() -> None:
    """Measured in CPU time, at a fifth of the promise: the machine is shared."""
    history = History()
    for number in range(1, 20_001):
        key, shard = f"k{number % 50}", number % 16
        facts = ("q", f"m{number}", key, shard, number)
        history.add(Event("published", float(number), "pub", *facts[:3], None, number))
        history.add(Event("started", float(number), "w1", *facts))
        history.add(Event("ended", float(number), "w1", *facts, 0, "ack"))
        history.add(Event("settled", float(number), "", "q", f"m{number}", None, None, number))
    start = time.process_time()
    assert check_history(history, RULES, complete=True) is None
    rate = len(history) / (time.process_time() - start)
    assert rate > 40_000, rate
    print(f"{rate:,.0f} events per second")
