"""Headers: what callers may set, exact round trips, injection, copying over hops."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shove_actors import messaging
from shove_actors._errors import HeaderError
from shove_actors.messaging import (
    DEFER_COUNT,
    DUE_AFTER,
    FIRST_FAILED_AT,
    FOREIGN_DESCRIPTION,
    FOREIGN_STATUS,
    KEY,
    MESSAGE_ID,
    MSG_ID,
    ORIGIN,
    ORIGINAL_QUEUE,
    ORIGINAL_SEQUENCE,
    ORIGINAL_SUBJECT,
    PUBLISHED_AT,
    RETRY_COUNT,
    copy_headers,
    decode_headers,
    decode_key,
    encode_headers,
    encode_key,
    has_shove_headers,
    has_status_header,
    hop_headers,
    read_counter,
    validate_message_id,
    validate_user_headers,
)

_TOKEN = st.text("!#$%&'*+-.^_`|~0123456789abcXYZ", min_size=1, max_size=12)
_VALUE = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=30).map(
    lambda text: text.strip(" ")
)
_USER = st.dictionaries(
    _TOKEN.filter(lambda n: not n.lower().startswith(("nats-", "shove-"))), _VALUE, max_size=6
)


@given(headers=_USER)
@example(headers={"a": "\u2028x\u2029", "b": "\xa0edge\xa0", "c": ""})
def test_what_callers_may_set_comes_back_exactly(headers: dict[str, str]) -> None:
    validate_user_headers(headers)
    raw = encode_headers(headers)
    assert decode_headers(raw) == headers
    if headers:
        assert raw.startswith(b"NATS/1.0\r\n")
        assert raw.endswith(b"\r\n\r\n")
        assert raw.count(b"\n") == len(headers) + 2


@given(raw=st.binary(max_size=200))
@example(raw=b"NATS/1.0 503 No Responders\r\n\r\n")
@example(raw=b"NATS/1.0\r\nA: \xff\xfe\rx\r\n: nameless\r\nB\r\n\r\n")
@example(raw=b"NATS/1.0\nA:\x85\n")
def test_any_bytes_decode_and_their_copy_can_always_be_written(raw: bytes) -> None:
    """A copy that cannot be written would leave its message neither stored nor acknowledged."""
    headers = decode_headers(raw)
    copied = copy_headers(headers)
    assert decode_headers(encode_headers(copied)) == copied
    assert not has_status_header(copied)


@given(data=st.binary(min_size=1, max_size=20))
def test_bytes_that_are_not_utf8_pass_through_unchanged(data: bytes) -> None:
    data = bytes(b for b in data if b > 0x20 and b != 0x7F) or b"\xff"
    raw = b"NATS/1.0\r\nX-Bytes: " + data + b"\r\n\r\n"
    assert encode_headers(decode_headers(raw)) == raw


@given(name=st.text(max_size=8), value=st.text(max_size=20))
@example(name="A", value="b\r\nNats-Msg-Id: c")
@example(name="A", value="b\nC: d")
@example(name="A: b\r\nC", value="d")
def test_no_header_becomes_two(name: str, value: str) -> None:
    """Whatever is passed: it is refused, or exactly this one header comes back."""
    try:
        raw = encode_headers({name: value})
    except HeaderError:
        return
    assert decode_headers(raw) == {name: value}


@pytest.mark.parametrize(
    "value",
    [
        "a\r\nNats-Msg-Id: b",
        "a\r\n\r\nbody",
        "a\nb",
        "a\rb",
        "a\x00b",
        "a\x1b[31m",
        "tab\there",
        "c1\x85control",
        "del\x7f",
    ],
)
def test_pc058_a_value_with_a_newline_or_control_character_is_refused(value: str) -> None:
    for refuse in (validate_user_headers, encode_headers):
        if refuse is encode_headers and value.startswith("c1"):
            continue  # written as UTF-8 it cannot end a line
        with pytest.raises(HeaderError) as caught:
            refuse({"X-Note": value})
        assert "X-Note" in str(caught.value)
        assert value not in str(caught.value)
    with pytest.raises(HeaderError, match="message_id"):
        validate_message_id(value)


@pytest.mark.parametrize("value", [" a", "a ", " "])
def test_values_that_readers_would_trim_are_refused(value: str) -> None:
    with pytest.raises(HeaderError, match="space"):
        validate_user_headers({"X": value})
    with pytest.raises(HeaderError, match="'X'"):
        encode_headers({"X": value})


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "\u00e9", "a\x00", " a", "(a)"])
def test_pc058_names_are_tokens(name: str) -> None:
    with pytest.raises(HeaderError, match="header name"):
        validate_user_headers({name: "x"})


_RESERVED = sorted(
    {value for name, value in vars(messaging).items() if name.isupper() and isinstance(value, str)}
    | {
        "Nats-Expected-Last-Sequence",
        "Nats-Expected-Stream",
        "Nats-Rollup",
        "Nats-TTL",
        "Nats-Anything-Else",
        "Shove-Anything-Else",
    }
)


def test_the_list_of_reserved_names_is_complete() -> None:
    assert {"Nats-Msg-Id", "Shove-Retry-Count", "Shove-Death-Reason", "Status"} <= set(_RESERVED)
    assert len(_RESERVED) > 25


@pytest.mark.parametrize("name", _RESERVED)
@pytest.mark.parametrize("case", [str, str.lower, str.upper, str.swapcase])
def test_pc062_reserved_names_are_refused_in_any_case(name: str, case: Any) -> None:
    with pytest.raises(HeaderError) as caught:
        validate_user_headers({"fine": "x", case(name): "SECRET"})
    assert case(name) in str(caught.value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("name", ["Natsume", "shove", "X-Nats-Msg-Id", "Statuses", "x-status"])
def test_names_that_only_look_reserved_are_accepted(name: str) -> None:
    validate_user_headers({name: "x"})


def test_pc059_status_is_refused_from_callers_and_renamed_in_copies() -> None:
    """A pull consumer takes a message with `Status` for the server's word and never hands it on."""
    with pytest.raises(HeaderError, match="'Status' is reserved"):
        validate_user_headers({"Status": "done"})
    foreign = decode_headers(b"NATS/1.0\r\nStatus: done\r\nDescription: all of it\r\n\r\n")
    assert has_status_header(foreign)
    assert copy_headers(foreign) == {FOREIGN_STATUS: "done", FOREIGN_DESCRIPTION: "all of it"}


