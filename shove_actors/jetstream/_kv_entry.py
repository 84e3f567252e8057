"""One revision of a key, from the message that stores it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ._ordered_buffer import Pushed
from ._raw_message import RawMessage
from ._times import datetime_of_ns
from ._wire import header_value

OPERATION = "KV-Operation"
_OPERATION = OPERATION.encode()
_REASON = b"Nats-Marker-Reason"


class KeyOperation(str, enum.Enum):
    """What a revision did to its key. The values are the words on the wire."""

    PUT = "PUT"
    DELETE = "DEL"
    PURGE = "PURGE"


_BY_WORD = {b"DEL": KeyOperation.DELETE, b"PURGE": KeyOperation.PURGE}
#: What the server writes when it removes something itself.
_BY_REASON = {
    b"MaxAge": KeyOperation.PURGE,
    b"Purge": KeyOperation.PURGE,
    b"Remove": KeyOperation.DELETE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueEntry:
    """One revision of a key.

    * `value`: always bytes; empty for a marker, and with `meta_only`.
    * `revision`: unique in the bucket, and growing with time.
    * `delta`: how many entries of this watcher were still to come; 0 for the newest.
    * `created`: when the server stored it, in UTC.
    """

    bucket: str
    key: str
    value: bytes
    revision: int
    created: datetime
    operation: KeyOperation = KeyOperation.PUT
    delta: int = 0

    def __repr__(self) -> str:
        # Values may be anybody's secrets.
        return (
            f"<KeyValueEntry {self.bucket}/{self.key} revision {self.revision} "
            f"{self.operation.value} {len(self.value)} bytes>"
        )

    @property
    def is_marker(self) -> bool:
        """A deletion or a purge: the key has no value (any more)."""
        return self.operation is not KeyOperation.PUT


def operation_of(header_block: bytes | None) -> KeyOperation:
    """By whom ever it was written: a client's own word comes before the server's reason."""
    if header_block is None:
        return KeyOperation.PUT
    word = header_value(header_block, _OPERATION)
    if word:
        return _BY_WORD.get(word, KeyOperation.PUT)
    reason = header_value(header_block, _REASON)
    return _BY_REASON.get(reason, KeyOperation.PUT) if reason else KeyOperation.PUT


def entry_of(bucket: str, key: str, message: RawMessage) -> KeyValueEntry:
    return KeyValueEntry(
        bucket=bucket,
        key=key,
        value=message.data,
        revision=message.sequence,
        created=message.time,
        operation=operation_of(message.header_block),
    )


def entry_reader(
    bucket: str, prefix: str, *, ignore_deletes: bool = False
) -> Callable[[Pushed], KeyValueEntry | None]:
    """What makes an entry of a delivery; None for one that is not to be seen."""
    head = prefix.encode()
    width = len(head)

    def read(message: Pushed) -> KeyValueEntry | None:
        subject, sequence, time_ns, pending, header_block, payload = message
        operation = KeyOperation.PUT if header_block is None else operation_of(header_block)
        if ignore_deletes and operation is not KeyOperation.PUT:
            return None
        if not subject.startswith(head):
            return None
        return KeyValueEntry(
            bucket=bucket,
            key=subject[width:].decode("utf-8", "replace"),
            value=payload,
            revision=sequence,
            created=datetime_of_ns(time_ns),
            operation=operation,
            delta=pending,
        )

    return read
