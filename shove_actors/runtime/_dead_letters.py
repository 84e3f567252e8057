"""Dead letters from an operator's side: look at them, put them back, throw them away.

Nothing is consumed: a letter is read where it lies (`Backend.next_message`), so looking changes
nothing, for nobody. Consumers of the dead letters (`run_dlq`) may run meanwhile; a letter that one
of them has in hand while it is replayed here is handled by both.

Replaying stores the message in its topic again, with a fresh budget, and deletes the letter once
the server has acknowledged that. Killed in between, the letter is still there, and the next replay
of it has the same message id: inside the duplicate window (120 s) it is stored once.

Order (sequenced topics): letters of one key are published in the order in which their messages were
first stored, each acknowledged before the next, and the first that cannot be published keeps back
all later ones of its key. They come after whatever of that key was published meanwhile: the topic
did not stop for them (`SequenceFailure.SKIP`). Of a FAIL_ALL topic the letters of a poisoned key
are left alone, because they would only become dead letters again: `release(key, replay=True)` has
them handled by the consumers before anything newer.

Tests: `tests/runtime/test_dead_letters.py`, `tests/cli/test_dlq.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from shove_actors._errors import PublishError, TopologyError, UsageError
from shove_actors.backends import Backend, Kept
from shove_actors.messaging import (
    DEATH_COUNT,
    KEY,
    ORIGINAL_SUBJECT,
    DeadMetadata,
    SequencedTopic,
    Topic,
    decode_headers,
    encode_headers,
    encode_key,
    letter_origin,
    logical_id,
    origin_of,
    replay_headers,
    replay_id,
)

from ._publish_service import PublishService
from ._release import poisoned

#: What becomes of a letter that is not replayed.
POISONED: Final = "its key is poisoned"
FOREIGN: Final = "it is a letter of another topic"
NO_KEY: Final = "its key cannot be found out"
NO_SUBJECT: Final = "its subject cannot be found out"
BEHIND: Final = "an earlier letter of its key could not be published"


@dataclass(frozen=True, kw_only=True)
class LetterFilter:
    """Which letters are meant; all that is given must fit, nothing given means all.

    `reasons`: `DeathReason` values. `older_than`, `newer_than`: seconds since it died. `keys`:
    sequence keys. `sequences`: in the dead-letter queue. `limit`: the first so many.
    """

    reasons: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    sequences: frozenset[int] = frozenset()
    older_than: float | None = None
    newer_than: float | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit={self.limit}: at least 1, or None for all")
        for name in ("older_than", "newer_than"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UsageError(f"{name}={value}: a number of seconds, at least 0")

    def takes(self, letter: DeadLetter, now_ns: int) -> bool:
        age_s = (now_ns - letter.died_ns) / 1e9
        return (
            (not self.reasons or letter.metadata.reason in self.reasons)
            and (not self.keys or letter.key in self.keys)
            and (not self.sequences or letter.sequence in self.sequences)
            and (self.older_than is None or age_s > self.older_than)
            and (self.newer_than is None or age_s <= self.newer_than)
        )


class DeadLetter:
    """One stored dead letter. Satisfies `messaging.Stored`, so `metadata` can read its story."""

    num_delivered = 0

    def __init__(self, queue: str, kept: Kept, key: str | None = None) -> None:
        self.stream = queue
        self.payload = kept.payload
        self.raw_headers = kept.raw_headers
        self.sequence = kept.sequence
        self.timestamp_ns = kept.timestamp_ns
        self.subject = kept.subject
        self._key = key

    def __repr__(self) -> str:
        return f"<DeadLetter {self.stream}:{self.sequence} {self.metadata.reason}>"

    @cached_property
    def headers(self) -> Mapping[str, str]:
        return MappingProxyType(decode_headers(self.raw_headers) if self.raw_headers else {})

    @cached_property
    def metadata(self) -> DeadMetadata:
        return DeadMetadata(self)

    @property
    def key(self) -> str | None:
        """Its sequence key, from its header or else from its payload; None if it has none."""
        found = self.metadata.key
        return self._key if found is None else found

    @property
    def died_at(self) -> datetime:
        return self.metadata.died_at or self.metadata.timestamp

    @property
    def died_ns(self) -> int:
        return int(self.died_at.timestamp() * 1e9)

    @property
    def place(self) -> tuple[int, int]:
        """Sorts letters as their messages were first stored: by time, then by sequence.

        The time comes first because sequences start over when a stream is made again.
        """
        sequence, stored_ns = letter_origin(self.headers) or (self.sequence, 0)
        return stored_ns or self.timestamp_ns, sequence


@dataclass(kw_only=True)
class DeadLettersDone:
    """What `replay` or `purge` did. `skipped`: letters that stay, by reason; `failure`: the first
    error of a publish, whose letter stays too."""

    done: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    poisoned_keys: set[str] = field(default_factory=set)
    failure: str | None = None


async def browse(
    backend: Backend, topic: Topic[Any], selection: LetterFilter
) -> AsyncGenerator[DeadLetter, None]:
    """The letters that `selection` takes, oldest death first; what dies meanwhile is not among
    them. Use it in `contextlib.aclosing` if you may leave the loop early.

    Raises `UsageError` for a topic without a dead-letter queue, `TopicNotDeclared`,
    `ConnectionError`.
    """
    dlq = queue_of(topic)
    now_ns = backend.now_ns()
    last, sequence, found = await backend.last_sequence(dlq), 1, 0
    while sequence <= last:
        kept = await backend.next_message(dlq, sequence)
        if kept is None or kept.sequence > last:
            return
        sequence = kept.sequence + 1
        letter = _letter(topic, dlq, kept)
        if selection.takes(letter, now_ns):
            yield letter
            found += 1
            if found == selection.limit:
                return


def queue_of(topic: Topic[Any]) -> str:
    """The dead-letter queue of a topic."""
    if topic.topology.dlq is None:
        raise UsageError(
            f"topic {topic.queue!r} has no dead-letter queue: what it gives up on is discarded. "
            "Add .dlq() to its topology"
        )
    return topic.topology.dlq


def _letter(topic: Topic[Any], dlq: str, kept: Kept) -> DeadLetter:
    letter = DeadLetter(dlq, kept)
    if isinstance(topic, SequencedTopic) and KEY not in letter.headers:
        # Of a foreign producer, who says no key: it is in the payload, if anywhere.
        try:
            key = topic.key_of(topic.decode(kept.payload))
        except Exception:
            return letter
        return DeadLetter(dlq, kept, key)
    return letter


async def replay(
    service: PublishService,
    topic: Topic[Any],
    selection: LetterFilter,
    *,
    dry_run: bool = False,
) -> DeadLettersDone:
    """Publish the letters that `selection` takes to their topic again. See the module's essay.

    `dry_run`: nothing is changed, `done` is how many would be. Raises what `browse` raises, and
    `TopologyError` if the number of shards is not the stream's. Cancelled, it has replayed some;
    repeating it goes on.
    """
    backend, dlq = service.backend, queue_of(topic)
    report = DeadLettersDone()
    held = {each.key for each in await poisoned(backend, topic)} if _fails_all(topic) else set()
    letters = [letter async for letter in browse(backend, topic, selection)]
    if topic.topology.sequenced:
        letters.sort(key=lambda letter: letter.place)
        service.fence.expect(topic.queue, topic.topology.routing_shards)
    stuck: set[str] = set()
    stored: set[str] = set()
    for letter in letters:
        subject = _subject(topic, letter, held, stuck, report)
        if subject is None:
            continue
        if not dry_run:
            message_id = logical_id(letter.headers, letter.stream, letter.sequence)
            origin = f"{message_id}@{letter.place}"
            if origin not in stored:  # a crash may have stored one death twice
                try:
                    block = _headers(topic, letter, message_id)
                    await service.publish(subject, letter.payload, block)
                except PublishError as exc:
                    report.failure = report.failure or str(exc)
                    if letter.key is not None:
                        stuck.add(letter.key)
                    continue
                stored.add(origin)
            await backend.delete_message(dlq, letter.sequence)
        report.done += 1
    return report


async def purge(
    backend: Backend, topic: Topic[Any], selection: LetterFilter, *, dry_run: bool = False
) -> DeadLettersDone:
    """Delete the letters that `selection` takes, for good. Raises what `browse` raises."""
    report = DeadLettersDone()
    dlq = queue_of(topic)
    numbers = [letter.sequence async for letter in browse(backend, topic, selection)]
    for number in numbers:
        if dry_run or await backend.delete_message(dlq, number):
            report.done += 1
    return report


def _fails_all(topic: Topic[Any]) -> bool:
    return topic.topology.fails_all


def _subject(
    topic: Topic[Any],
    letter: DeadLetter,
    held: set[str],
    stuck: set[str],
    report: DeadLettersDone,
) -> str | None:
    """Where a letter is published; None, and the reason is noted, if it stays."""
    owner = letter.metadata.original_queue
    key = letter.key
    if owner is not None and owner != topic.queue:
        report.skipped[FOREIGN] += 1
        return None
    if isinstance(topic, SequencedTopic):
        if key is None:
            report.skipped[NO_KEY] += 1
        elif key in held:
            report.skipped[POISONED] += 1
            report.poisoned_keys.add(key)
        elif key in stuck:
            report.skipped[BEHIND] += 1
        else:
            return topic.topology.shard_subject(topic.shard_of(key))
        return None
    subject = letter.headers.get(ORIGINAL_SUBJECT)
    if subject is not None:
        try:
            return topic.topology.check_subject(subject)
        except TopologyError:
            pass  # the topic does not bind it any more
    subject = topic.topology.default_subject
    if subject is None:
        report.skipped[NO_SUBJECT] += 1
    return subject


def _headers(topic: Topic[Any], letter: DeadLetter, message_id: str) -> bytes:
    origin = origin_of(letter.sequence, letter.timestamp_ns)
    headers = replay_headers(
        letter.headers,
        msg_id=replay_id(message_id, origin),
        message_id=message_id,
        origin=origin,
    )
    if letter.key is not None:
        headers[KEY] = encode_key(letter.key)
    headers.setdefault(DEATH_COUNT, "1")
    return encode_headers(headers, into=topic.queue)
