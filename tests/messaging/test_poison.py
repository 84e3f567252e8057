"""Records of poisoned keys, and the names they are kept under."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shove_actors.messaging import (
    PoisonRecord,
    decode_record,
    encode_record,
    letter_id,
    letter_origin,
    mark_name,
    poison_record,
)

#: What NATS clients take for a key of a bucket.
VALID = re.compile(r"[-/_=.a-zA-Z0-9]+")
ANY_KEY = st.text(st.characters(exclude_categories=()), max_size=300)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("order-17", "k-order-17"),
        ("a/b=c", "k-a/b=c"),
        ("", "b-"),
        ("a.b", "b-YS5i"),
        ("k-a", "k-k-a"),
        ("x" * 150, "k-" + "x" * 150),
        ("é", "b-w6k"),
    ],
)
def test_names_are_pinned(key: str, name: str) -> None:
    """They are on servers: a process of another version must find them."""
    assert mark_name(key) == name


def test_long_keys_are_hashed() -> None:
    assert mark_name("x" * 10_000) == (
        "h-e4ee97ec252749d2096447e849628d0d7734f51700416eefbb33574bf0b3ee75"
    )
    assert mark_name("é" * 100) != mark_name("é" * 101)


@given(ANY_KEY)
@example("\ud800")
@example("tab\t")
def test_every_key_has_a_valid_short_name(key: str) -> None:
    name = mark_name(key)
    assert VALID.fullmatch(name)
    assert not name.startswith(".")
    assert not name.endswith(".")
    assert ".." not in name
    assert len(name) <= 152


@given(ANY_KEY, ANY_KEY)
@example("YS5i", "a.b")
@example("", "b-")
@example("k-a", "a")
@example("A", "a")
def test_no_two_keys_share_a_name(one: str, other: str) -> None:
    assert (mark_name(one) == mark_name(other)) is (one == other)


@given(ANY_KEY, st.text(st.characters(exclude_categories=()), max_size=50))
def test_any_key_and_any_text_can_be_recorded(key: str, text: str) -> None:
    record = poison_record(
        key,
        shard=3,
        sequence=17,
        stored_ns=1_800_000_000_000_000_001,
        message_id=text,
        reason="rejected",
        cause="reject",
        detail=text,
        retries=2,
        poisoned_at="2026-01-01T00:00:00.000000001Z",
    )
    again = decode_record(encode_record(record), mark_name(key))
    assert again == record
    shown = again.shown()
    assert shown.key == key
    assert (shown.shard, shown.sequence, shown.reason, shown.cause) == (3, 17, "rejected", "reject")
    assert shown.since is not None
    assert again.about(17, 1_800_000_000_000_000_001)
    assert not again.about(17, 1_800_000_000_000_000_002)
    assert not again.about(16, 1_800_000_000_000_000_001)


def test_a_later_versions_record_is_read() -> None:
    raw = msgspec.json.encode({"shove_key": "k", "sequence": 7, "added": [1]})
    assert decode_record(raw, "k-k").sequence == 7


@pytest.mark.parametrize(
    ("name", "key"),
    [("k-acc-1", "acc-1"), ("b-YS5i", "a.b"), ("h-00", "h-00"), ("b-?", "b-?"), ("x", "x")],
)
@pytest.mark.parametrize("data", [b"", b"see ticket 17", b'{"sequence": "x"}', b"\xff"])
def test_what_is_not_a_record_still_poisons(name: str, key: str, data: bytes) -> None:
    record = decode_record(data, name)
    assert isinstance(record, PoisonRecord)
    assert record.shown().key == key
    assert record.shown().reason == ""
    assert record.shown().since is None
    assert not record.about(1, 1)


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        ({"Shove-Origin": "17.ff"}, (17, 255)),
        ({"Nats-Msg-Id": "a@b@3.a-dlq", "Shove-Original-Sequence": "3"}, (3, 10)),
        ({"Shove-Original-Sequence": "3"}, (3, 0)),
        ({"Shove-Origin": "x.ff", "Shove-Original-Sequence": "-3"}, None),
        ({}, None),
    ],
)
def test_where_a_letter_was(headers: dict[str, str], origin: tuple[int, int] | None) -> None:
    assert letter_origin(headers) == origin


@pytest.mark.parametrize(
    ("headers", "message_id"),
    [
        ({"Shove-Message-Id": "m", "Nats-Msg-Id": "m@1.a-dlq"}, "m"),
        ({"Nats-Msg-Id": "m@x@1.a-dlq"}, "m@x"),
        ({"Nats-Msg-Id": "other"}, "other"),
        ({}, "q-dlq:9"),
    ],
)
def test_who_a_letter_was(headers: dict[str, str], message_id: str) -> None:
    assert letter_id(headers, "q-dlq", 9) == message_id
