"""Identity of a message and of each copy that a hop makes of it.

A message has one *logical* id for life, and each stored copy has an *origin*. A hop is published
under `{id}@{origin}-r{n}` (retry n), `-d{n}` (defer n), `-dlq` (dead letter), `-m` (back from a
hold queue) or `-replay`.

Why the origin is part of the id. A hop is repeated after a crash, and the duplicate window must
swallow the repetition: so the id has to be a function of what is being hopped, and of nothing
else. But the original is acknowledged on the strength of the answer, so *a duplicate answer must
prove that this copy is stored*. `{id}-r1` alone does not: when a caller publishes id X, it is
retried, and X is published again inside the hold stream's window and retried too, the second
`X-r1` is answered as a duplicate of the first, and the message is acknowledged although no copy of
it exists (PC-049). An id made from a sequence alone has the same hole after a stream has been
deleted and created again, when sequences start over. Stream sequence *and* store time name one
stored copy and no other, so the only thing that can be answered as a duplicate is the very same
copy.

Ids absent from foreign messages are derived from the stream and the sequence, never from nothing
(PC-050). The logical id travels in its own header, so ids do not grow from hop to hop (SW-08).

Proof: `tests/messaging/test_ids.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ._header_names import MESSAGE_ID, MSG_ID

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def origin_of(sequence: int, timestamp_ns: int) -> str:
    """Names one stored copy: its stream sequence and, in hexadecimal, its store time."""
    return f"{sequence}.{timestamp_ns:x}"


def logical_id(headers: Mapping[str, str], stream: str, sequence: int) -> str:
    """The id that stays the same over every attempt and hop of a message.

    `Shove-Message-Id` (there since the first hop), else the publisher's `Nats-Msg-Id`, else
    `{stream}:{sequence}`. Control characters of foreign ids are percent-encoded: every hop id is
    built from this one and has to survive as a header value.
    """
    message_id = headers.get(MESSAGE_ID) or headers.get(MSG_ID) or f"{stream}:{sequence}"
    if message_id.isprintable():
        return message_id
    return _CONTROL.sub(lambda match: f"%{ord(match[0]):02X}", message_id)


def retry_id(message_id: str, origin: str, retry: int) -> str:
    """Id of the copy that waits for retry number `retry` (from 1)."""
    return f"{message_id}@{origin}-r{retry}"


def defer_id(message_id: str, origin: str, defer: int) -> str:
    """Id of the copy that waits after deferral number `defer` (from 1)."""
    return f"{message_id}@{origin}-d{defer}"


def dead_id(message_id: str, origin: str) -> str:
    """Id of the copy in the dead-letter queue."""
    return f"{message_id}@{origin}-dlq"


def return_id(message_id: str, origin: str) -> str:
    """Id of the copy that a hold queue gives back; `origin` is that of the held copy."""
    return f"{message_id}@{origin}-m"


def replay_id(message_id: str, origin: str) -> str:
    """Id of the copy made by replaying a dead letter; `origin` is that of the dead letter."""
    return f"{message_id}@{origin}-replay"
