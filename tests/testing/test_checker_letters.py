"""What a message is given up for, and that nothing of its key is handled then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shove_actors.testing import Event, HistoryRules, check_history

from .test_checker import FAIL_ALL, RULES, Story, plain

CALM_FAIL_ALL = replace(FAIL_ALL, calm=True)
QUIET = HistoryRules(max_retries=2, fail_all=True, dead_letters=False)


def breach(story: Story, rules: HistoryRules = RULES, *, complete: bool = True) -> str:
    """Letter and sentence."""
    violation = check_history(story.events, rules, complete=complete)
    return "" if violation is None else f"{violation.rule} {violation.sentence}"


@pytest.mark.parametrize("make", [Story, plain])
@pytest.mark.parametrize(
    ("reason", "flaw"),
    [
        ("undecodable", "it does not decode"),
        ("oversize", "it is too large"),
        ("foreign_header", "it has headers of another hand"),
    ],
)
def test_what_was_handled_has_no_flaw_of_its_own(make: type[Story], reason: str, flaw: str) -> None:
    story = make().handled(1, "retry").dead(1, reason)
    assert breach(story) == f"B m1 is a dead letter because {flaw}, although it has been handled"


@pytest.mark.parametrize("make", [Story, plain])
@pytest.mark.parametrize(
    ("reason", "right"), [("undecodable", False), ("foreign_header", False), ("oversize", True)]
)
def test_nor_has_what_was_published_through_its_topic(
    make: type[Story], reason: str, right: bool
) -> None:
    """How large a message may be is its consumer's to say. The publisher may be told later."""
    for story in (make().published(1).dead(1, reason), make().dead(1, reason).published(1)):
        found = breach(story)
        assert (found == "") is right
        assert right or "pub has published it through its topic" in found


@pytest.mark.parametrize("make", [Story, plain])
def test_of_another_copy_under_the_same_id_that_says_nothing(make: type[Story]) -> None:
    assert breach(make().dead(1, "undecodable").published(1, sequence=9).remaining(1)) == ""


def test_a_foreign_message_may_be_undecodable() -> None:
    for reason in ("undecodable", "oversize", "foreign_header", ""):
        assert breach(Story().dead(1, reason).published(2).handled(2)) == ""


def test_a_reason_that_there_is_not() -> None:
    found = breach(Story().dead(1, "because"))
    assert found == "B m1 is a dead letter for a reason that there is not: because"


# ------------------------------------------------------------------------------- payloads


@pytest.mark.parametrize("make", [Story, plain])
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("started", "to its handler"),
        ("dead", "among the dead letters"),
        ("remaining", "in its stream"),
        ("held", "in its stream"),
    ],
)
def test_a_message_that_arrives_changed(make: type[Story], where: str, words: str) -> None:
    for digest, published, wrong in (
        ("aa", "aa", False),
        ("bb", "aa", True),
        ("bb", "", False),  # its publisher cannot say
        ("", "aa", False),
    ):
        for late in (False, True):
            story = make() if late else make().published(1, digest=published)
            if where == "started":
                story.started(1, digest=digest).ended(1, "ack")
            elif where == "dead":
                story.dead(1, "oversize", digest=digest)
            else:
                story._add(where, 1, digest=digest).handled(1)
            if late:
                story.published(1, digest=published)
            found = breach(story)
            assert (f"L m1 arrived changed {words}" in found) is wrong
            assert wrong or found == ""


def test_what_nobody_has_published_is_not_compared() -> None:
    assert breach(Story().started(1, digest="aa").ended(1, "ack").remaining(1)) == ""


def test_what_may_have_been_stored_counts_as_published() -> None:
    """A publish without an answer, repeated with another payload."""
    story = plain()._add("unconfirmed", 1, digest="aa").published(1, digest="bb")
    for digest, right in (("aa", True), ("bb", True), ("cc", False)):
        events = [*story.events, Event("started", 9.0, "w1", "q", "m1", sequence=1, digest=digest)]
        assert (check_history(events, RULES) is None) is right


# --------------------------------------------------------------------------------- poison


