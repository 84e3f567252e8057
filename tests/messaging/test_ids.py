"""Identity of messages and hops: stable, of constant size, and never equal by accident."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shove_actors.messaging import (
    MESSAGE_ID,
    MSG_ID,
    dead_id,
    decode_headers,
    defer_id,
    encode_headers,
    hop_headers,
    logical_id,
    origin_of,
    replay_id,
    retry_id,
    return_id,
)

_SEQUENCES = st.integers(1, 2**63)
_TIMES = st.integers(0, 2**63 - 1)


def test_the_logical_id_survives_hops() -> None:
    assert logical_id({MESSAGE_ID: "a", MSG_ID: "a@1.2-r1"}, "q", 7) == "a"
    assert logical_id({MSG_ID: "a"}, "q", 7) == "a"
    assert logical_id({}, "q", 7) == "q:7"
    assert logical_id({MSG_ID: ""}, "q", 7) == "q:7"


def test_pc050_messages_without_an_id_have_different_hop_ids() -> None:
    """Two foreign messages without headers: two dead letters, not one and a swallowed one."""
    ids = set()
    for sequence in (1, 2):
        origin = origin_of(sequence, 1_700_000_000_000_000_000)
        message_id = logical_id({}, "orders", sequence)
        assert message_id == f"orders:{sequence}"
        ids |= {
            dead_id(message_id, origin),
            retry_id(message_id, origin, 1),
            defer_id(message_id, origin, 1),
            return_id(message_id, origin),
            replay_id(message_id, origin),
        }
    assert len(ids) == 10


def test_pc049_the_same_caller_id_published_again_has_hop_ids_of_its_own() -> None:
    """X is published, retried, published again and retried again inside the hold stream's window.

    With `X-r1` both times, the second hop is answered as a duplicate of the first, and its original
    is acknowledged although no copy of it is stored.
    """
    first = retry_id("X", origin_of(1, 1_000), 1)
    again = retry_id("X", origin_of(2, 2_000), 1)
    assert first != again
    # The same stored copy after a crash: the same id, so that the window swallows the repetition.
    assert retry_id("X", origin_of(1, 1_000), 1) == first


def test_pc049_a_stream_created_anew_starts_its_sequences_over() -> None:
    assert retry_id("X", origin_of(1, 1_000), 1) != retry_id("X", origin_of(1, 9_000), 1)


@given(one=st.tuples(_SEQUENCES, _TIMES), other=st.tuples(_SEQUENCES, _TIMES))
def test_origins_are_equal_exactly_for_the_same_stored_copy(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    assert (origin_of(*one) == origin_of(*other)) == (one == other)


def test_pc050_ids_do_not_grow_from_hop_to_hop() -> None:
    """SW-08: a suffix per hop grows the header and changes the id that writes are keyed by."""
    headers = {MSG_ID: "ORD-1"}
    lengths = []
    for hop in range(1, 10):
        message_id = logical_id(headers, "orders", hop)
        origin = origin_of(hop, 1_700_000_000_000_000_000 + hop)
        headers = hop_headers(
            headers,
            msg_id=retry_id(message_id, origin, hop),
            message_id=message_id,
            origin=origin,
            retry_count=hop,
            defer_count=0,
        )
        lengths.append(len(headers[MSG_ID]))
        assert headers[MESSAGE_ID] == "ORD-1"
    assert len(set(lengths)) == 1


@pytest.mark.parametrize("foreign", ["a\rb", "tab\tbed", "nul\x00", "c1\x85"])
def test_a_foreign_id_with_control_characters_survives_as_a_header(foreign: str) -> None:
    """An id that cannot be written back would make its message's dead-lettering fail for ever."""
    message_id = logical_id({MSG_ID: foreign}, "q", 1)
    headers = {MSG_ID: dead_id(message_id, "1.2"), MESSAGE_ID: message_id}
    assert decode_headers(encode_headers(headers)) == headers
    assert logical_id(headers, "q", 1) == message_id
