"""MessageMetadata and DeadMetadata, read from a stored message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors._errors import HeaderError
from shove_actors.messaging import (
    DEATH_COUNT,
    DEFER_COUNT,
    DIED_AT,
    KEY,
    MESSAGE_ID,
    MSG_ID,
    ORIGINAL_SEQUENCE,
    PUBLISHED_AT,
    RETRY_COUNT,
    DeadMetadata,
    DeathReason,
    MessageMetadata,
    Stored,
    dead_headers,
    decode_headers,
    encode_headers,
    from_ns,
    from_rfc3339,
    rfc3339,
)


@dataclass(frozen=True)
class Record:
    """A stored message that notices when its headers are decoded."""

    raw_headers: bytes | None = None
    payload: bytes = b""
    stream: str = "orders"
    sequence: int = 7
    timestamp_ns: int = 1_700_000_000_123_456_789
    num_delivered: int = 1
    subject: str = "orders"
    decoded: list[None] = field(default_factory=list)

    @property
    def headers(self) -> Mapping[str, str]:
        self.decoded.append(None)
        return decode_headers(self.raw_headers or b"")


def record(headers: Mapping[str, str] | None = None, **kwargs: Any) -> Record:
    return Record(raw_headers=None if headers is None else encode_headers(headers), **kwargs)


def test_a_first_delivery() -> None:
    stored: Stored = record({MSG_ID: "ORD-1", "x": "y"})
    metadata = MessageMetadata(stored, shard=3)
    assert metadata.retry_count == 0
    assert metadata.attempt == 1
    assert not metadata.redelivered
    assert metadata.delivery_id == "ORD-1"
    assert metadata.headers == {MSG_ID: "ORD-1", "x": "y"}
    assert (metadata.stream, metadata.sequence, metadata.subject) == ("orders", 7, "orders")
    assert metadata.shard == 3
    assert metadata.key is None
    assert metadata.num_delivered == 1
    assert metadata.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=timezone.utc)


def test_building_and_counting_decode_no_headers() -> None:
    stored = record({MSG_ID: "ORD-1", "x": "y"})
    metadata = MessageMetadata(stored)
    assert (metadata.retry_count, metadata.attempt, metadata.redelivered) == (0, 1, False)
    assert stored.decoded == []


def test_headers_are_read_only() -> None:
    metadata = MessageMetadata(record({"x": "y"}))
    with pytest.raises(TypeError):
        metadata.headers["x"] = "z"  # type: ignore[index]
    assert metadata.headers["x"] == "y"


@pytest.mark.parametrize(
    ("headers", "num_delivered", "returned", "attempt"),
    [
        (None, 1, 0, 1),
        ({RETRY_COUNT: "1"}, 1, 0, 2),
        ({RETRY_COUNT: "2", DEFER_COUNT: "3"}, 1, 0, 6),
        ({DEFER_COUNT: "1"}, 1, 0, 2),
        (None, 2, 0, 2),
        (None, 3, 2, 1),
        (None, 2, 5, 1),
        ({RETRY_COUNT: "1"}, 3, 1, 3),
    ],
)
def test_redelivered_is_true_for_every_attempt_after_the_first(
    headers: dict[str, str] | None, num_delivered: int, returned: int, attempt: int
) -> None:
    """SW-65: retries are fresh publishes; the server's flag alone calls them first deliveries."""
    metadata = MessageMetadata(record(headers, num_delivered=num_delivered), returned=returned)
    assert metadata.attempt == attempt
    assert metadata.redelivered is (attempt > 1)


def test_the_consumer_may_say_the_retry_count() -> None:
    assert MessageMetadata(record({RETRY_COUNT: "1"}), retry_count=4).retry_count == 4
    assert MessageMetadata(record({RETRY_COUNT: "1"})).retry_count == 1


def test_the_delivery_id_is_the_logical_id() -> None:
    hopped = record({MSG_ID: "a@1.2-r1", MESSAGE_ID: "a"})
    assert MessageMetadata(hopped).delivery_id == "a"
    assert MessageMetadata(record()).delivery_id == "orders:7"


