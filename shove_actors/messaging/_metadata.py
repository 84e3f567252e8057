"""MessageMetadata and DeadMetadata: what a handler can ask about its message.

Built for every delivery and mostly not looked at, so nothing is parsed before somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from ._header_names import (
    DEATH_CAUSE,
    DEATH_COUNT,
    DEATH_DETAIL,
    DEATH_REASON,
    DEFER_COUNT,
    DIED_AT,
    FIRST_FAILED_AT,
    KEY,
    ORIGINAL_QUEUE,
    ORIGINAL_SEQUENCE,
    ORIGINAL_SUBJECT,
    PUBLISHED_AT,
    RETRY_COUNT,
)
from ._headers import decode_key, has_shove_headers, read_counter
from ._ids import logical_id
from ._retry import redeliveries
from ._times import from_ns, from_rfc3339


class Stored(Protocol):
    """A message as its backend delivers it; what metadata are read from.

    `raw_headers` is the full header block, or None for a message without headers; `headers` may be
    decoded from it on first use. `timestamp_ns` is the store time in nanoseconds since 1970.
    """

    @property
    def payload(self) -> bytes: ...
    @property
    def raw_headers(self) -> bytes | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def stream(self) -> str: ...
    @property
    def sequence(self) -> int: ...
    @property
    def timestamp_ns(self) -> int: ...
    @property
    def num_delivered(self) -> int: ...
    @property
    def subject(self) -> str: ...


class MessageMetadata:
    """What is known about one delivery besides its payload. Read-only.

    `retry_count` and `returned` come from the consumer (`effective_retry_count`, and the deliveries
    it knows were handed back unused). Counters that a foreign producer made unreadable raise
    `HeaderError` when asked for.
    """

    __slots__ = ("_retry_count", "_returned", "_shard", "_stored")

    def __init__(
        self,
        stored: Stored,
        *,
        retry_count: int | None = None,
        returned: int = 0,
        shard: int | None = None,
    ) -> None:
        self._stored = stored
        self._retry_count = retry_count
        self._returned = returned
        self._shard = shard

    def _counter(self, name: str) -> int:
        # Most messages were never hopped; one scan of the raw bytes saves decoding all headers.
        raw = self._stored.raw_headers
        if raw is None or not has_shove_headers(raw):
            return 0
        return read_counter(self._stored.headers, name)

    @property
    def retry_count(self) -> int:
        """Retries so far: 0 on the first attempt. DEFER does not raise it."""
        return self._counter(RETRY_COUNT) if self._retry_count is None else self._retry_count

    @property
    def delivery_id(self) -> str:
        """The message's id, the same over all its attempts: make writes idempotent with it."""
        return logical_id(self._stored.headers, self._stored.stream, self._stored.sequence)

    @property
    def attempt(self) -> int:
        """1 on the first attempt; retries, deferrals and crashes each add one."""
        hops = self._counter(RETRY_COUNT) + self._counter(DEFER_COUNT)
        return 1 + hops + redeliveries(self._stored.num_delivered, self._returned)

    @property
    def defer_count(self) -> int:
        """Deferrals so far that waited in a hold queue; repeats for the audit's sake count too.

        A handler that must not defer for ever looks at it, or at `published_at`. On a topic without
        hold queues a deferral leaves no trace but `num_delivered`, and this is 0.
        """
        return self._counter(DEFER_COUNT)

    @property
    def published_at(self) -> datetime | None:
        """When the message was first stored, whatever hops it has made: aware, UTC, by the server.

        None only if a foreign producer wrote what is no time.
        """
        raw = self._stored.raw_headers
        if raw is not None and has_shove_headers(raw):
            text = self._stored.headers.get(PUBLISHED_AT)
            if text is not None:
                return from_rfc3339(text)
        return self.timestamp

    @property
    def redelivered(self) -> bool:
        """Whether a handler may have seen this message before (SW-65)."""
        return self.attempt > 1

    @property
    def headers(self) -> Mapping[str, str]:
        """All headers of the stored message, read-only: the caller's and the system's."""
        return MappingProxyType(dict(self._stored.headers))

    @property
    def stream(self) -> str:
        return self._stored.stream

    @property
    def sequence(self) -> int:
        """Sequence of this stored copy in its stream; a retried message has a new one."""
        return self._stored.sequence

    @property
    def timestamp(self) -> datetime:
        """When this copy was stored: aware, UTC, by the server's clock."""
        return from_ns(self._stored.timestamp_ns)

    @property
    def subject(self) -> str:
        return self._stored.subject

    @property
    def shard(self) -> int | None:
        """The lane of a sequenced topic's message, else None."""
        return self._shard

    @property
    def key(self) -> str | None:
        """The sequence key, else None."""
        value = self._stored.headers.get(KEY)
        return None if value is None else decode_key(value)

    @property
    def replayed(self) -> bool:
        """Whether this message was a dead letter before: it is handled again on purpose.

        `broker.release(topic, key, replay=True)` does that, in the key's order. The attempts it
        had before its death are not counted.
        """
        return self._counter(DEATH_COUNT) > 0

    @property
    def num_delivered(self) -> int:
        """How often the server has delivered this stored copy, this time included."""
        return self._stored.num_delivered

    def __repr__(self) -> str:
        # No headers: they are the caller's data and may hold credentials.
        stored = self._stored
        return (
            f"<{type(self).__name__} {stored.stream}:{stored.sequence} "
            f"delivered {stored.num_delivered}>"
        )


