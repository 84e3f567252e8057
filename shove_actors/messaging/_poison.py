"""Poisoned keys of a FAIL_ALL topic: the record of one, and the name it is kept under.

A record is the value of one key of the bucket `{queue}-poison`. It says which stored message
poisoned the sequence key (stream sequence *and* store time, since sequences start over when a
stream is deleted and made again) and why, so that a process that finds the message again after a
crash can finish what was begun, with the reason that was decided then.

The bucket's key is a function of the sequence key, and no two sequence keys share one: a sequence
key may be any str, a bucket key may not (it is part of a subject), so the first two characters say
how it was made. `k-` is the sequence key itself, `b-` its UTF-8 in base64url, `h-` the SHA-256 of a
long one.

A *poisoning* is what begins when a key is poisoned and ends when it is released. Its record may be
replaced meanwhile: a replay that stops at another letter writes that one into it. A request to
replay is made by somebody who looked at one poisoning, and may arrive when that is over and the key
was poisoned again, by messages that nobody has looked at. So a request names its poisoning
(`poisoning_of`): by the revision of the record that began it, and when that one's message was
stored. Revisions of a bucket are never given twice, so after a release, when the record is gone,
no later record has the name: what replaces a record copies it (`began`), what is written where
there is none has its own revision, which is a newer one. The store time is for a bucket that was
deleted and made anew, where revisions start over: its messages are newer.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

import msgspec

from shove_actors._errors import TopologyError

from ._death import sanitise_detail
from ._header_names import (
    CONTROL,
    KEY,
    MESSAGE_ID,
    MSG_ID,
    ORIGIN,
    ORIGINAL_SEQUENCE,
    POISONING,
)
from ._headers import decode_key, encode_key
from ._ids import logical_id
from ._names import poison_bucket, shown
from ._times import from_rfc3339

#: A bucket key longer than this would be one that people cannot read either.
MAX_NAME: Final = 150

_SAFE = re.compile(r"[A-Za-z0-9_=/-]+")
_ORIGIN = re.compile(r"(\d{1,20})\.([0-9a-f]{1,16})")
_DEAD_ID = re.compile(r"(.*)@(\d{1,20}\.[0-9a-f]{1,16})-dlq", re.DOTALL)


class Control(str, Enum):
    """What a control message (header `Shove-Control`) asks the consumers of a topic to do."""

    REPLAY = "replay"
    """Handle the dead letters of the poisoned key, then let it go on."""


def control_headers(
    control: Control, *, key: str, poisoning: str, message_id: str
) -> dict[str, str]:
    """Headers of a message to the consumers of a topic about one poisoning of a key."""
    return {
        MSG_ID: message_id,
        CONTROL: control.value,
        KEY: encode_key(key),
        POISONING: poisoning,
    }


def skip_refusal(queue: str) -> TopologyError:
    """The queue has a bucket of poisoned keys, and a topic without FAIL_ALL names it."""
    bucket = poison_bucket(queue)
    return TopologyError(
        f"topic {shown(queue)} says SequenceFailure.SKIP, but it has the bucket {shown(bucket)} of "
        "poisoned keys, so other programs say FAIL_ALL: this one would handle messages of keys "
        "that are poisoned for the others. Use .sequenced(SequenceFailure.FAIL_ALL) here too. To "
        "change the topic for good, stop every program that says FAIL_ALL, then delete the bucket "
        f"(`nats kv del {bucket}`), which releases every key"
    )


def mark_name(key: str) -> str:
    """The bucket key of a sequence key. Injective; a valid one for every str."""
    if _SAFE.fullmatch(key) is not None and len(key) <= MAX_NAME:
        return f"k-{key}"
    raw = key.encode("utf-8", "surrogatepass")
    text = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    if len(text) <= MAX_NAME:
        return f"b-{text}"
    return f"h-{hashlib.sha256(raw).hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class PoisonedKey:
    """A key of which nothing is handled, and the message that made it so.

    `sequence` is that message's in the topic's stream, `message_id` what its handler knew as
    `delivery_id`. `reason` is a `DeathReason` value; `detail` is text for people. `since`: when
    it was poisoned, or when the last replay of it stopped at another message; None if unreadable.
    """

    key: str
    shard: int
    reason: str
    cause: str | None
    detail: str | None
    sequence: int
    message_id: str
    since: datetime | None


class PoisonRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As it is stored. `shove_key` is the exact key, spelled as in the header; `key` is for people.

    `stored_ns`: when the poisoning message was stored. `retries`: how often it had been retried.
    `replay`: the control message whose replay stopped here, "" if none did. `began`: the name of
    the poisoning, "" in the record that began it. `letters_after`: all its dead letters are behind
    this sequence of the dead-letter queue `letters_in` (`StreamEnd.made`).
    """

    shove_key: str
    key: str = ""
    shard: int = 0
    sequence: int = 0
    stored_ns: int = 0
    message_id: str = ""
    reason: str = ""
    cause: str = ""
    detail: str = ""
    retries: int = 0
    poisoned_at: str = ""
    replay: str = ""
    began: str = ""
    letters_after: int = 0
    letters_in: str = ""

    def about(self, sequence: int, stored_ns: int) -> bool:
        """Whether it was this stored message that poisoned the key."""
        return self.sequence == sequence and self.stored_ns == stored_ns

    def shown(self) -> PoisonedKey:
        return PoisonedKey(
            key=decode_key(self.shove_key),
            shard=self.shard,
            reason=self.reason,
            cause=self.cause or None,
            detail=self.detail or None,
            sequence=self.sequence,
            message_id=self.message_id,
            since=from_rfc3339(self.poisoned_at),
        )


