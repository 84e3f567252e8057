"""FAIL_ALL: a key that has failed stays failed, for every process, until somebody releases it.

A message that ends for good (rejected, out of retries, undecodable, too large, crashed, with
forbidden headers) poisons its key. In this order, and each step confirmed by the server before the
next one:

    1  the record of the key is written            a copy of (key -> message, reason)
    2  the dead letter is stored
    3  the message is acknowledged

Until 3 the shard delivers nothing later: it has one message in flight. So whoever handles a later
message of the key, in whatever process, does so after 1, and looks the key up first. Killed

    before 1    it is delivered again, as if nothing had happened
    after 1     it is delivered again, and its own record is found: it is dead-lettered for the
                reason in the record; its handler is not called a second time
    after 2     likewise; the second dead letter has the id of the first and is swallowed
    after 3     done

and at none of these points can a later message of the key be handled. What cannot be written keeps
the message where it is, and with it the lane (`Settler.stay`). What cannot be looked up is not
handled; it comes back, and nothing is counted.

Reading for each message would cost a round trip per message. It is not needed for a key that was
looked up before in the same *tenure* (`backends/_tenure.py`): only who holds a message of the shard
can poison a key of it, and within a tenure that was nobody but us. What we do ourselves we know.
Three limits keep that argument simple: only first deliveries are believed to be clean without a
look (a redelivery may have been in other hands, which may have decided); only keys that belong to
the lane by their hash (a foreign producer may publish a key to another lane, whose holders are
others); and "poisoned" is never remembered, because an operator may release a key at any time.

Two others can poison a key without holding a message of its lane: an operator, by hand
(`nats kv put`), and whoever holds a message that a foreign producer put into a wrong lane. They are
heard of: every mark that anybody writes is announced to whoever watches the bucket
(`Backend.watch_marks`), and then nothing is believed any more. A look that was under way at that
moment is not remembered either (`_news`). A message that was published after the mark had been
acknowledged arrives behind the announcement, so it is looked up; in a cluster the announcement may
come by another server and take as long as that takes.

What remains is a process that has lost its lease while step 1 is on the wire. Its record can still
come to be although somebody else handles the message by then: the key is poisoned by a message that
may end well. That errs on the safe side, nothing is handled out of turn, and takes a frozen write
that outlives the lease; nothing is written after the lease is known to be lost.

Tests: `tests/runtime/test_fail_all*.py`, `tests/runtime/test_poison_by_others.py`,
`tests/cases/test_c_fail_all.py`, `tests/durability/test_poison_kills.py`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from shove_actors._errors import PermissionDenied, PublishRefused, TopicNotDeclared
from shove_actors._log import about
from shove_actors.backends import Backend, Delivery, StreamEnd
from shove_actors.messaging import (
    CONTROL,
    KEY,
    POISONING,
    Control,
    Dead,
    DeathReason,
    Discard,
    PoisonedKey,
    PoisonRecord,
    SequencedTopic,
    Verdict,
    decode_key,
    decode_record,
    encode_record,
    give_up,
    logical_id,
    mark_name,
    poison_bucket,
    poison_record,
    poisoning_of,
    rfc3339,
)

from ._attempts import AttemptLedger

logger = logging.getLogger("shove_actors.consumer")

#: Keys that are known to be clean, per registration.
REMEMBERED: Final = 10_000
#: Longer ones are not remembered, so that the memory is bounded in bytes as well.
REMEMBERED_LENGTH: Final = 256
#: How often a record that somebody else changes at the same moment is tried again.
TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """What the bucket says of a key. `revision` is for changing it."""

    record: PoisonRecord | None
    revision: int

    @property
    def poisoning(self) -> str:
        """See `poisoning_of`. "": it is not poisoned."""
        return "" if self.record is None else poisoning_of(self.record, self.revision)


class PoisonBook:
    """The poisoned keys of one topic, on the server. Errors are the backend's (`ShoveError`)."""

    __slots__ = ("_backend", "_queue")

    def __init__(self, backend: Backend, queue: str) -> None:
        self._backend = backend
        self._queue = queue

    async def find(self, key: str) -> Entry:
        name = mark_name(key)
        mark = await self._backend.read_mark(self._queue, name)
        if mark.value is None:
            return Entry(None, mark.revision)
        return Entry(decode_record(mark.value, name), mark.revision)

    async def put(self, key: str, record: PoisonRecord, revision: int) -> bool:
        """False: it was changed meanwhile."""
        return await self._backend.write_mark(
            self._queue, mark_name(key), encode_record(record), revision=revision
        )

    async def remove(self, key: str, revision: int) -> bool:
        """False: it was changed meanwhile."""
        return await self._backend.write_mark(self._queue, mark_name(key), None, revision=revision)

    async def all(self) -> tuple[PoisonedKey, ...]:
        marks = await self._backend.list_marks(self._queue)
        return tuple(
            decode_record(mark.value, name).shown()
            for name, mark in marks
            if mark.value is not None
        )