@pytest.mark.parametrize("reason", ["crashed", "undecodable", "oversize"])
@pytest.mark.parametrize("between", ["", "released"])
def test_nothing_is_handled_behind_a_dead_letter(reason: str, between: str) -> None:
    """Whether or not its key was marked."""
    story = Story()
    if reason == "crashed":
        story.started(1).process("crashed").process("opened")
    story.dead(1, reason)
    if between:
        story.key(between)
    story.handled(3)
    found = breach(story, FAIL_ALL)
    if between:
        assert found == ""
    else:
        assert found.startswith("P m3 is handled although m1, an earlier message of its key 'k'")
    assert breach(story, RULES) == ""  # SKIP goes on


def test_nor_behind_one_whose_retries_are_used_up() -> None:
    story = Story()
    for attempt in range(3):
        story.handled(1, "retry", attempt=attempt)
    story.dead(1, "max_retries_exceeded").dead(2, "sequence_failed").handled(3)
    assert "P m3 is handled although m1" in breach(story, FAIL_ALL)


def test_what_does_not_fail_a_key() -> None:
    # A letter that is stored when its key was marked and released already.
    story = Story().handled(1, "reject").key("poisoned", 1).key("released", 1)
    assert breach(story.dead(1, "rejected").handled(2), FAIL_ALL) == ""
    # That of another message, found by an inventory after the release.
    story = Story().dead(1, "oversize", letter=4).key("released")
    story.dead(1, "oversize", letter=4, found=True)
    assert breach(story.handled(2), FAIL_ALL) == ""
    # Headers that may say that it was no message of the key.
    assert breach(Story().dead(1, "foreign_header").handled(2), FAIL_ALL) == ""


@pytest.mark.parametrize(("last", "right"), [(1, False), (2, True)])
def test_a_release_without_effect(last: int, right: bool) -> None:
    """`last`: what was stored last by then. That may have been looked up before."""
    story = Story().published(1).handled(1, "reject").key("poisoned", 1).dead(1, "rejected")
    story._add("released", process="", topic="q", key="k", sequence=1, last=last)
    story.published(2).dead(2, "sequence_failed")
    found = breach(story, FAIL_ALL)
    assert (found == "") is right
    assert right or "the key had been released before it was published" in found
    # Poisoned again since.
    story.events.insert(-1, Event("poisoned", story.now, topic="q", key="k", sequence=1))
    assert breach(story, FAIL_ALL) == ""


def test_a_release_without_effect_when_nobody_has_noted_what_was_stored() -> None:
    for pause, right in ((0.0, False), (-0.5, True)):
        story = Story().published(1).handled(1, "reject").key("poisoned", 1).dead(1, "rejected")
        story.key("released", 1).waits(pause).published(2).dead(2, "sequence_failed")
        assert (breach(story, CALM_FAIL_ALL) == "") is right
        assert breach(story, FAIL_ALL) == ""
        # What has gone wrong by then may have kept the publisher from hearing of it.
        story.events.insert(0, Event("fault", 0.0, detail="Stall(for_s=9.0)"))
        assert breach(story, CALM_FAIL_ALL) == ""


def test_where_nothing_keeps_dead_letters_those_behind_a_failed_one_are_gone_too() -> None:
    story = Story().published(1, 2, 3).handled(1, "reject")
    assert breach(story, QUIET) == ""
    assert "m2 is lost" in breach(story, replace(QUIET, fail_all=False))
    # Not those before it, nor of other keys.
    assert "m1 is lost" in breach(Story().published(1, 2).handled(2, "reject"), QUIET)
    other = Story().published(1).published(2, key="j").handled(1, "reject")
    assert "m2 is lost" in breach(other, QUIET)
    # By a mark alone: it was no handler that failed.
    assert breach(Story().published(2).key("poisoned", 1), QUIET) == ""
    # One that kills whoever tries it is given up as well.
    assert breach(Story().published(1, 2).started(1).process("crashed"), QUIET) == ""


# ---------------------------------------------------------------------------- passed over


def test_a_message_that_is_given_up_after_a_later_one_was_handled() -> None:
    story = Story().handled(2).settled(2).dead(1, "oversize")
    assert "O m1 of key 'k' was passed over: it is given up only after m2" in breach(story)
    # By when it died an inventory says nothing.
    found = Story().handled(2).settled(2).dead(1, "oversize", found=True)
    assert breach(found) == ""
    # Its second letter, and that of one that was handled in its turn.
    assert (
        breach(Story().dead(1, "oversize", letter=1).handled(2).dead(1, "oversize", letter=2)) == ""
    )
    assert breach(Story().handled(1, "reject").dead(1, "rejected").handled(2)) == ""
