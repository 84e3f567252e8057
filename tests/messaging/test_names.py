"""Names: what the server would refuse late is refused when the topology is built."""

from __future__ import annotations

import pytest

from shove_actors._errors import TopologyError
from shove_actors.messaging import SequenceFailure, TopologyBuilder
from shove_actors.messaging._names import MAX_NAME_BYTES, check_name, hold_name


@pytest.mark.parametrize("queue", ["a b", "a\tb", "a\nb", "a\r\nb", "a\x00b", "a\x7fb", " ", "a "])
def test_pc057_white_space_and_control_characters_are_refused_at_build(queue: str) -> None:
    """One such subject is a protocol error that disconnects every user of the connection."""
    with pytest.raises(TopologyError, match=r"queue name .* may not contain"):
        TopologyBuilder(queue).build()


@pytest.mark.parametrize("subject", ["a..b", ".a", "a.", "a b", "a\nb", "a\t.b", ""])
def test_pc057_empty_tokens_and_white_space_in_subjects_are_refused(subject: str) -> None:
    with pytest.raises(TopologyError, match="subject"):
        TopologyBuilder("q").nats_subjects([subject]).build()
    with pytest.raises(TopologyError, match="subject"):
        TopologyBuilder("q").build().check_subject(subject)


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ("a.b", "separates subject tokens"),
        ("a b", "separates protocol fields"),
        ("a*", "wildcard"),
        ("a>", "wildcard"),
        ("a/b", "path"),
        ("a\\b", "path"),
        ("", "is empty"),
        ("x" * 300, "300 bytes"),
        ("caf\u00e9", "not ASCII"),
        ("\u202eq", "not printable"),
        ("$JS", "belong to the server"),
    ],
)
def test_pc069_names_the_server_would_refuse_are_refused_at_build(queue: str, why: str) -> None:
    with pytest.raises(TopologyError, match=why):
        TopologyBuilder(queue).build()


def test_pc069_a_dead_letter_queue_name_is_held_to_the_same_rules() -> None:
    with pytest.raises(TopologyError, match=r"dead-letter queue name 'a\.b'"):
        TopologyBuilder("q").dlq_named("a.b").build()


@pytest.mark.parametrize(
    ("builder", "suffix"),
    [
        (lambda q: TopologyBuilder(q), "-consumer"),
        (lambda q: TopologyBuilder(q).dlq(), "-dlq-consumer"),
        (lambda q: TopologyBuilder(q).hold_queue(5), "-hold-5s-mover"),
        (lambda q: TopologyBuilder(q).hold_queue(0.25), "-hold-250ms-mover"),
        (
            lambda q: (
                TopologyBuilder(q)
                .sequenced(SequenceFailure.SKIP)
                .routing_shards(4096)
                .allow_message_loss()
            ),
            "-shard-4095",
        ),
    ],
)
def test_pc069_names_that_only_become_too_long_with_our_suffixes(builder, suffix) -> None:
    fits = "q" * (MAX_NAME_BYTES - len(suffix))
    builder(fits).build()
    with pytest.raises(TopologyError, match="256 bytes"):
        builder(fits + "q").build()


@pytest.mark.parametrize("name", ["orders", "ORDERS_1", "a-b", "a:b", "x", "q" * 255])
def test_ordinary_names_are_accepted(name: str) -> None:
    check_name(name, "queue name")


def test_a_name_that_is_no_str_is_refused() -> None:
    with pytest.raises(TopologyError, match="queue name must be a str, not int"):
        TopologyBuilder(7).build()  # type: ignore[arg-type]


def test_a_long_name_does_not_fill_the_message() -> None:
    with pytest.raises(TopologyError) as caught:
        TopologyBuilder("x" * 100_000).build()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("delay_ms", "name"),
    [
        (5_000, "q-hold-5s"),
        (120_000, "q-hold-120s"),
        (250, "q-hold-250ms"),
        (1_500, "q-hold-1500ms"),
        (1, "q-hold-1ms"),
    ],
)
def test_hold_names(delay_ms: int, name: str) -> None:
    assert hold_name("q", delay_ms) == name
