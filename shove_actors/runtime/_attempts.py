"""Attempts that must be remembered beyond a process.

The server counts *deliveries*. That is not the number of attempts: a delivery may have waited
behind another message, may have been handed back by a drain, or taken along when some other message
killed the process. Giving a message up by that number alone would bury messages that no handler
has ever seen. So what matters is written down beside the queue, one small note per message, and
only in the rare cases that need it; a first delivery costs nothing:

failed     Retries that wait in place (sequenced topics, topics without hold queues) are counted
           here, before the NAK. Retries through hold queues are counted in the copy's headers.
started    A message delivered more often than its budget allows is only *suspected* of killing its
           process. Before its handler is called once more, that is noted. If it comes back with the
           note still there, the handler was started and nothing else became of it: convicted, dead
           reason `crashed`. Any other end of the attempt takes the note away.

So an innocent message is handled however often its neighbours crash, a drain costs no attempt, and
a message that kills its process every time does so `max_retries + 2` times: once, once per retry,
and once under suspicion (PC-029, SW-10).

keyed      Where a message that crashed has to be decoded once more, for its sequence key
           (`_poison.py`), that is noted first: if it is the decoder that kills, it does so once.

A note names the stored copy by its time too: a stream
that is deleted and created again starts its sequences over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from shove_actors.backends import Backend


class Noted(Protocol):
    """What a note is about: one stored copy."""

    @property
    def stream(self) -> str: ...
    @property
    def sequence(self) -> int: ...
    @property
    def timestamp_ns(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """`failed`: attempts that ended as RETRY, in place. `started`: a suspect's handler began.
    `keyed`: its key was looked for."""

    failed: int = 0
    started: bool = False
    keyed: bool = False


NONE: Final = Attempts()


class _Note(msgspec.Struct):
    stored_ns: int
    failed: int = 0
    started: bool = False
    keyed: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Note).decode


class AttemptLedger:
    """Notes about the messages of one queue. Errors are the backend's (`ShoveError`)."""

    __slots__ = ("_backend",)

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def read(self, delivery: Noted) -> Attempts:
        """What is known of it; `NONE` without a note, or with one about an earlier stream."""
        raw = await self._backend.read_note(delivery.stream, delivery.sequence)
        if raw is None:
            return NONE
        try:
            note = _decode(raw)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return NONE
        if note.stored_ns != delivery.timestamp_ns:
            return NONE
        return Attempts(failed=note.failed, started=note.started, keyed=note.keyed)

    async def write(self, delivery: Noted, attempts: Attempts) -> None:
        """Returns once the note is stored."""
        note = _Note(delivery.timestamp_ns, attempts.failed, attempts.started, attempts.keyed)
        await self._backend.write_note(delivery.stream, delivery.sequence, _encode(note))
