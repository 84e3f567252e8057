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


CALM = replace(RULES, calm=True, retry_delays=(1.0, 3.0))


@pytest.mark.parametrize(
    ("troubles", "most"),
    [
        ([], 3),
        (["Crash('w9')"], 3),
        (["RestartServer()"], 4),
        (["RestartServer()", "RestartServer()"], 5),
        (["DeleteConsumer('q', 'q-shard-0')"], 7),
        (["DeleteConsumer('q', 'q-shard-0')", "RestartServer()"], 8),
    ],
)
def test_so_many_may_die_of_a_message(troubles: list[str], most: int) -> None:
    """`most` of them, before one that dies of it is one too many: with each life of the durable its
    deliveries are counted anew, and a server that was killed may have forgotten one."""

    def story(deaths: int) -> Story:
        found = Story().published(1).process("opened")
        for number in range(deaths + 1):
            found.started(1)
            found.process("crashed").process("opened")
            if number == 0:
                for detail in troubles:
                    found._add("fault", detail=detail)
        return found

    assert check_history(story(most).events, CALM) is None
    violation = check_history(story(most + 1).events, CALM)
    assert violation is not None
    assert violation.sentence == f"m1 is tried again, after {most + 1} processes died of it"


def test_what_happened_before_a_message_came_does_not_spare_it() -> None:
    story = Story()
    for _ in range(3):
        story._add("fault", detail="DeleteConsumer('q', 'q-shard-0')")
    story.published(1).process("opened")
    for _ in range(5):
        story.started(1).process("crashed").process("opened")
    violation = check_history(story.events, CALM)
    assert violation is not None
    assert "after 4 processes died of it" in violation.sentence


@pytest.mark.parametrize(
    ("trouble", "waited", "right"),
    [
        ("Crash('w1')", 1.5, False),
        ("LoseAck()", 1.5, False),
        ("Crash('w1')", 9.0, True),  # when its lease is over: it was never handed back
        ("Stall(for_s=9.0)", 1.5, True),  # the note was not written in time
        ("hard stop", 1.5, True),
    ],
)
def test_an_attempt_that_has_failed_comes_again_only_with_its_lease(
    trouble: str, waited: float, right: bool
) -> None:
    story = Story().published(1).handled(1, "retry")
    failed_at = story.now
    story.events.append(Event("fault", failed_at, "w1", detail=trouble))
    story.now = failed_at + waited - 1.0
    story.started(1, process="w2")
    violation = check_history(story.events, CALM)
    assert (violation is None) is right
    assert violation is None or "it was handed back before that was noted" in violation.sentence


def test_nor_soon_after_something_else_went_wrong() -> None:
    """A link that was stalled may be so still."""
    for before, right in ((29.0, True), (31.0, False)):
        story = Story().published(1)
        story._add("fault", detail="Stall(for_s=20.0)")
        story.now += before - 2.0
        story.handled(1, "retry")
        story.events.append(Event("fault", story.now, "w1", detail="Crash('w1')"))
        story.now += 0.5
        story.started(1, process="w2")
        violation = check_history(story.events, CALM)
        assert (violation is None) is right