def test_pc062_control_headers_of_the_server_are_left_behind_by_a_copy() -> None:
    """The server would obey a copied expectation, rollup or TTL once more."""
    original = {
        "Nats-Msg-Id": "a",
        "Nats-Expected-Last-Sequence": "4",
        "nats-rollup": "all",
        "NATS-TTL": "1s",
        "x-trace-id": "t",
        "Shove-Retry-Count": "2",
    }
    assert copy_headers(original) == {"x-trace-id": "t", "Shove-Retry-Count": "2"}


@pytest.mark.parametrize("value", [1, None, b"x", ["a"]])
def test_values_are_text(value: Any) -> None:
    with pytest.raises(HeaderError, match="value of header 'X' must be a str"):
        validate_user_headers({"X": value})
    with pytest.raises(HeaderError, match="message_id must be a str"):
        validate_message_id(value)


@pytest.mark.parametrize("name", [1, None, b"x"])
def test_names_are_text(name: Any) -> None:
    with pytest.raises(HeaderError, match="header name must be a str"):
        validate_user_headers({name: "x"})


def test_lone_surrogates_are_refused() -> None:
    for value in ("\ud800", "\udcff"):
        with pytest.raises(HeaderError, match="lone surrogate"):
            validate_user_headers({"X": value})
    with pytest.raises(HeaderError, match="'X' cannot be written"):
        encode_headers({"fine": "x", "X": "\ud800"})


