"""AuditRecord, and the trace id that nothing has to store."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.backends import Delivery
from shove_actors.messaging import (
    AuditRecord,
    DeathReason,
    MessageMetadata,
    Outcome,
    dead_headers,
    dead_id,
    hop_headers,
    logical_id,
    origin_of,
    replay_headers,
    replay_id,
    retry_id,
    return_id,
    trace_id_of,
)

IDS = st.text(min_size=1).filter(str.isprintable)


def hop(headers: dict[str, str], sequence: int, msg_id: str) -> dict[str, str]:
    return hop_headers(
        headers,
        msg_id=msg_id,
        message_id=logical_id(headers, "q", sequence),
        origin=origin_of(sequence, sequence),
        retry_count=1,
        defer_count=0,
        queue="q",
        subject="q",
        sequence=sequence,
    )


@given(message_id=st.none() | IDS, minimal=st.booleans())
def test_every_copy_of_a_message_has_its_trace_id(message_id: str | None, minimal: bool) -> None:
    """Main queue, hold queue, back again, dead letter (also the smallest form), replay."""
    first = {} if message_id is None else {"Nats-Msg-Id": message_id}
    trace = trace_id_of("q", first, "q", 7)
    name = logical_id(first, "q", 7)
    held = hop(first, 7, retry_id(name, "7.7", 1))
    back = hop(held, 3, return_id(name, "3.3"))
    dead = dead_headers(
        back,
        msg_id=dead_id(name, "9.9"),
        message_id=name,
        origin="9.9",
        reason=DeathReason.REJECTED,
        queue="q",
        subject="q",
        stream="q",
        sequence=9,
        died_at_ns=1,
        minimal=minimal,
    )
    assert trace_id_of("q", held, "q-hold-5s", 3) == trace
    assert trace_id_of("q", back, "q", 9) == trace
    assert trace_id_of("q", dead, "q-dlq", 2) == trace
    if not minimal:
        again = replay_headers(dead, msg_id=replay_id(name, "2.2"), message_id=name, origin="2.2")
        assert trace_id_of("q", again, "q", 11) == trace
    assert uuid.UUID(trace).version == 5


def test_different_messages_have_different_trace_ids() -> None:
    ids = {
        trace_id_of("q", {}, "q", 1),
        trace_id_of("q", {}, "q", 2),
        trace_id_of("q", {"Nats-Msg-Id": "17"}, "q", 3),
        # The same id on another topic is another message.
        trace_id_of("other", {"Nats-Msg-Id": "17"}, "other", 3),
    }
    assert len(ids) == 4


def test_a_trace_id_does_not_change_between_releases() -> None:
    """Records of one message may have been written by two of them."""
    assert trace_id_of("orders", {"Nats-Msg-Id": "ORD-1"}, "orders", 1) == (
        "fa9ba595-4052-5608-bee1-5fd0a6a5b894"
    )


@pytest.mark.parametrize("name", ["x-trace-id", "X-Trace-Id", "X-TRACE-ID"])
def test_the_callers_own_trace_id_is_used(name: str) -> None:
    assert trace_id_of("q", {"Nats-Msg-Id": "m", name: "mine"}, "q", 1) == "mine"
    assert trace_id_of("q", {"Nats-Msg-Id": "m", name: ""}, "q", 1) == trace_id_of(
        "q", {"Nats-Msg-Id": "m"}, "q", 1
    )


def test_bytes_that_are_no_utf8_have_a_trace_id_too() -> None:
    assert trace_id_of("q", {"Nats-Msg-Id": "\udcff"}, "q", 1)


def test_a_record_shows_no_payload() -> None:
    delivery = Delivery(None, "q", b"secret", None, "q", 1, 1, 0, 0.0, b"")  # type: ignore[arg-type]
    record = AuditRecord(
        trace_id="t",
        topic="q",
        payload="secret",
        metadata=MessageMetadata(delivery),
        outcome=Outcome.ACK,
        duration_ms=1.5,
        timestamp=datetime.now(timezone.utc),
        raw=b"secret",
    )
    assert "secret" not in repr(record)
    assert record.cause == "outcome"
    with pytest.raises(AttributeError):
        record.topic = "p"  # type: ignore[misc]
