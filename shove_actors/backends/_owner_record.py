"""Who owns a shard of a keyed topic: one small record per shard, changed by compare-and-swap only.

`handed_on` says that its owner let go in order: nothing of the shard is in its hands any more, and
nothing will be. Without it an owner may still be running handlers, until its lease has passed:
the lease that *it* lives by, which its record names, because processes may be built with different
ones (a deploy that changes `ack_wait`).

A record that is missing means one of two things. Nobody ever had the shard: it is free. Or it was
lost (deleted, or its bucket was): then somebody may have handlers running, and neither who nor
since when is known. `lost_record` stands for that. Who can tell them apart is the backend
(`PinnedDurable.read_owner`), and whoever has seen a record before (`Ownership.read`).

What a takeover rewinds loses the server's counts of deliveries (2.15.1 counts from 1 again), and
with them what finds a message that kills every process that handles it. So they are kept here: for
each owner that did not let go in order, the range of sequences that it may have had in hand. They
are sequences of one stream, which the record names: one that was deleted and declared anew counts
from 1 again.

Nor does a durable know how long a message was to wait for its next try. Who lets go in order leaves
that here (`tries`), as what is left of it: clocks need not agree, and the gap until somebody takes
the shard makes it longer, never shorter. After a crash nobody knows, and it is tried at once.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Ranges of lost owners that are remembered, the newest. More than any budget of retries that is
#: in use; beyond it a message is suspected later than it could be.
REMEMBERED: Final = 64
#: Waits that are handed on, the longest: about 30 kB. What is beyond them is tried too early.
TRIES_MOST: Final = 1000


class OwnerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`owner`: names one lane of one process. `high`: no sequence above it was ever delivered.

    `lost`: first and last sequence of what each owner that vanished may have had in hand. `lease`:
    the owner's, in seconds; 0 in a record of those who do not write it. `stream`: names the stream
    of the sequences among all that had its name; empty if that is not known. `tries`: sequences
    that were not to be tried before so many seconds had passed.
    """

    owner: str
    handed_on: bool = False
    high: int = 0
    lost: tuple[tuple[int, int], ...] = ()
    lease: float = 0.0
    stream: str = ""
    tries: tuple[tuple[int, float], ...] = ()

    def deliveries(self, sequence: int) -> int:
        """How often the message was delivered to owners, this one included."""
        if sequence > self.high:
            return 1
        found = sum(first <= sequence <= last for first, last in self.lost)
        return max(2, 1 + found)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(OwnerRecord).decode


def encode_owner(record: OwnerRecord) -> bytes:
    return _encode(record)


def decode_owner(value: bytes | None) -> OwnerRecord | None:
    """None: there is none. What nobody can read belongs to somebody whose lease has to pass."""
    if value is None:
        return None
    try:
        return _decode(value)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return lost_record()


def lost_record(lease_s: float = 0.0) -> OwnerRecord:
    """Of somebody of whom nothing is known, but how long its lease may be."""
    return OwnerRecord(owner="", lease=lease_s)


def claimed(
    before: OwnerRecord | None,
    owner: str,
    *,
    floor: int,
    high: int,
    ours: bool = False,
    lease_s: float = 0.0,
    stream: str = "",
) -> OwnerRecord:
    """The record of whoever follows `before`. `floor`: up to there everything is settled.

    `high`: the last that the server says it has delivered, to whomever. `ours`: it was our own,
    and we know that what we had in hand has not killed us. `stream`: the one that is there now.
    """
    if before is None or (before.stream and stream and before.stream != stream):
        # What was delivered so far of this stream was thrown away by those who stand by.
        return OwnerRecord(owner=owner, lease=lease_s, stream=stream)
    lost = [span for span in before.lost if span[1] > floor]
    if before.handed_on:
        high = before.high
    else:
        high = max(high, before.high)
        if not ours and high > floor:
            lost.append((floor + 1, high))
    return OwnerRecord(
        owner=owner,
        high=high,
        lost=tuple(lost[-REMEMBERED:]),
        lease=lease_s,
        stream=stream or before.stream,
    )
