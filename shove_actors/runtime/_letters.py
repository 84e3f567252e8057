"""The dead letters of one poisoned key, found among those of all keys.

All of them are stored by the time they are looked for, and what is added meanwhile is of other
keys (`_replay.py`). Only the server's order of one stream is relied on, so a dead-letter queue that
was deleted and made anew since is read from its beginning.
"""

from __future__ import annotations

from typing import Any

from shove_actors.backends import Backend, Kept
from shove_actors.messaging import (
    CONTROL,
    KEY,
    ORIGINAL_QUEUE,
    PoisonRecord,
    SequencedTopic,
    decode_headers,
    decode_key,
    letter_origin,
)

from ._replay_lane import Letter, in_order


async def find_letters(
    backend: Backend, topic: SequencedTopic[Any], dlq: str, key: str, record: PoisonRecord
) -> list[Letter]:
    """What died of this key since it was poisoned, in the order of the topic's stream."""
    found: dict[tuple[int, int], Letter] = {}
    end = await backend.stream_end(dlq)
    known = end.made == record.letters_in and record.letters_after <= end.sequence
    sequence = record.letters_after + 1 if known else 1
    while sequence <= end.sequence:
        batch = await backend.next_messages(dlq, sequence)
        if not batch:
            break
        sequence = batch[-1].sequence + 1
        for kept in batch:
            origin = _origin_if_of(topic, key, kept)
            if origin is None:
                continue
            number, stored_ns = origin
            if number >= record.sequence or stored_ns > record.stored_ns:
                letter = found.setdefault(origin, Letter(number, stored_ns))
                letter.copies.append(kept.sequence)
    return list(in_order(found, record.sequence))


def _origin_if_of(topic: SequencedTopic[Any], key: str, kept: Kept) -> tuple[int, int] | None:
    headers = decode_headers(kept.raw_headers) if kept.raw_headers else {}
    if headers.get(ORIGINAL_QUEUE) != topic.queue or CONTROL in headers:
        return None
    value = headers.get(KEY)
    if value is not None:
        own = decode_key(value)
    else:
        try:
            own = topic.key_of(topic.decode(kept.payload))
        except Exception:
            return None  # it has no key, so it has poisoned none (`PoisonGate.condemn`)
    return letter_origin(headers) if own == key else None
