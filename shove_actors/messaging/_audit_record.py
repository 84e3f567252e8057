"""AuditRecord: what is written down about one attempt at a message.

The trace id joins the records of one message. It is not stored anywhere: it is the message's own
`x-trace-id` header, which every copy carries, or else a function of the topic and the message's
logical id, which is the same over retries in place, hops, dead letters and replays (SW-62). So a
message that nobody stamped has the same trace id in every process and after every crash.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Literal, TypeAlias, TypeVar

from ._header_names import MESSAGE_ID, MSG_ID
from ._ids import logical_id
from ._metadata import MessageMetadata
from ._outcome import Outcome

M = TypeVar("M")

_TRACE_ID = "x-trace-id"
"""A caller's own trace id; the audit trail uses it when it is there."""

AttemptCause: TypeAlias = Literal["outcome", "raised", "timeout", "invalid", "interrupted"]

_NAMESPACE = uuid.UUID("9d2f3a52-6c58-5d0e-9f0e-0a6c1f4b7e11").bytes
# A dead letter that could not grow carries no logical id, but its own is made from it.
_DEAD_ID = re.compile(r"(.+)@[0-9]+\.[0-9a-f]+-dlq")


@dataclass(frozen=True, kw_only=True)
class AuditRecord(Generic[M]):
    """One attempt at one message: what was tried, and how it ended.

    `trace_id`: the same for all attempts at a message; its `x-trace-id` header, else derived from
    its id. `topic`: the queue's name, also for its dead letters. `payload`: the message as the
    handler got it. `metadata`: of this delivery. `outcome`: what the attempt came to: an attempt
    that raised, timed out or returned no outcome is a RETRY, one that was cut short by a drain, a
    kill or a lost lease is `Outcome.INTERRUPTED`. `duration_ms`: milliseconds in the handler.
    `timestamp`: when it ended; aware, UTC, by the server's clock.

    `cause` says where the outcome came from, `detail` adds a word (a reason, the type of an
    exception). `raw` is the payload as it is stored, whatever the handler did to `payload`.
    Neither payload is part of the `repr`.
    """

    trace_id: str
    topic: str
    payload: M = field(repr=False)
    metadata: MessageMetadata
    outcome: Outcome
    duration_ms: float
    timestamp: datetime
    cause: AttemptCause = "outcome"
    detail: str | None = None
    raw: bytes = field(default=b"", repr=False)


def trace_id_of(topic: str, headers: Mapping[str, str], stream: str, sequence: int) -> str:
    """The trace id of a stored message; see the module's essay."""
    own = headers.get(_TRACE_ID)
    if not own:
        own = next((v for name, v in headers.items() if name.lower() == _TRACE_ID), "")
    if own:
        return own
    message_id = logical_id(headers, stream, sequence)
    if MESSAGE_ID not in headers and (dead := _DEAD_ID.fullmatch(headers.get(MSG_ID, ""))):
        message_id = dead[1]
    name = f"{topic}\n{message_id}".encode("utf-8", "surrogateescape")
    digest = hashlib.sha1(_NAMESPACE + name, usedforsecurity=False).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))
