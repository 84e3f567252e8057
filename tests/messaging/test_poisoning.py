"""One poisoning of a key, and requests about it: pure."""

from __future__ import annotations

import pytest

from shove_actors.messaging import (
    CONTROL,
    KEY,
    MSG_ID,
    POISONING,
    Control,
    PoisonRecord,
    control_headers,
    decode_headers,
    decode_record,
    encode_headers,
    encode_record,
    mark_name,
    poison_record,
    poisoning_of,
    skip_refusal,
)


def record(stored_ns: int, began: str = "") -> PoisonRecord:
    return poison_record(
        "k",
        shard=0,
        sequence=7,
        stored_ns=stored_ns,
        message_id="id",
        reason="rejected",
        cause=None,
        detail=None,
        retries=0,
        poisoned_at="",
        began=began,
        letters_after=41,
        letters_in="2026-11-29T00:00:00+00:00",
    )


def test_a_record_that_replaces_another_is_of_the_same_poisoning() -> None:
    first = record(1000)
    name = poisoning_of(first, 3)
    assert poisoning_of(record(2000, began=name), 9) == name
    assert poisoning_of(record(2000, began=name), 10) == name


@pytest.mark.parametrize(("stored_ns", "revision"), [(1000, 4), (1001, 3)])
def test_another_revision_or_message_is_another_poisoning(stored_ns: int, revision: int) -> None:
    assert poisoning_of(record(stored_ns), revision) != poisoning_of(record(1000), 3)


def test_a_record_survives_being_stored_with_where_its_letters_are() -> None:
    stored = decode_record(encode_record(record(1000, began="3.1")), mark_name("k"))
    assert stored == record(1000, began="3.1")
    assert (stored.letters_after, stored.letters_in) == (41, "2026-11-29T00:00:00+00:00")


def test_a_record_of_an_earlier_version_knows_nothing_of_it() -> None:
    stored = decode_record(b'{"shove_key":"k","sequence":7,"stored_ns":9}', mark_name("k"))
    assert (stored.began, stored.letters_after, stored.letters_in) == ("", 0, "")
    assert poisoning_of(stored, 12) == "12.9"


@pytest.mark.parametrize("key", ["k", "", "a b%", "ключ", "\ud800", "line\nbreak"])
def test_a_request_says_key_and_poisoning(key: str) -> None:
    headers = control_headers(Control.REPLAY, key=key, poisoning="12.9", message_id="m")
    read = decode_headers(encode_headers(headers))
    assert read == headers
    assert (read[CONTROL], read[POISONING], read[MSG_ID]) == ("replay", "12.9", "m")
    assert read[KEY].isascii()


def test_the_refusal_of_a_topic_without_fail_all_names_the_ways_out() -> None:
    text = str(skip_refusal("ledger"))
    for part in (
        "'ledger'",
        "SequenceFailure.SKIP",
        "'ledger-poison'",
        "nats kv del ledger-poison",
    ):
        assert part in text