def test_message_ids() -> None:
    validate_message_id("ORD-1 \u00e9")
    with pytest.raises(HeaderError, match="empty"):
        validate_message_id("")


def test_no_headers_are_no_block() -> None:
    assert encode_headers({}) == b""
    assert decode_headers(b"") == {}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", {"A": "1"}),
        (b"NATS/1.0\r\nA:1\r\nB:   2  \r\n\r\n", {"A": "1", "B": "2"}),
        (b"NATS/1.0\nA: 1\n\n", {"A": "1"}),
        (b"NATS/1.0\r\nA: b: c\r\n\r\n", {"A": "b: c"}),
        (b"NATS/1.0\r\n: x\r\nnothing\r\n\r\n", {}),
        (b"NATS/1.0 404\r\n\r\n", {"Status": "404"}),
        (
            b"NATS/1.0 503 No Responders\r\nA: 1\r\n\r\n",
            {"Status": "503", "Description": "No Responders", "A": "1"},
        ),
    ],
)
def test_foreign_blocks(raw: bytes, expected: dict[str, str]) -> None:
    assert decode_headers(raw) == expected


def test_finding_our_headers_without_decoding() -> None:
    assert has_shove_headers(encode_headers({"a": "b", RETRY_COUNT: "1"}))
    assert not has_shove_headers(encode_headers({"a": "Shove-Retry-Count: 1", "X-Shove-A": "b"}))
    assert not has_shove_headers(b"")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"Shove-Retry-Count: 7", RETRY_COUNT),
        (b" Shove-Retry-Count: 7", RETRY_COUNT),
        (b"\t \tShove-Retry-Count \t:7", RETRY_COUNT),
        (b"\rShove-Retry-Count: 7", "\rShove-Retry-Count"),
        (b"Shove-Retry-Count\r: 7", "Shove-Retry-Count\r"),
        (b"\x0bShove-Retry-Count: 7", "\x0bShove-Retry-Count"),
        (b"shove-retry-count: 7", "shove-retry-count"),
    ],
)
def test_blanks_around_a_name_are_seen_the_same_way_everywhere(line: bytes, name: str) -> None:
    """A counter that decoding finds and the scan does not would be a fresh retry budget (SW-11)."""
    raw = b"NATS/1.0\r\nA: b\r\n" + line + b"\r\n\r\n"
    headers = decode_headers(raw)
    assert headers == {"A": "b", name: "7"}
    assert has_shove_headers(raw) is name.startswith("Shove-")
    assert read_counter(headers, RETRY_COUNT) == (7 if name == RETRY_COUNT else 0)
    copied = copy_headers(headers)
    assert decode_headers(encode_headers(copied)) == copied


def test_the_first_line_is_no_header() -> None:
    raw = b"Shove-Retry-Count: abc\r\nA: 1\r\n\r\n"
    assert decode_headers(raw) == {"A": "1"}
    assert not has_shove_headers(raw)


@given(
    parts=st.lists(
        st.sampled_from([b"\n", b"\r", b" ", b"\t", b":", b"Shove-", b"a", b"1", b"NATS/1.0"])
    )
)
def test_the_scan_agrees_with_decoding(parts: list[bytes]) -> None:
    raw = b"".join(parts)
    found = any(name.startswith("Shove-") for name in decode_headers(raw))
    ours = [line for line in raw.split(b"\n")[1:] if line.strip(b" \t").startswith(b"Shove-")]
    assert has_shove_headers(raw) is bool(ours)
    assert found is any(b":" in line for line in ours)


