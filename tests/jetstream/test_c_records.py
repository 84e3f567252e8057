"""Headers, times and configurations survive being written and read, whatever is in them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors._errors import HeaderError, InvalidOption
from shove_actors.jetstream import PubMessage, StreamConfig, encode_headers, parse_headers
from shove_actors.jetstream._clock import parse_time_ns
from shove_actors.jetstream._go_duration import go_duration, whole_seconds
from shove_actors.jetstream._pub_ack import read_ack
from shove_actors.jetstream._publish_options import Encoded
from shove_actors.jetstream._times import from_datetime, to_datetime, to_datetime_or_none

NAMES = st.text(
    st.characters(min_codepoint=33, exclude_characters=":\x7f", exclude_categories=("Cs",)),
    min_size=1,
    max_size=8,
)
#: Readers trim blanks at either end.
VALUES = st.text(
    st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=("Cs",)),
    max_size=12,
).map(lambda text: text.strip(" "))


@given(st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=3), max_size=5))
def test_headers_come_back(headers: dict[str, list[str]]) -> None:
    block = encode_headers(headers)
    assert (block == b"") == (not headers)
    read = parse_headers(block)
    assert {name: read.get_all(name) for name in read} == headers
    assert {name: read[name] for name in headers} == {n: v[0] for n, v in headers.items()}
    assert encode_headers(read) == block


@given(st.text(max_size=10), st.text(max_size=10))
def test_nothing_becomes_a_second_header(name: str, value: str) -> None:
    try:
        block = encode_headers({name: value})
    except HeaderError:
        return
    assert block.count(b"\r\n") == 3
    assert block.count(b"\n") == 3
    assert len(parse_headers(block)) == 1


@given(
    st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(timezone.utc)),
    st.integers(-14 * 60, 14 * 60),
)
def test_moments_come_back(moment: datetime, minutes: int) -> None:
    text = from_datetime(moment)
    assert to_datetime(text) == moment
    zone = timezone(timedelta(minutes=minutes))
    if 1971 < moment.year < 9998:
        assert to_datetime(moment.astimezone(zone).isoformat()) == moment
        assert from_datetime(moment.astimezone(zone)) == text
    seconds, micros = divmod(parse_time_ns(text) // 1000, 1_000_000)
    assert (seconds, micros) == (int(moment.replace(microsecond=0).timestamp()), moment.microsecond)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2024-02-29T12:00:00Z", datetime(2024, 2, 29, 12, tzinfo=timezone.utc)),
        ("2024-02-29T12:00:00.123456789Z", datetime(2024, 2, 29, 12, 0, 0, 123456, timezone.utc)),
        ("2024-02-29T14:00:00.5+02:00", datetime(2024, 2, 29, 12, 0, 0, 500000, timezone.utc)),
        ("2024-02-29T06:30:00-05:30", datetime(2024, 2, 29, 12, tzinfo=timezone.utc)),
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        (None, None),
    ],
    ids=["whole", "nanoseconds", "east", "west", "zero", "empty", "missing"],
)
def test_moments_of_the_server(text: str | None, moment: datetime | None) -> None:
    assert to_datetime_or_none(text) == moment


@given(
    st.builds(
        StreamConfig,
        name=st.just("s"),
        subjects=st.lists(st.sampled_from(["a", "b.*", "c.>"]), max_size=3).map(tuple),
        max_age=st.integers(0, 10**6).map(float),
        duplicate_window=st.none() | st.integers(1, 10**6).map(float),
        max_msgs=st.integers(-1, 10).filter(bool),
        discard=st.sampled_from(["old", "new"]),
        compression=st.sampled_from(["none", "s2"]),
        allow_direct=st.booleans(),
        metadata=st.none() | st.dictionaries(NAMES, VALUES, min_size=1, max_size=2),
        extra=st.dictionaries(st.sampled_from(["new_a", "new_b"]), st.integers(), max_size=2),
    )
)
def test_configurations_come_back(config: StreamConfig) -> None:
    assert StreamConfig.read(config.wire()) == config


@given(st.binary(max_size=60))
def test_whatever_answers_a_publish_is_understood(payload: bytes) -> None:
    """Never an exception out of it: it runs inside the socket's callback."""
    for block in (None, b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n"):
        read_ack("s", block, payload)


@given(st.floats(1.0, 1e9))
def test_no_message_lives_shorter_than_asked(seconds: float) -> None:
    assert float(whole_seconds(seconds).removesuffix("s")) >= seconds
    assert go_duration(90.0) == "90s"
    assert go_duration(1.5) == "1500ms"


def test_a_message_is_checked_before_it_is_sent() -> None:
    with pytest.raises(InvalidOption, match="wildcard"):
        Encoded("a.*", b"", {}, 100)
    assert Encoded("a", bytearray(b"x"), {}, 100).payload == b"x"
    assert "secret" not in repr(PubMessage(subject="a", data=b"secret", headers={"A": "secret"}))
