"""Subjects: form, matching and overlap."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shove_actors._errors import TopologyError
from shove_actors.messaging._subjects import check_pattern, is_literal, matches, overlap


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a.b", False),
        ("a.b", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        (">", "a", True),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
    ],
)
def test_matches(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.*", "*.b", True),
        ("a.*", "b.*", False),
        ("a.>", "a", False),
        ("a.>", "*.b.c", True),
        ("*", "a.b", False),
        ("*.*", "a.>", True),
        (">", "a.b.c", True),
    ],
)
def test_overlap(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is expected
    assert overlap(other, one) is expected


_LITERALS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(".".join)
_PATTERNS = st.builds(
    lambda tokens, tail: ".".join([*tokens, *tail]),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)


def _universe(depth: int) -> list[str]:
    level = [""]
    found: list[str] = []
    for _ in range(depth):
        level = [f"{s}.{t}".lstrip(".") for s in level for t in "abc"]
        found += level
    return found


_UNIVERSE = _universe(5)


@given(one=_PATTERNS, other=_PATTERNS)
@example(one="a.>", other="a")
def test_two_patterns_overlap_exactly_when_a_subject_matches_both(one: str, other: str) -> None:
    common = any(matches(one, s) and matches(other, s) for s in _UNIVERSE)
    assert overlap(one, other) == common


@given(subject=_LITERALS, pattern=_PATTERNS)
def test_for_a_literal_overlapping_is_matching(subject: str, pattern: str) -> None:
    assert is_literal(subject)
    assert overlap(subject, pattern) == matches(pattern, subject)


@pytest.mark.parametrize("subject", [">", "*.>", "*.x", "$JS.API.x", "$SYS.x", "_INBOX.a.b"])
def test_subjects_of_the_server_are_refused(subject: str) -> None:
    with pytest.raises(TopologyError, match="belongs to the server"):
        check_pattern(subject)


@pytest.mark.parametrize("subject", ["a*", "a.b>", "a.>.b", "x" * 1025, 7, "\u00e9"])
def test_malformed_patterns_are_refused(subject: object) -> None:
    with pytest.raises(TopologyError, match="nats_subjects"):
        check_pattern(subject)  # type: ignore[arg-type]


@pytest.mark.parametrize("subject", ["a", "a.b", "a.*", "a.>", "*", "a.*.c"])
def test_ordinary_patterns_are_accepted(subject: str) -> None:
    check_pattern(subject)
