"""One stream: what it takes, what it keeps, and for how long.

Modelled on nats-server 2.15.1 (each rule was watched there):

* a duplicate id is answered with the first sequence before any limit is looked at;
* a refused message leaves nothing behind, neither a sequence nor its id;
* with INTEREST retention and no durable for the subject nothing is stored, yet the sequence is
  used up and the publisher is told "stored";
* a message that expires while it is delivered and unacknowledged stops counting against
  `max_ack_pending`, as if it had been acknowledged;
* ids are remembered for the window, also those of messages that are gone; a restart remembers
  only the ids of messages that are still stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shove_actors._errors import StreamFull
from shove_actors.backends._port import Stored
from shove_actors.messaging import Retention, Storage, matches

from ._timers import Timers

if TYPE_CHECKING:
    from ._durable import Durable

_MSG_ID = b"\r\nNats-Msg-Id:"
_EXPECTED_STREAM = b"\r\nNats-Expected-Stream:"
#: Of how many subjects it is kept in mind which durables read them.
_SUBJECTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream is created with. `max_age_s` and `duplicate_window_s` are seconds.

    Every stream refuses new messages at a limit (discard NEW). None is no limit.
    """

    name: str
    subjects: tuple[str, ...]
    retention: Retention = Retention.WORK_QUEUE
    storage: Storage = Storage.FILE
    max_messages: int | None = None
    max_bytes: int | None = None
    max_age_s: float | None = None
    num_replicas: int = 1
    duplicate_window_s: float = 120.0


@dataclass(slots=True)  # frozen ones take four times as long to make, and there are many
class StoredMessage:
    """One message of a stream; read only. `stored_at` is on the server's clock (seconds).

    `size`: what counts against `max_bytes`.
    """

    sequence: int
    subject: str
    payload: bytes
    header_block: bytes
    stored_at: float
    timestamp_ns: int
    size: int = 0

    def size_in(self, storage: Storage) -> int:
        """Bytes that count against `max_bytes`, record overhead included."""
        size = len(self.subject) + len(self.header_block) + len(self.payload)
        if storage is Storage.MEMORY:
            return size + 16
        return size + 30 + (4 if self.header_block else 0)


class Observer(Protocol):
    """Told what the server does. Must not raise, wait, or touch the server."""

    def stored(self, stream: str, message: StoredMessage) -> None: ...

    def settled(self, stream: str, message: StoredMessage) -> None:
        """Acknowledged by a durable; on a work queue it is gone with that."""
        ...


def message_id(header_block: bytes) -> bytes | None:
    """The value of `Nats-Msg-Id`, spelled exactly so: the server's lookup is case-sensitive."""
    return _value(header_block, _MSG_ID)


def expected_stream(header_block: bytes) -> str | None:
    """The only stream that may store the message."""
    value = _value(header_block, _EXPECTED_STREAM)
    return value.decode() if value is not None else None


def _value(header_block: bytes, name: bytes) -> bytes | None:
    start = header_block.find(name)
    if start < 0:
        return None
    start += len(name)
    return header_block[start : header_block.index(b"\r\n", start)].strip() or None