def stored_of(metadata: MessageMetadata) -> Stored:
    """The stored message that metadata speak of; for the runtime."""
    return metadata._stored


class DeadMetadata(MessageMetadata):
    """What a dead letter says about its death. Never raises: a dead letter must be readable.

    Missing or unreadable numbers and times are None (counts: 0). The inherited `stream`,
    `sequence`, `timestamp` and `subject` are those of the dead letter; the `original_` ones are the
    message's.
    """

    __slots__ = ()

    def _number(self, name: str) -> int | None:
        text = self._stored.headers.get(name, "")
        return int(text) if len(text) <= 20 and text.isascii() and text.isdigit() else None

    def _counter(self, name: str) -> int:
        return self._number(name) or 0

    def _time(self, name: str) -> datetime | None:
        return from_rfc3339(self._stored.headers.get(name, ""))

    @property
    def reason(self) -> str:
        """The reason code: a `DeathReason` value, or "" if a foreign hand put the message here."""
        return self._stored.headers.get(DEATH_REASON, "")

    @property
    def cause(self) -> str | None:
        """What led to it: `retry`, `raised`, `timeout`, `reject`, `crash` ..."""
        return self._stored.headers.get(DEATH_CAUSE)

    @property
    def detail(self) -> str | None:
        """Free text, sanitised and shortened; for people, not for matching."""
        return self._stored.headers.get(DEATH_DETAIL)

    @property
    def original_queue(self) -> str | None:
        return self._stored.headers.get(ORIGINAL_QUEUE)

    @property
    def original_subject(self) -> str | None:
        return self._stored.headers.get(ORIGINAL_SUBJECT)

    @property
    def original_sequence(self) -> int | None:
        """Stream sequence under which the message was first stored."""
        return self._number(ORIGINAL_SEQUENCE)

    @property
    def replayed(self) -> bool:
        """Whether it had been a dead letter before it died this time."""
        return self.death_count > 1

    @property
    def death_count(self) -> int:
        """How often it has died: more than 1 after a replay that failed again."""
        return self._counter(DEATH_COUNT)

    @property
    def died_at(self) -> datetime | None:
        return self._time(DIED_AT)

    @property
    def first_failed_at(self) -> datetime | None:
        return self._time(FIRST_FAILED_AT)

    @property
    def published_at(self) -> datetime | None:
        return self._time(PUBLISHED_AT)
