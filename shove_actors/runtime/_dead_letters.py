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

Looking reads some hundreds at a time (`Backend.next_messages`), and from a replica that may lag
behind: a letter that was deleted a moment ago may be seen. Replaying therefore looks first and
remembers place and number only, which also keeps the memory small, and then reads each letter once
more, from the leader: what somebody else has dealt with meanwhile is not replayed.

The face of this is `Broker.dead_letters`, `replay_dead_letters`, `purge_dead_letters`.

Tests: `tests/runtime/test_dead_letters.py`, `tests/runtime/test_dead_letters_face.py`,
`tests/cli/test_dlq.py`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from shove_actors._errors import PublishError, TopologyError, UsageError
from shove_actors.backends import Backend, Kept
from shove_actors.messaging import (
    DEATH_COUNT,
    KEY,
    ORIGINAL_SUBJECT,
    SequencedTopic,
    Topic,
    encode_headers,
    encode_key,
    logical_id,
    origin_of,
    replay_headers,
    replay_id,
)

from ._dead_letter import DeadLetter, DeadLettersDone, LetterFilter
from ._publish_service import PublishService
from ._release import poisoned

#: What becomes of a letter that is not replayed.
POISONED: Final = "its key is poisoned"
FOREIGN: Final = "it is a letter of another topic"
NO_KEY: Final = "its key cannot be found out"
NO_SUBJECT: Final = "its subject cannot be found out"
BEHIND: Final = "an earlier letter of its key could not be published"


@dataclass
class _Tally:
    """What becomes a `DeadLettersDone`."""

    done: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    poisoned_keys: set[str] = field(default_factory=set)
    failure: str | None = None

    def report(self) -> DeadLettersDone:
        return DeadLettersDone(
            done=self.done,
            skipped=dict(self.skipped),
            poisoned_keys=frozenset(self.poisoned_keys),
            failure=self.failure,
        )


class Browsing(AsyncIterator[DeadLetter]):
    """A walk through the letters. No generator: whoever leaves it early has nothing to close."""

    def __init__(self, backend: Backend, topic: Topic[Any], selection: LetterFilter) -> None:
        self._backend = backend
        self._topic = topic
        self._selection = selection
        self._dlq = queue_of(topic)
        self._now_ns = backend.now_ns()
        self._ahead: deque[Kept] = deque()
        self._next = min(selection.sequences, default=1)
        self._last: int | None = None
        self._found = 0

    def __aiter__(self) -> Browsing:
        return self

    async def __anext__(self) -> DeadLetter:
        while self._found != self._selection.limit:
            kept = await self._following()
            if kept is None:
                break
            letter = _letter(self._topic, self._dlq, kept)
            if self._selection.takes(letter, self._now_ns):
                self._found += 1
                return letter
        self._ahead.clear()
        raise StopAsyncIteration

    async def _following(self) -> Kept | None:
        if self._last is None:
            self._last = await self._backend.last_sequence(self._dlq)
            # Those that are named by number: nothing else is read.
            self._last = min([self._last, max(self._selection.sequences, default=self._last)])
        if not self._ahead and self._next == self._last:
            one = await self._backend.next_message(self._dlq, self._next)
            self._ahead.extend([] if one is None else [one])
        elif not self._ahead and self._next < self._last:
            self._ahead.extend(await self._backend.next_messages(self._dlq, self._next))
        if not self._ahead or self._ahead[0].sequence > self._last:
            self._next = self._last + 1
            return None
        kept = self._ahead.popleft()
        self._next = kept.sequence + 1
        return kept


def browse(backend: Backend, topic: Topic[Any], selection: LetterFilter) -> Browsing:
    """The letters that `selection` takes, oldest death first; what dies meanwhile is not among
    them.

    Raises `UsageError` for a topic without a dead-letter queue; while it is read
    `TopicNotDeclared`, `ConnectionError`.
    """
    if not isinstance(selection, LetterFilter):
        raise UsageError(
            f"which dead letters is said by a LetterFilter(...), not {type(selection).__name__}"
        )
    return Browsing(backend, topic, selection)


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
    found = browse(backend, topic, selection)
    held = set[str]()
    if topic.topology.fails_all:
        held = {each.key for each in await poisoned(backend, topic)}
    if topic.topology.sequenced:
        # In another lane than its own a key would have no order.
        service.fence.expect(topic.queue, topic.topology.routing_shards)
    letters = [(letter.place, letter.sequence) async for letter in found]
    if topic.topology.sequenced:
        letters.sort()
    work = _Replay(service, topic, held, dry_run)
    for _, sequence in letters:
        kept = await backend.next_message(dlq, sequence)
        if kept is not None and kept.sequence == sequence:
            await work.take(_letter(topic, dlq, kept))
    return work.tally.report()


class _Replay:
    def __init__(
        self, service: PublishService, topic: Topic[Any], held: set[str], dry_run: bool
    ) -> None:
        self._service = service
        self._topic = topic
        self._held = held
        self._dry_run = dry_run
        #: Keys of which a letter could not be published.
        self._stuck: set[str] = set()
        #: Deaths that are stored again: a crash may have left two letters of one.
        self._stored: set[str] = set()
        self.tally = _Tally()

    async def take(self, letter: DeadLetter) -> None:
        subject = self._subject(letter)
        if subject is not None and (self._dry_run or await self._published(subject, letter)):
            self.tally.done += 1

    async def _published(self, subject: str, letter: DeadLetter) -> bool:
        message_id = logical_id(letter.headers, letter.stream, letter.sequence)
        death = f"{message_id}@{letter.place}"
        if death not in self._stored:
            try:
                block = _headers(self._topic, letter, message_id)
                await self._service.publish(subject, letter.payload, block)
            except PublishError as exc:
                self.tally.failure = self.tally.failure or str(exc)
                if letter.key is not None:
                    self._stuck.add(letter.key)
                return False
            self._stored.add(death)
        await self._service.backend.delete_message(letter.stream, letter.sequence)
        return True

    def _subject(self, letter: DeadLetter) -> str | None:
        """Where a letter is published; None, and the reason is noted, if it stays."""
        topic, skipped = self._topic, self.tally.skipped
        owner = letter.metadata.original_queue
        if owner is not None and owner != topic.queue:
            skipped[FOREIGN] += 1
            return None
        if isinstance(topic, SequencedTopic):
            return self._lane(topic, letter.key)
        subject = letter.headers.get(ORIGINAL_SUBJECT)
        if subject is not None:
            try:
                return topic.topology.check_subject(subject)
            except TopologyError:
                pass  # the topic does not bind it any more
        subject = topic.topology.default_subject
        if subject is None:
            skipped[NO_SUBJECT] += 1
        return subject

    def _lane(self, topic: SequencedTopic[Any], key: str | None) -> str | None:
        skipped = self.tally.skipped
        if key is None:
            skipped[NO_KEY] += 1
        elif key in self._held:
            skipped[POISONED] += 1
            self.tally.poisoned_keys.add(key)
        elif key in self._stuck:
            skipped[BEHIND] += 1
        else:
            return topic.topology.shard_subject(topic.shard_of(key))
        return None


async def purge(
    backend: Backend, topic: Topic[Any], selection: LetterFilter, *, dry_run: bool = False
) -> DeadLettersDone:
    """Delete the letters that `selection` takes, for good. Raises what `browse` raises."""
    tally = _Tally()
    async for letter in browse(backend, topic, selection):
        if dry_run or await backend.delete_message(letter.stream, letter.sequence):
            tally.done += 1
    return tally.report()


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
