"""Delays, time-outs, shards, what is stored twice: where nothing that went wrong accounts for it.
And processes that stood still."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from shove_actors.testing import Event, check_history

from .test_checker import RULES, Story, plain
from .test_checker_letters import breach

CALM = replace(RULES, calm=True, retry_delays=(1.0, 3.0))
FAULT = Event("fault", 0.0, detail="Slow(for_s=9.0)")


# ----------------------------------------------------------------------------- delays


@pytest.mark.parametrize("make", [Story, plain])
@pytest.mark.parametrize(
    ("after", "waited", "right"),
    [
        (0.0, 0.9, False),
        (0.0, 1.0, True),
        (0.2, 0.2, True),  # sooner than the topic's delay, as it has asked
        (0.2, 0.1, False),
        (2000.0, 2000.0, True),
        (2000.0, 1500.0, False),
    ],
)
def test_a_retry_comes_when_its_handler_has_asked_for_it(
    make: type[Story], after: float, waited: float, right: bool
) -> None:
    story = make().handled(1, "retry", after=after).waits(waited - 1.0).handled(1, attempt=1)
    found = breach(story, CALM)
    assert (found == "") is right
    assert right or ("its handler asked for" in found) is bool(after)


def test_the_delay_of_one_retry_is_not_that_of_the_next() -> None:
    story = Story().handled(1, "retry", after=0.5).handled(1, "retry", attempt=1).waits(2.0)
    assert breach(story.handled(1, attempt=2), CALM) == ""
    story = Story().handled(1, "retry", after=50.0).waits(50.0).handled(1, "raised", attempt=1)
    assert "the delay of that retry is 3 s" in breach(story.handled(1, attempt=2), CALM)


@pytest.mark.parametrize(
    ("after", "waited", "right"),
    [(0.0, 1.0, True), (0.0, 0.5, False), (0.2, 0.2, True), (5.0, 4.0, False), (5.0, 5.0, True)],
)
def test_what_is_put_off_waits(after: float, waited: float, right: bool) -> None:
    story = plain().handled(1, "defer", after=after).waits(waited - 1.0).started(1, sequence=7)
    found = breach(story, CALM, complete=False)
    assert (found == "") is right
    assert right or "m1 was put off for" in found
    # What has gone wrong may have had it delivered twice.
    story.events.insert(0, FAULT)
    assert breach(story, CALM, complete=False) == ""


@pytest.mark.parametrize("make", [Story, plain])
def test_an_attempt_whose_audit_is_missing_comes_again_under_its_number(make: type[Story]) -> None:
    assert breach(make().handled(1, "unaudited").handled(1).settled(1), CALM) == ""
    assert "no attempt with retry count 0" in breach(
        make().handled(1, "unaudited").handled(1, attempt=1), CALM
    )


@pytest.mark.parametrize(
    ("delay", "waited", "right"),
    [
        (30.0, 9.0, True),  # with its lease, long before the retry is due
        (30.0, 30.5, False),
        (30.0, 0.5, False),
        (1.0, 1.5, False),
        (1.0, 9.0, True),
    ],
)
def test_an_attempt_whose_note_is_missing_comes_with_its_lease(
    delay: float, waited: float, right: bool
) -> None:
    for asked in (0.0, delay):
        rules = replace(CALM, retry_delays=(2.5,) if asked else (delay,))
        story = Story().handled(1, "retry", after=asked)
        story.events.append(Event("fault", story.now, "w1", detail="Crash('w1')"))
        story.waits(waited - 1.0).started(1, process="w2")
        found = breach(story, rules, complete=False)
        assert (found == "") is right


# --------------------------------------------------------------------------- time-outs


@pytest.mark.parametrize("outcome", ["ack", "reject", "raised"])
@pytest.mark.parametrize(
    ("took", "late", "right"),
    [(30.2, False, True), (31.0, False, False), (100.0, True, True), (29.0, False, True)],
)
def test_a_handler_ends_soon_after_its_time_out(
    outcome: str, took: float, late: bool, right: bool
) -> None:
    """`late`: it was told to stop, and shields itself."""
    story = Story().started(1).waits(took - 1.0).ended(1, outcome, late=late)
    found = breach(story, CALM)
    assert (found == "") is right
    assert right or "nobody had told it to stop; its time-out is 30 s" in found
    assert breach(story, RULES) == ""  # whose clocks may be anything
    assert breach(story, replace(CALM, handler_timeout=None)) == ""


# ----------------------------------------------------------------------- stored twice


@pytest.mark.parametrize("make", [Story, plain])
def test_stored_twice_under_one_id(make: type[Story]) -> None:
    def story(pause: float) -> Story:
        return make().published(1).waits(pause - 1.0).published(1, sequence=9).remaining(1)

    assert "B m1 is stored twice, as 1 and as 9, within 5 s" in breach(story(5.0), CALM)
    assert breach(story(5.0), RULES) == ""  # a server that forgets may have been restarted
    assert breach(story(121.0), CALM) == ""
    # Who heard of it late, and whoever was restarted meanwhile.
    disturbed = story(5.0)
    disturbed.events.insert(1, Event("fault", 2.0, detail="RestartServer(down_s=0.0)"))
    assert breach(disturbed, CALM) == ""
    assert breach(make().published(1).published(1, duplicate=True).handled(1), CALM) == ""


# ----------------------------------------------------------------------------- shards


def test_a_key_in_two_shards() -> None:
    def story(between: str) -> Story:
        found = Story().handled(1).settled(1)
        if between:
            found._add("fault", topic=between, detail="resharded")
        return found.handled(2, shard=3).settled(2)

    found = breach(story(""), CALM)
    assert "O m2 of key 'k' is handled in shard 3, but earlier ones were in shard 0" in found
    assert breach(story(""), RULES) == ""
    assert breach(story("q"), CALM) == ""
    assert breach(story("another"), CALM).startswith("O")


# ----------------------------------------------------------------- of nobody, and again


@pytest.mark.parametrize("make", [Story, plain])
def test_what_nobody_has_published(make: type[Story]) -> None:
    rules = replace(RULES, publishes=True)
    assert "L m1 was handled, and nobody has published it" in breach(make().handled(1), rules)
    assert breach(make().handled(1), RULES) == ""
    assert breach(make().handled(1).published(1), rules) == ""
    # Nobody was told what became of it; or it was there already.
    assert breach(make()._add("unconfirmed", 1).handled(1), rules) == ""
    assert breach(make().published(1, duplicate=True).handled(1), rules) == ""
    # Repeated while nobody remembered its id; the answer came after the first was handled.
    late = make().handled(1).published(1, sequence=9)
    assert breach(late.handled(1, sequence=9), rules) == ""
    # Its dead letter, published once more.
    again = make().published(1).handled(1, "reject").dead(1, "rejected").handled(1, sequence=9)
    assert breach(again, rules) == ""


@pytest.mark.parametrize("make", [Story, plain])
def test_what_is_older_than_the_history(make: type[Story]) -> None:
    """Nothing is known of it; unless everybody who publishes is recorded."""
    rules = replace(RULES, publishes=True)
    letter = make().dead(1, "rejected")
    assert breach(letter, RULES) == ""
    assert "B m1 is a dead letter because it was rejected" in breach(letter, rules)
    retried = make().handled(1, attempt=2)
    assert breach(retried, RULES) == ""
    assert "B m1 comes as retry 2" in breach(retried, rules)
    # From there on it is known.
    retried = make().handled(1, attempt=1)
    assert "B m1 is tried again, as retry 3" in breach(retried.handled(1, attempt=3), RULES)


def test_a_dead_letter_that_an_operator_publishes_once_more() -> None:
    story = Story().published(1).handled(1, "reject").handled(1, sequence=9)
    assert breach(story, RULES) == ""
    assert "L m1 is lost" in breach(Story().published(1).handled(1, "reject"), RULES)


def test_discarded_where_there_are_no_dead_letters() -> None:
    rules = replace(RULES, dead_letters=False, fail_all=True)
    raw = Story().published(1)
    raw.events[-1] = structs.replace(raw.events[-1], detail="raw 1")
    assert breach(raw, rules) == ""
    assert "L m1 is lost" in breach(Story().published(1), rules)


def test_a_dead_letter_that_a_replay_has_handled_is_not_replayed_again() -> None:
    story = Story().handled(1, "reject").dead(1, "rejected").handled(1, detail="replay")
    again = story.handled(1, detail="replay")
    assert "B dead letter m1 is replayed again" in breach(again, CALM)
    assert breach(again, RULES) == ""
    again.events.insert(0, FAULT)
    assert breach(again, CALM) == ""
    twice = Story().handled(1, "reject").dead(1, "rejected", letter=1)
    twice.handled(1, "reject", detail="replay").dead(1, "rejected", letter=2)
    assert breach(twice.handled(1, detail="replay"), CALM) == ""


# ---------------------------------------------------------------------- standing still


def stopped(*, told: bool = True, make: type[Story] = Story) -> Story:
    """w1 is stopped in the middle of a handler, and w2 gets its message."""
    story = make().process("opened").process("opened", "w2").published(1).started(1)
    if told:
        story._add("fault", process="w1", detail="stopped")
    return story.waits(40.0)


@pytest.mark.parametrize("make", [Story, plain])
@pytest.mark.parametrize("outcome", ["ack", "retry", "raised", "cancelled", "reject"])
def test_what_a_stopped_process_had_running_stands_still(make: type[Story], outcome: str) -> None:
    story = stopped(make=make).started(1, process="w2")
    story._add("fault", process="w1", detail="resumed")
    story.ended(1, outcome).ended(1, "ack", process="w2")
    story.process("closed").process("closed", "w2")
    for rules in (RULES, CALM):
        assert breach(story, rules) == ""
    # That of the other one is in flight all the same.
    events = story.events[:6]
    events.append(replace_process(events[-1], "w3"))
    violation = check_history(events, RULES)
    assert violation is not None
    assert violation.rule == "I"
    assert "w3 handles m1 while w2 still" in violation.sentence


def replace_process(event: Event, process: str) -> Event:
    return Event("started", event.time, process, event.topic, event.id, event.key, event.shard, 1)


def test_without_being_told_it_is_in_flight() -> None:
    assert breach(stopped(told=False).started(1, process="w2")).startswith("I")


def test_a_stopped_process_that_nobody_has_missed() -> None:
    """Its message is acknowledged, late, and counts; what it begins afterwards is in flight."""
    story = stopped()._add("fault", process="w1", detail="resumed").ended(1, "ack")
    assert breach(story, CALM) == ""
    story.started(2).started(3, key="j", process="w2")
    assert breach(story).startswith("I")


def test_a_stopped_process_that_is_killed_then() -> None:
    story = stopped().process("crashed").handled(1, process="w2").settled(1)
    story.process("opened").handled(2).settled(2)
    assert breach(story, CALM) == ""
