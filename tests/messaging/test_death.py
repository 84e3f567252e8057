"""Dead letters: reason codes, the story in the headers, the form that cannot grow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.messaging import (
    DEATH_CAUSE,
    DEATH_COUNT,
    DEATH_DETAIL,
    DEATH_REASON,
    DIED_AT,
    DUE_AFTER,
    FIRST_FAILED_AT,
    FOREIGN_STATUS,
    KEY,
    MESSAGE_ID,
    MSG_ID,
    ORIGIN,
    ORIGINAL_QUEUE,
    ORIGINAL_SEQUENCE,
    ORIGINAL_STREAM,
    ORIGINAL_SUBJECT,
    PUBLISHED_AT,
    RETRY_COUNT,
    DeathReason,
    dead_headers,
    decode_headers,
    encode_headers,
    replay_headers,
    sanitise_detail,
)


def _dead(original: dict[str, str] | None = None, **kwargs: Any) -> dict[str, str]:
    values: dict[str, Any] = {
        "msg_id": "a@7.1-dlq",
        "message_id": "a",
        "origin": "7.1",
        "reason": DeathReason.REJECTED,
        "queue": "q",
        "subject": "q",
        "stream": "q",
        "sequence": 7,
        "died_at_ns": 3_000_000_000,
        **kwargs,
    }
    return dead_headers(original or {}, **values)


def test_reason_codes_are_plain_strings() -> None:
    """They are matched on and stored: a changed code is a changed API."""
    assert [str(reason) for reason in DeathReason] == [
        "rejected",
        "max_retries_exceeded",
        "undecodable",
        "oversize",
        "crashed",
        "sequence_failed",
        "foreign_header",
    ]
    assert DeathReason.CRASHED == "crashed"
    assert f"{DeathReason.CRASHED}" == "crashed"


@pytest.mark.parametrize("reason", DeathReason)
def test_pc081_a_dead_letter_tells_its_story(reason: DeathReason) -> None:
    headers = _dead(
        {"x-trace-id": "t", MSG_ID: "a"},
        reason=reason,
        cause="timeout",
        detail="no answer from the ledger",
        subject="q.shard.3",
        key="ACC/1",
        retry_count=10,
        published_at_ns=1_000_000_000,
        first_failed_at_ns=2_000_000_000,
    )
    assert headers == {
        "x-trace-id": "t",
        MSG_ID: "a@7.1-dlq",
        MESSAGE_ID: "a",
        ORIGIN: "7.1",
        RETRY_COUNT: "10",
        DEATH_REASON: reason.value,
        DEATH_CAUSE: "timeout",
        DEATH_DETAIL: "no answer from the ledger",
        DEATH_COUNT: "1",
        ORIGINAL_QUEUE: "q",
        ORIGINAL_SUBJECT: "q.shard.3",
        ORIGINAL_STREAM: "q",
        ORIGINAL_SEQUENCE: "7",
        KEY: "ACC/1",
        PUBLISHED_AT: "1970-01-01T00:00:01.000000000Z",
        FIRST_FAILED_AT: "1970-01-01T00:00:02.000000000Z",
        DIED_AT: "1970-01-01T00:00:03.000000000Z",
    }
    assert decode_headers(encode_headers(headers)) == headers


def test_what_an_earlier_hop_wrote_is_kept() -> None:
    headers = _dead(
        {ORIGINAL_SUBJECT: "first", ORIGINAL_SEQUENCE: "1", FIRST_FAILED_AT: "then", DUE_AFTER: "5"}
    )
    assert headers[ORIGINAL_SUBJECT] == "first"
    assert headers[ORIGINAL_SEQUENCE] == "1"
    assert headers[FIRST_FAILED_AT] == "then"
    assert DUE_AFTER not in headers


def test_a_first_failure_is_the_death_itself() -> None:
    headers = _dead()
    assert headers[FIRST_FAILED_AT] == headers[DIED_AT]


def test_an_old_death_is_replaced_and_counted() -> None:
    again = _dead({DEATH_COUNT: "4", DEATH_REASON: "crashed", DEATH_CAUSE: "x", DEATH_DETAIL: "y"})
    assert again[DEATH_COUNT] == "5"
    assert again[DEATH_REASON] == "rejected"
    assert DEATH_CAUSE not in again
    assert DEATH_DETAIL not in again


@pytest.mark.parametrize("count", ["x", "-1", "", "\u0663", "9" * 30])
def test_an_unreadable_death_count_loses_no_dead_letter(count: str) -> None:
    assert _dead({DEATH_COUNT: count})[DEATH_COUNT] == "1"


def test_pc056_the_form_for_a_message_that_cannot_grow() -> None:
    original = {f"x-{n}": "v" * 100 for n in range(50)}
    assert _dead(original, minimal=True, cause="raised", detail="d" * 500) == {
        MSG_ID: "a@7.1-dlq",
        DEATH_REASON: "rejected",
        DEATH_COUNT: "1",
        ORIGINAL_QUEUE: "q",
        ORIGINAL_SEQUENCE: "7",
    }


def test_pc058_an_error_text_cannot_become_a_header() -> None:
    headers = _dead(
        cause="raised\r\nA: b", detail="boom\r\nNats-Msg-Id: evil\r\n\r\nbody\x00\ud800"
    )
    assert headers[DEATH_DETAIL] == "boom Nats-Msg-Id: evil body"
    assert decode_headers(encode_headers(headers)) == headers


@given(text=st.text(st.characters(), max_size=2000))
def test_pc058_details_are_printable_and_short(text: str) -> None:
    clean = sanitise_detail(text)
    if clean is not None:
        assert 0 < len(clean) <= 200
        assert clean.isprintable()
        assert clean == clean.strip()
        assert decode_headers(encode_headers({"D": clean})) == {"D": clean}


def test_details_are_cut_with_a_mark_and_empty_ones_are_left_out() -> None:
    assert sanitise_detail("x" * 200) == "x" * 200
    assert sanitise_detail("x" * 201) == "x" * 197 + "..."
    assert sanitise_detail("x" * 10_000_000) == "x" * 197 + "..."
    assert sanitise_detail(" \r\n ") is None
    assert sanitise_detail(None) is None
    assert DEATH_DETAIL not in _dead(detail="\n")


def test_a_dead_letter_with_a_status_header_can_be_consumed() -> None:
    headers = _dead({"Status": "100", "Nats-Rollup": "all"}, reason=DeathReason.FOREIGN_HEADER)
    assert headers[FOREIGN_STATUS] == "100"
    assert "Status" not in headers
    assert "Nats-Rollup" not in headers


def test_a_replay_starts_over_but_remembers_its_deaths() -> None:
    dead = _dead({"x-trace-id": "t", "Status": "1"}, key="k", retry_count=10, detail="d", cause="c")
    replayed = replay_headers(dead, msg_id="a@9.1-replay", message_id="a", origin="9.1")
    assert replayed == {
        "x-trace-id": "t",
        MSG_ID: "a@9.1-replay",
        MESSAGE_ID: "a",
        ORIGIN: "9.1",
        KEY: "k",
        DEATH_COUNT: "1",
    }