def test_the_key_is_decoded() -> None:
    assert MessageMetadata(record({KEY: "caf%C3%A9"})).key == "caf\u00e9"
    assert MessageMetadata(record({KEY: ""})).key == ""


def test_an_unreadable_counter_raises() -> None:
    with pytest.raises(HeaderError, match=RETRY_COUNT):
        _ = MessageMetadata(record({RETRY_COUNT: "many"})).retry_count


def test_repr_shows_no_header() -> None:
    text = repr(MessageMetadata(record({"authorization": "SECRET"})))
    assert "SECRET" not in text
    assert "orders:7" in text


def test_a_dead_letter() -> None:
    headers = dead_headers(
        {MSG_ID: "a", "x": "y"},
        msg_id="a@7.1-dlq",
        message_id="a",
        origin="7.1",
        reason=DeathReason.MAX_RETRIES_EXCEEDED,
        cause="raised",
        detail="ValueError",
        queue="orders",
        subject="orders.shard.1",
        stream="orders",
        sequence=42,
        key="k",
        retry_count=10,
        published_at_ns=1_000_000_000,
        first_failed_at_ns=2_000_000_000,
        died_at_ns=3_500_000_000,
    )
    dead = DeadMetadata(record(headers, stream="orders-dlq", subject="orders-dlq", sequence=1))
    assert dead.reason == DeathReason.MAX_RETRIES_EXCEEDED
    assert (dead.cause, dead.detail) == ("raised", "ValueError")
    assert (dead.original_queue, dead.original_subject) == ("orders", "orders.shard.1")
    assert dead.original_sequence == 42
    assert dead.retry_count == 10
    assert dead.death_count == 1
    assert dead.key == "k"
    assert dead.delivery_id == "a"
    assert dead.published_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    assert dead.first_failed_at == datetime(1970, 1, 1, 0, 0, 2, tzinfo=timezone.utc)
    assert dead.died_at == datetime(1970, 1, 1, 0, 0, 3, 500_000, tzinfo=timezone.utc)
    assert (dead.stream, dead.sequence) == ("orders-dlq", 1)


@given(value=st.text(st.characters(exclude_categories=("Cc", "Cs", "Zs")), max_size=30))
def test_a_dead_letter_is_readable_whatever_its_headers_say(value: str) -> None:
    names = [DEATH_COUNT, DIED_AT, KEY, ORIGINAL_SEQUENCE, RETRY_COUNT, DEFER_COUNT]
    dead = DeadMetadata(record(dict.fromkeys(names, value)))
    for name in dir(DeadMetadata):
        if not name.startswith("_"):
            getattr(dead, name)


def test_a_message_somebody_else_put_into_the_dead_letters() -> None:
    dead = DeadMetadata(record())
    assert dead.reason == ""
    assert dead.cause is dead.detail is dead.died_at is dead.original_queue is None
    assert dead.death_count == dead.retry_count == 0


@given(ns=st.integers(0, 2**63 - 1))
def test_times_survive_to_the_microsecond(ns: int) -> None:
    text = rfc3339(ns)
    assert len(text) == 30
    assert from_rfc3339(text) == from_ns(ns)
    assert rfc3339(ns) < rfc3339(ns + 1)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2024-13-01T00:00:00Z", "2024-01-01T00:00:00", "2024-01-01T00:00:00.Z"],
)
def test_other_times_are_none(text: str) -> None:
    assert from_rfc3339(text) is None


def test_a_time_without_a_fraction() -> None:
    assert from_rfc3339("2024-01-01T00:00:00Z") == datetime(2024, 1, 1, tzinfo=timezone.utc)


def test_deferrals_and_the_age_can_be_asked_for() -> None:
    first = MessageMetadata(record())
    assert first.defer_count == 0
    assert first.published_at == first.timestamp
    hopped = {RETRY_COUNT: "1", DEFER_COUNT: "3", PUBLISHED_AT: rfc3339(1_000_000_000)}
    later = MessageMetadata(record(hopped))
    assert later.defer_count == 3
    assert later.published_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    assert MessageMetadata(record({PUBLISHED_AT: "yesterday"})).published_at is None
    with pytest.raises(HeaderError):
        _ = MessageMetadata(record({DEFER_COUNT: "many"})).defer_count