@pytest.mark.parametrize("text", ["abc", "-1", "+1", "1.0", "", " 1", "\u0663", "1" * 10, "0x1"])
def test_an_unreadable_counter_is_an_error_and_not_zero(text: str) -> None:
    """SW-11: taking it for 0 gives whoever wrote it a fresh retry budget."""
    with pytest.raises(HeaderError, match=RETRY_COUNT) as caught:
        read_counter({RETRY_COUNT: text}, RETRY_COUNT)
    assert len(text) < 3 or text not in str(caught.value)


def test_counters() -> None:
    assert read_counter({}, RETRY_COUNT) == 0
    assert read_counter({RETRY_COUNT: "12"}, RETRY_COUNT) == 12


@given(key=st.text(st.characters()))
@example(key="")
@example(key="%41")
@example(key=" a ")
@example(key="\ud800\udc00x")
@example(key="a\r\nNats-Msg-Id: b")
def test_every_key_travels_as_a_header(key: str) -> None:
    headers = {KEY: encode_key(key)}
    assert decode_key(decode_headers(encode_headers(headers))[KEY]) == key


def test_plain_keys_stay_readable_and_foreign_ones_do_not_fail() -> None:
    assert encode_key("account 7/eu") == "account 7/eu"
    assert encode_key("caf\u00e9") == "caf%C3%A9"
    assert decode_key("caf%E9") == "caf\ufffd"
    assert decode_key("100%") == "100%"


def _hop(original: dict[str, str], **kwargs: Any) -> dict[str, str]:
    return hop_headers(
        original,
        **{
            "msg_id": "a@1.2-r1",
            "message_id": "a",
            "origin": "1.2",
            "retry_count": 1,
            "defer_count": 0,
            **kwargs,
        },
    )


def test_a_hop_copies_user_headers_and_sets_ids_and_counters() -> None:
    original = {MSG_ID: "a", "x-trace-id": "t", "Nats-TTL": "1s"}
    hopped = _hop(
        original,
        due_after_s=1.5,
        queue="q",
        subject="q.shard.1",
        sequence=7,
        key="caf\u00e9",
        published_at_ns=1,
        failed_at_ns=2_000_000_000,
    )
    assert hopped == {
        "x-trace-id": "t",
        MSG_ID: "a@1.2-r1",
        MESSAGE_ID: "a",
        ORIGIN: "1.2",
        RETRY_COUNT: "1",
        DEFER_COUNT: "0",
        DUE_AFTER: "1500",
        ORIGINAL_QUEUE: "q",
        ORIGINAL_SUBJECT: "q.shard.1",
        ORIGINAL_SEQUENCE: "7",
        KEY: "caf%C3%A9",
        PUBLISHED_AT: "1970-01-01T00:00:00.000000001Z",
        FIRST_FAILED_AT: "1970-01-01T00:00:02.000000000Z",
    }
    assert original == {MSG_ID: "a", "x-trace-id": "t", "Nats-TTL": "1s"}


def test_later_hops_keep_what_the_first_one_wrote_but_not_its_delay() -> None:
    first = _hop({}, due_after_s=60, subject="a.b", sequence=7, failed_at_ns=5)
    second = _hop(first, retry_count=2, subject="q-hold-5s", sequence=1, failed_at_ns=9)
    assert second[ORIGINAL_SUBJECT] == "a.b"
    assert second[ORIGINAL_SEQUENCE] == "7"
    assert second[FIRST_FAILED_AT] == first[FIRST_FAILED_AT]
    assert second[RETRY_COUNT] == "2"
    assert DUE_AFTER not in second


def test_a_delay_is_never_rounded_to_nothing() -> None:
    assert _hop({}, due_after_s=0.0001)[DUE_AFTER] == "1"


@given(raw=st.binary(max_size=120), subject=st.text(max_size=10))
def test_every_hop_can_be_written(raw: bytes, subject: str) -> None:
    subject = subject.encode("utf-8", "replace").decode()
    hopped = _hop(decode_headers(b"NATS/1.0\r\n" + raw), subject=subject)
    assert decode_headers(encode_headers(hopped)) == hopped