class Stream:
    """A stream of a `MemoryServer`, with its durables."""

    def __init__(
        self,
        settings: StreamSettings,
        timers: Timers,
        touch: Callable[[Durable], None],
        number: int = 1,
    ) -> None:
        self.settings = settings
        #: Tells it from every other one of its server, also of the same name.
        self.number = number
        self.durables: dict[str, Durable] = {}
        self.messages: dict[int, StoredMessage] = {}
        self.last_sequence = 0
        self.bytes = 0
        self._timers = timers
        self._touch = touch
        self._readers: dict[str, tuple[Durable, ...]] = {}
        self.observer: Observer | None = None
        self._ids: dict[bytes, int] = {}
        self._id_times: deque[tuple[float, bytes, int]] = deque()

    def __repr__(self) -> str:
        return f"<Stream {self.settings.name} holding {len(self.messages)} messages>"

    def add_durable(self, durable: Durable) -> None:
        self.durables[durable.settings.name] = durable
        self._readers.clear()

    def take_durable(self, name: str) -> Durable | None:
        self._readers.clear()
        return self.durables.pop(name, None)

    def _readers_of(self, subject: str) -> tuple[Durable, ...]:
        readers = self._readers.get(subject)
        if readers is None:
            if len(self._readers) >= _SUBJECTS:
                self._readers.clear()
            readers = tuple(d for d in self.durables.values() if d.wants(subject))
            self._readers[subject] = readers
        return readers

    def takes(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.settings.subjects)

    def reconfigure(self, settings: StreamSettings) -> None:
        self.settings = settings
        for sequence in self.messages:
            self._arm_expiry(sequence)

    # ------------------------------------------------------------------------ storing

    def store(
        self, subject: str, payload: bytes, header_block: bytes, now: float, timestamp_ns: int
    ) -> Stored:
        """Raises `StreamFull`; nothing is kept of a message that is refused."""
        name = self.settings.name
        identity = message_id(header_block) if header_block else None
        if identity is not None:
            self._forget_ids(now)
            first = self._ids.get(identity)
            if first is not None:
                return Stored(name, first, duplicate=True)
        message = StoredMessage(
            self.last_sequence + 1, subject, payload, header_block, now, timestamp_ns
        )
        message.size = message.size_in(self.settings.storage)
        readers = self._readers_of(subject)
        keep = bool(readers) or self.settings.retention is not Retention.INTEREST
        if keep:
            self._check_limits(message)
        self.last_sequence = message.sequence
        if identity is not None:
            self._remember_id(identity, message.sequence, now)
        if keep:
            self.messages[message.sequence] = message
            self.bytes += message.size
            if self.settings.max_age_s is not None:
                self._arm_expiry(message.sequence)
            for durable in readers:
                durable.announce(message.sequence)
            if self.observer is not None:
                self.observer.stored(name, message)
        return Stored(name, message.sequence)

    def _check_limits(self, message: StoredMessage) -> None:
        settings = self.settings
        if settings.max_messages is not None and len(self.messages) >= settings.max_messages:
            raise StreamFull(
                f"stream {settings.name!r} is full: max_messages is {settings.max_messages}. "
                "Consume messages, or raise the limit"
            )
        if settings.max_bytes is not None and self.bytes + message.size > settings.max_bytes:
            raise StreamFull(
                f"stream {settings.name!r} is full: max_bytes is {settings.max_bytes}. "
                "Consume messages, or raise the limit"
            )

    # ------------------------------------------------------------------------ removing

    def settled(self, sequence: int) -> None:
        """A durable is done with a message: keep it or not, as the retention says."""
        if self.observer is not None and sequence in self.messages:
            self.observer.settled(self.settings.name, self.messages[sequence])
        retention = self.settings.retention
        if retention is Retention.WORK_QUEUE:
            self.remove(sequence)
        elif retention is Retention.INTEREST:
            message = self.messages.get(sequence)
            if message is not None and not any(
                durable.still_needs(message) for durable in self.durables.values()
            ):
                self.remove(sequence)

    def remove(self, sequence: int) -> bool:
        message = self.messages.pop(sequence, None)
        if message is None:
            return False
        self.bytes -= message.size
        for durable in self._readers_of(message.subject):
            durable.removed(message)
        return True

    def purge(self) -> int:
        """Removes every message; sequences go on. Returns how many there were."""
        sequences = list(self.messages)
        for sequence in sequences:
            self.remove(sequence)
        return len(sequences)

    def close(self) -> None:
        """The stream is deleted. Its durables, and whoever reads them, are gone with it."""
        self.messages.clear()
        for durable in self.durables.values():
            durable.close()
        self.durables.clear()
        self._readers.clear()

    # ------------------------------------------------------------------------ reading

    def browse(self, subject: str | None = None) -> Iterator[StoredMessage]:
        """What is stored now, oldest first; a snapshot. Nothing is delivered or removed."""
        for message in list(self.messages.values()):
            if subject is None or matches(subject, message.subject):
                yield message

    def at_or_after(self, sequence: int) -> StoredMessage | None:
        """The first stored message from `sequence` on."""
        found = self.messages.get(sequence)
        if found is not None:
            return found
        # Ascending: a message is only ever added at the end.
        return next((m for s, m in self.messages.items() if s > sequence), None)

    def from_sequence(self, sequence: int) -> Iterator[StoredMessage]:
        """The stored messages from `sequence` on."""
        return (m for s, m in self.messages.items() if s >= sequence)

    # ------------------------------------------------------------------------- ageing

    def due_at(self, sequence: int) -> float | None:
        message = self.messages.get(sequence)
        if message is None or self.settings.max_age_s is None:
            return None
        return message.stored_at + self.settings.max_age_s

    def fire(self, sequence: int, now: float) -> None:
        self.remove(sequence)

    def _arm_expiry(self, sequence: int) -> None:
        deadline = self.due_at(sequence)
        if deadline is not None:
            self._timers.add(deadline, self, sequence)

    # --------------------------------------------------------------- the duplicate window

    def _remember_id(self, identity: bytes, sequence: int, stored_at: float) -> None:
        self._ids[identity] = sequence
        self._id_times.append((stored_at, identity, sequence))

    def _forget_ids(self, now: float) -> None:
        oldest = now - self.settings.duplicate_window_s
        while self._id_times and self._id_times[0][0] <= oldest:
            _, identity, sequence = self._id_times.popleft()
            # After a restart the same id may be remembered from two stored messages.
            if self._ids.get(identity) == sequence:
                del self._ids[identity]

    def restarted(self, now: float) -> None:
        """Only what is stored can be remembered: the ids of acknowledged messages are gone."""
        self._ids.clear()
        self._id_times.clear()
        for message in self.messages.values():
            identity = message_id(message.header_block)
            if identity is not None:
                self._remember_id(identity, message.sequence, message.stored_at)
        self._forget_ids(now)
