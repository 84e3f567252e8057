"""Why a message died, and the story that travels with it into the dead-letter queue."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ._header_names import (
    DEATH_CAUSE,
    DEATH_COUNT,
    DEATH_DETAIL,
    DEATH_REASON,
    DEFER_COUNT,
    DIED_AT,
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
    ORIGINAL_STREAM,
    ORIGINAL_SUBJECT,
    PUBLISHED_AT,
    RETRY_COUNT,
)
from ._headers import copy_headers, encode_key, keep_first
from ._times import rfc3339

MAX_DETAIL = 200


class DeathReason(str, Enum):
    """Stable reason codes: match on these, read the detail (SW-19)."""

    REJECTED = "rejected"
    """The handler rejected it."""
    MAX_RETRIES_EXCEEDED = "max_retries_exceeded"
    """It failed once more than `max_retries` allows; the cause says how."""
    UNDECODABLE = "undecodable"
    """The payload is not the topic's message type; no handler was called."""
    OVERSIZE = "oversize"
    """The payload is larger than `max_message_size`; no handler was called."""
    CRASHED = "crashed"
    """It was delivered again and again without any handler finishing: it ends its process."""
    SEQUENCE_FAILED = "sequence_failed"
    """An earlier message of its key failed, and the topic fails the rest of the key with it."""
    FOREIGN_HEADER = "foreign_header"
    """Headers that only a server or this package may write, from a foreign producer."""

    # The value itself on every Python: what `str` of a mixed-in member gives has changed.
    def __str__(self) -> str:
        return self.value


def sanitise_detail(text: str | None) -> str | None:
    """A free text as a header value: printable, one line, at most 200 characters; None if empty.

    Error texts come from anywhere and hold anything; a newline in one would be a header (PC-058).
    """
    if text is None:
        return None
    # Cut first: the text may be megabytes, and only its beginning is looked at.
    head = text[: 4 * MAX_DETAIL]
    clean = " ".join("".join(c if c.isprintable() else " " for c in head).split())
    if len(clean) > MAX_DETAIL:
        clean = clean[: MAX_DETAIL - 3].rstrip() + "..."
    return clean or None


def _death_count(original: Mapping[str, str]) -> int:
    # An unreadable count is no reason to lose a dead letter: it counts as the first death.
    text = original.get(DEATH_COUNT, "")
    return int(text) if len(text) <= 9 and text.isascii() and text.isdigit() else 0


def dead_headers(
    original: Mapping[str, str],
    *,
    msg_id: str,
    message_id: str,
    origin: str,
    reason: DeathReason,
    cause: str | None = None,
    detail: str | None = None,
    queue: str,
    subject: str,
    stream: str,
    sequence: int,
    key: str | None = None,
    retry_count: int = 0,
    published_at_ns: int | None = None,
    first_failed_at_ns: int | None = None,
    died_at_ns: int,
    minimal: bool = False,
) -> dict[str, str]:
    """Headers of a dead letter: the message's own plus the story of its death.

    Where it first was (queue, subject, stream, sequence, key, publish time, first failure) is kept
    from an earlier hop when there was one; the death itself is written anew, and
    `Shove-Death-Count` goes up by one. Times are nanoseconds since 1970.

    `minimal=True` is for a message that is as large as the server allows and cannot grow (PC-056):
    only what identifies it and why it died, without the message's own headers. Its key, if given,
    is part of that: without it a replay of the key could not find the letter.
    """
    deaths = str(_death_count(original) + 1)
    if minimal:
        least = {
            MSG_ID: msg_id,
            DEATH_REASON: reason.value,
            DEATH_COUNT: deaths,
            ORIGINAL_QUEUE: original.get(ORIGINAL_QUEUE, queue),
            ORIGINAL_SEQUENCE: original.get(ORIGINAL_SEQUENCE, str(sequence)),
        }
        if key is not None:
            least[KEY] = encode_key(key)
        return least
    headers = copy_headers(original)
    for stale in (DUE_AFTER, DEATH_CAUSE, DEATH_DETAIL):
        headers.pop(stale, None)
    headers[MSG_ID] = msg_id
    headers[MESSAGE_ID] = message_id
    headers[ORIGIN] = origin
    headers[RETRY_COUNT] = str(retry_count)
    headers[DEATH_REASON] = reason.value
    headers[DEATH_COUNT] = deaths
    headers[DIED_AT] = rfc3339(died_at_ns)
    for name, text in ((DEATH_CAUSE, cause), (DEATH_DETAIL, detail)):
        clean = sanitise_detail(text)
        if clean is not None:
            headers[name] = clean
    failed = died_at_ns if first_failed_at_ns is None else first_failed_at_ns
    keep_first(
        headers,
        {
            ORIGINAL_QUEUE: queue,
            ORIGINAL_SUBJECT: subject,
            ORIGINAL_STREAM: stream,
            ORIGINAL_SEQUENCE: str(sequence),
            KEY: None if key is None else encode_key(key),
            PUBLISHED_AT: None if published_at_ns is None else rfc3339(published_at_ns),
            FIRST_FAILED_AT: rfc3339(failed),
        },
    )
    return headers


# What a replayed message leaves behind: its death and its counters. It keeps its logical id, its
# key and the count of its deaths, which is how a message that dies again and again is seen.
_LEFT_BY_REPLAY = frozenset(
    {
        RETRY_COUNT,
        DEFER_COUNT,
        DUE_AFTER,
        DEATH_REASON,
        DEATH_CAUSE,
        DEATH_DETAIL,
        DIED_AT,
        FIRST_FAILED_AT,
        FOREIGN_STATUS,
        FOREIGN_DESCRIPTION,
        ORIGINAL_QUEUE,
        ORIGINAL_SUBJECT,
        ORIGINAL_STREAM,
        ORIGINAL_SEQUENCE,
        PUBLISHED_AT,
    }
)


def replay_headers(
    original: Mapping[str, str], *, msg_id: str, message_id: str, origin: str
) -> dict[str, str]:
    """Headers of a dead letter that is published to its topic again, with a fresh budget."""
    headers = copy_headers(original)
    for name in _LEFT_BY_REPLAY:
        headers.pop(name, None)
    headers[MSG_ID] = msg_id
    headers[MESSAGE_ID] = message_id
    headers[ORIGIN] = origin
    return headers