def poison_record(
    key: str,
    *,
    shard: int,
    sequence: int,
    stored_ns: int,
    message_id: str,
    reason: str,
    cause: str | None,
    detail: str | None,
    retries: int,
    poisoned_at: str,
    replay: str = "",
    began: str = "",
    letters_after: int = 0,
    letters_in: str = "",
) -> PoisonRecord:
    """A record whose every text can be written: ids and details come from anywhere."""
    return PoisonRecord(
        shove_key=encode_key(key),
        key=_writable(key),
        shard=shard,
        sequence=sequence,
        stored_ns=stored_ns,
        message_id=_writable(message_id),
        reason=reason,
        cause=cause or "",
        detail=sanitise_detail(detail) or "",
        retries=retries,
        poisoned_at=poisoned_at,
        replay=replay,
        began=began,
        letters_after=letters_after,
        letters_in=letters_in,
    )


def poisoning_of(record: PoisonRecord, revision: int) -> str:
    """The name of the poisoning that a record at `revision` is of; see the module."""
    return record.began or f"{revision}.{record.stored_ns:x}"


def _writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PoisonRecord).decode


def encode_record(record: PoisonRecord) -> bytes:
    return _encode(record)


def decode_record(data: bytes, name: str) -> PoisonRecord:
    """The record kept under `name`. Never raises: a key that is marked is poisoned.

    A value that somebody else wrote says nothing about why; of its name alone, a readable or
    base64 key is known again.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError):
        key = _key_of(name)
        return PoisonRecord(
            shove_key=encode_key(key), key=_writable(key), detail="its record is not readable"
        )


def _key_of(name: str) -> str:
    kind, text = name[:2], name[2:]
    if kind == "k-":
        return text
    if kind == "b-":
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            return raw.decode("utf-8", "surrogatepass")
        except ValueError:
            return name  # not one of ours: somebody has made it up
    return name  # the rest is a hash, or made up


def letter_origin(headers: Mapping[str, str]) -> tuple[int, int] | None:
    """(stream sequence, store time) of the message that a dead letter is a copy of, if it says."""
    match = _ORIGIN.fullmatch(headers.get(ORIGIN, ""))
    if match is None:
        # A letter that had no room for its story still has the id made of it.
        named = _DEAD_ID.fullmatch(headers.get(MSG_ID, ""))
        match = _ORIGIN.fullmatch(named[2]) if named is not None else None
    if match is not None:
        return int(match[1]), int(match[2], 16)
    text = headers.get(ORIGINAL_SEQUENCE, "")
    return (int(text), 0) if len(text) <= 20 and text.isascii() and text.isdigit() else None


def letter_id(headers: Mapping[str, str], stream: str, sequence: int) -> str:
    """The logical id of the message that a dead letter is a copy of."""
    if MESSAGE_ID not in headers:
        named = _DEAD_ID.fullmatch(headers.get(MSG_ID, ""))
        if named is not None:
            return named[1]
    return logical_id(headers, stream, sequence)
