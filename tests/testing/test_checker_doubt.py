"""Where a history cannot say what was whose fault: as lenient as that, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shove_actors.testing import Event, check_history

from .test_checker import RULES, Story


@pytest.mark.parametrize("sequenced", [False, True])
@pytest.mark.parametrize(("last", "silent"), [(0, True), (3, True), (1, False)])
def test_what_a_server_forgot_may_be_handled_twice_at_a_time_but_on_no_shard(
    sequenced: bool, last: int, silent: bool
) -> None:
    """`last`: what was stored last when the server was restarted; 0: nobody knows."""
    story = Story(sequenced=sequenced).published(1, 2, 3)
    fault = Event("fault", 3.5, sequence=last, detail="RestartServer(down_s=0.0)")
    story.events.append(fault)
    story.started(2).started(2, process="w2")
    violation = check_history(story.events, RULES)
    assert (violation is None) is (silent and not sequenced)
    assert violation is None or violation.rule == "I"


@pytest.mark.parametrize(
    ("told", "right"),
    [
        ([], False),
        (["suspected"], False),
        (["suspected", "crashed"], True),
        (["crashed", "suspected"], True),  # it may still be under way
        (["suspected", "crashed", "over"], False),
        (["suspected", "fault"], True),
    ],
)
def test_who_is_convicted_was_tried_when_something_went_wrong(told: list[str], right: bool) -> None:
    story = Story(sequenced=False).published(1)
    for word in told:
        if word in ("crashed", "fault"):
            story.process(word, "w9")
        else:
            story._add("suspected", 1, process="", detail="over" if word == "over" else "")
    story.dead(1, "crashed")
    violation = check_history(story.events, replace(RULES, suspects=True))
    assert (violation is None) is right
    assert violation is None or "none was killed by it" in violation.sentence