class PoisonGate:
    """Of one registration: keeps poisoned keys from its handler. See the module's essay."""

    def __init__(self, topic: SequencedTopic[Any], backend: Backend, ledger: AttemptLedger) -> None:
        self.topic = topic
        self.book = PoisonBook(backend, topic.queue)
        self._backend = backend
        self._ledger = ledger
        #: Keys as their headers spell them, and the tenure in which they were found clean.
        self._clean: OrderedDict[str, int] = OrderedDict()
        #: How often somebody has poisoned or released a key of the topic, as far as we know.
        self._news = 0
        self._unwatch: Callable[[], None] | None = None
        self._warned = False
        #: Looks at the server, for tests and the curious.
        self.reads = 0

    def open(self) -> None:
        """Before the first look: hear of what others poison."""
        if self._unwatch is None:
            self._unwatch = self._backend.watch_marks(self.topic.queue, self._changed)

    def close(self) -> None:
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()

    def _changed(self) -> None:
        self._news += 1
        self._clean.clear()

    # ------------------------------------------------------------------ before the handler

    def is_control(self, delivery: Delivery) -> bool:
        headers = delivery.headers
        return headers.get(CONTROL) == Control.REPLAY and KEY in headers and POISONING in headers

    def passes(self, delivery: Delivery) -> bool:
        headers = delivery.headers
        value, tenure = headers.get(KEY), delivery.tenure
        if value is None or delivery.num_delivered > 1 or not tenure:
            return False
        if self._clean.get(value) != tenure:
            return False
        self._clean.move_to_end(value)
        return True

    async def look_up(
        self, delivery: Delivery, message: object, retry_count: int
    ) -> tuple[Verdict, int] | None:
        headers, topology = delivery.headers, self.topic.topology
        value = headers.get(KEY)
        if value is not None:
            key = decode_key(value)
        else:
            try:
                key = self.topic.key_of(message)
            except Exception as exc:
                detail = f"it has no key: the topic's function raised {type(exc).__name__}"
                end = give_up(topology, DeathReason.UNDECODABLE, "undecodable", detail)
                return end, retry_count
        self.reads += 1
        news = self._news
        record = (await self.book.find(key)).record
        if record is not None:
            return self._verdict(record, delivery, retry_count)
        if value is not None and delivery.num_delivered == 1 and news == self._news:
            self._remember(delivery, key, value)
        return None

    def _remember(self, delivery: Delivery, key: str, value: str) -> None:
        topology = self.topic.topology
        if (
            delivery.tenure
            and len(value) <= REMEMBERED_LENGTH
            and delivery.subject == topology.shard_subject(self.topic.shard_of(key))
        ):
            self._clean[value] = delivery.tenure
            self._clean.move_to_end(value)
            if len(self._clean) > REMEMBERED:
                self._clean.popitem(last=False)

    def _verdict(
        self, record: PoisonRecord, delivery: Delivery, retry_count: int
    ) -> tuple[Dead | Discard, int]:
        """On a message of a poisoned key, and the retries that it has had."""
        topology = self.topic.topology
        if record.about(delivery.sequence, delivery.timestamp_ns):
            # Ours, written before we were interrupted: go on with what was decided then.
            try:
                reason = DeathReason(record.reason)
            except ValueError:
                reason = DeathReason.REJECTED
            return give_up(topology, reason, record.cause, record.detail or None), record.retries
        why = f"message {record.sequence} of this key ended as {record.reason or 'unknown'}"
        # Not the retries of the other one: of this one it may be the first that anybody sees.
        return give_up(topology, DeathReason.SEQUENCE_FAILED, "sequence", why), retry_count

    # ------------------------------------------------------------------ the end of a message

    async def condemn(
        self, delivery: Delivery, verdict: Dead | Discard, retry_count: int
    ) -> tuple[Dead | Discard, int, str | None]:
        """Step 1. Verdict and retries that hold (another one if the key is poisoned), and the key.

        Returns once the record is stored. Raises `ShoveError` if that is not known to be so.
        """
        headers = delivery.headers
        if CONTROL in headers:
            return verdict, retry_count, None
        key = await self._key_of(delivery, verdict)
        if key is None or verdict.reason is DeathReason.SEQUENCE_FAILED:
            return verdict, retry_count, key
        # Before anything is sent: how it ends may not become known to us.
        self._changed()
        for _ in range(TRIES):
            entry = await self.book.find(key)
            if entry.record is not None:
                return *self._verdict(entry.record, delivery, retry_count), key
            end = await self._letters_end()
            record = poison_record(
                key,
                shard=self.topic.shard_of(key),
                sequence=delivery.sequence,
                stored_ns=delivery.timestamp_ns,
                message_id=logical_id(headers, delivery.stream, delivery.sequence),
                reason=verdict.reason.value,
                cause=verdict.cause,
                detail=verdict.detail,
                retries=retry_count,
                poisoned_at=rfc3339(self._backend.now_ns()),
                letters_after=end.sequence,
                letters_in=end.made,
            )
            if delivery.lost:
                raise PublishRefused(
                    "its lease was lost before its key could be poisoned; whoever has the message "
                    "next decides"
                )
            if await self.book.put(key, record, entry.revision):
                logger.error(
                    "message %s:%d ended as %s and poisoned its key: later messages of the key "
                    "go to the dead letters until it is released (broker.poisoned, .release)",
                    delivery.stream,
                    delivery.sequence,
                    verdict.reason,
                    extra=about(
                        "key_poisoned",
                        queue=delivery.stream,
                        sequence=delivery.sequence,
                        reason=verdict.reason.value,
                    ),
                )
                return verdict, retry_count, key
        raise PublishRefused(
            f"the record of its key in the bucket {poison_bucket(self.topic.queue)} was changed by "
            f"others {TRIES} times while it was written; it is tried again"
        )

    async def _letters_end(self) -> StreamEnd:
        """Where the dead letters of a poisoning that is about to begin will be: behind this."""
        dlq = self.topic.topology.dlq
        if dlq is None:
            return StreamEnd(0, "")
        try:
            return await self._backend.stream_end(dlq)
        except (TopicNotDeclared, PermissionDenied):
            return StreamEnd(0, "")  # unknown: then all of it is looked at

    async def _key_of(self, delivery: Delivery, verdict: Dead | Discard) -> str | None:
        """None: nobody can say what key it is of."""
        value = delivery.headers.get(KEY)
        if value is not None:
            return decode_key(value)
        if verdict.reason is DeathReason.CRASHED:
            # It may be the decoder that ends the process: try it once, and remember having tried.
            attempts = await self._ledger.read(delivery)
            if attempts.keyed:
                self._keyless(delivery)
                return None
            await self._ledger.write(delivery, replace(attempts, keyed=True))
        try:
            return self.topic.key_of(self.topic.decode(delivery.payload))
        except Exception:
            self._keyless(delivery)
            return None

    def _keyless(self, delivery: Delivery) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "message %s:%d has no %s header and its key cannot be had from its payload, so "
                "it goes to the dead letters without poisoning a key; later ones are not logged. "
                "Whoever publishes them should set that header",
                delivery.stream,
                delivery.sequence,
                KEY,
                extra=about("key_unknown", queue=delivery.stream, sequence=delivery.sequence),
            )
