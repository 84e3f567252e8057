"""Releasing a key with its dead letters handled first, in their order.

`broker.release(topic, key, replay=True)` publishes a control message into the key's shard. The
consumer that gets it handles the key's dead letters itself before it acknowledges it. Why that
keeps the key's order:

* What was published before the control message comes before it in the lane. The key is poisoned,
  so all of it is among the dead letters when the control message is delivered, and its step 2
  (`_poison.py`) was confirmed before the lane went on.
* What was published after it waits: a shard has one message in flight, and this one is it. Its
  lease is renewed as that of any message in a handler.
* The letters are handled one after the other, by the normal worker with its time-outs, retries and
  attempts, in the order of their sequences in the topic's stream (`_replay_lane.py`).

A letter that is acknowledged is deleted from the dead-letter queue before the next one begins. When
one fails for good, the record of the key is set to it, and it stays, with all behind it; the key is
still poisoned. When all are done, the record is removed. Then the control message is acknowledged.
Killed at any point, the control message is delivered again, and what is left is gone on with:

    in a letter's handler             that letter is handled again (at least once, as ever)
    handled, not deleted              likewise
    deleted                           the next one
    failed, record not set            that letter is handled again
    record set                        the record names this control message, and its letter is
                                      there: nothing is left to do
    all done, record not removed      no letters; it is removed
    record removed                    no record; nothing is left to do

A record that names this control message, and a letter that is not there, was written by somebody
who had lost the lease: the write was on its way when that letter was handled elsewhere, and
deleted. It says nothing, and what is left is gone on with.

A request is obeyed only in the lane of its key, and only for the poisoning that it was made about:

* *Lane.* All of the above is said of one lane. A program that was built with another number of
  shards, or a foreign one, can put a request into another one, and there newer messages of the key
  may be in a handler at the same moment. Such a request is dropped, and said so: it is of no use
  later either, and the key is as poisoned as before. (`release` itself publishes behind the fence
  of all publishers, `_reshard.py`, so it is refused rather than misplaced.)
* *Poisoning.* A request waits in the lane like any message. Meanwhile the key may be released, and
  poisoned again by messages that nobody had seen when the request was made. It names the poisoning
  (`messaging/_poison.py`), and one that names another than the record does is dropped and said so.
  What a replay itself writes is of the same poisoning: two requests for it, made before either was
  carried out, both count, the second beginning where the first has stopped.

Letters are looked for behind the place where the dead-letter queue ended when the poisoning began:
step 2 of its first message comes after step 1, and step 1 after that look. So what a replay costs
depends on what has died since, of all keys, and not on what the queue holds. A letter that is a
control message is nobody's: it was stored by a consumer that did not know it.

The budget is a fresh one for each release. Notes about attempts (`_attempts.py`) are kept under the
letter's own place in the topic's stream, which nothing else uses any more, and are stamped with the
control message: so the consumer of the dead-letter queue has notes of its own, another release
finds none, and a letter that ends its process is found out as any other message is, by how often
the control message was delivered since that letter is under way (`_replay_lane.py`).

Consumers of the dead letters (`run_dlq`): a letter that such a handler has acknowledged is done. Of
a FAIL_ALL topic it is deleted then (`_registration.py`), so that it is not handled a second time
here. Letters they gave up on stay, and are replayed.

Tests: `tests/runtime/test_replay*.py`, `tests/durability/test_replay_kills.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from shove_actors._log import about
from shove_actors.backends import Backend, Delivery
from shove_actors.messaging import (
    KEY,
    POISONING,
    Dead,
    Discard,
    MessageMetadata,
    PoisonRecord,
    Topology,
    Verdict,
    decode_key,
    logical_id,
    origin_of,
    poison_record,
    rfc3339,
)

from ._attempts import AttemptLedger, Attempts, Noted
from ._handler import Resolved
from ._job import Gate
from ._letters import find_letters
from ._poison import Entry, PoisonGate
from ._publish_service import PublishService
from ._replay_lane import Failure, Letter, ReplayLane
from ._settle import Settler
from ._worker import Worker

if TYPE_CHECKING:
    from ._registration import Registration

logger = logging.getLogger("shove_actors.consumer")


class KeyGate(PoisonGate):
    """A gate that also obeys control messages: what the workers of a registration are given."""

    def __init__(self, registration: Registration, backend: Backend, ledger: AttemptLedger) -> None:
        topic: Any = registration.topic
        super().__init__(topic, backend, ledger)
        self._registration = registration

    async def obey(
        self,
        control: Delivery,
        shard: int | None,
        handler: Resolved,
        begun: Callable[[Worker], None],
    ) -> bool:
        """See the module's essay. Raises `ShoveError` when the server could not be asked."""
        key, topology = decode_key(control.headers[KEY]), self.topic.topology
        dlq = topology.dlq
        if control.subject != topology.shard_subject(self.topic.shard_of(key)):
            _dropped(
                control,
                "it came by %s, which is not the lane of its key: whoever sent it was built with "
                "another routing_shards(). Release the key with the topic as its consumers have it",
                control.subject,
            )
            return True
        self._changed()
        entry = await self.book.find(key)
        record = entry.record
        if record is None or dlq is None:
            return True
        if entry.poisoning != control.headers[POISONING]:
            _dropped(
                control,
                "its key was released and poisoned again since it was sent, by message %s: look at "
                "that one, then release the key again",
                record.sequence,
            )
            return True
        letters = await self._letters(dlq, key, record)
        if record.replay == _origin(control) and any(
            letter.sequence == record.sequence for letter in letters
        ):
            return True
        lane = ReplayLane(self._backend, dlq, control, letters)
        job = _ReplayJob(self._registration, control, lane, shard)
        # The shard is the job's to tell: a letter is not a message that the shard delivered.
        worker = Worker(job, lane, handler=handler)
        begun(worker)
        cancelled_by = control.on_lost

        def lost() -> None:
            lane.lose()
            if cancelled_by is not None:
                cancelled_by()

        control.on_lost = lost
        try:
            await worker.run()
        finally:
            if not lane.stuck:
                await lane.flush()
        if lane.failure is not None:
            await self._still_poisoned(control, key, entry, lane.failure)
            return True
        if not lane.done or not await self.book.remove(key, entry.revision):
            return False
        logger.info(
            "a key of %s is released; %d of its dead letters were handled",
            self.topic.queue,
            lane.handled,
            extra=about("key_released", queue=self.topic.queue, handled=lane.handled),
        )
        return True

    async def _letters(self, dlq: str, key: str, record: PoisonRecord) -> list[Letter]:
        return await find_letters(self._backend, self.topic, dlq, key, record)

    async def _still_poisoned(
        self, control: Delivery, key: str, entry: Entry, failure: Failure
    ) -> None:
        letter, verdict, delivery = failure.letter, failure.verdict, failure.delivery
        record = poison_record(
            key,
            shard=self.topic.shard_of(key),
            sequence=letter.sequence,
            stored_ns=letter.stored_ns,
            message_id=logical_id(delivery.headers, delivery.stream, delivery.sequence),
            reason=verdict.reason.value,
            cause=verdict.cause,
            detail=verdict.detail,
            retries=failure.retry_count,
            poisoned_at=rfc3339(self._backend.now_ns()),
            replay=_origin(control),
            began=entry.poisoning,
            letters_after=entry.record.letters_after if entry.record is not None else 0,
            letters_in=entry.record.letters_in if entry.record is not None else "",
        )
        # Refused if somebody has released the key meanwhile: then that is what was wanted.
        stays = await self.book.put(key, record, entry.revision)
        logger.error(
            "replaying a key of %s stopped: message %d ended as %s again and stays in %s under "
            "sequence %d, with what is behind it. %s",
            self.topic.queue,
            letter.sequence,
            verdict.reason,
            delivery.stream,
            delivery.sequence,
            "The key stays poisoned: mend the handler, or take that letter out, then release the "
            "key with replay again"
            if stays
            else "The key was released without them meanwhile",
            extra=about(
                "replay_stopped",
                queue=delivery.stream,
                sequence=delivery.sequence,
                reason=verdict.reason.value,
            ),
        )


def _origin(control: Delivery) -> str:
    return origin_of(control.sequence, control.timestamp_ns)


def _dropped(control: Delivery, why: str, argument: object) -> None:
    logger.error(
        "request %s:%d to replay a key is dropped, and the key stays poisoned: " + why,
        control.stream,
        control.sequence,
        argument,
        extra=about("replay_dropped", queue=control.stream, sequence=control.sequence),
    )


class _ReplayJob:
    """A registration as the worker of a replay sees it. Satisfies `_job.Job`."""

    def __init__(
        self, registration: Registration, control: Delivery, lane: ReplayLane, shard: int | None
    ) -> None:
        self._registration = registration
        self._control = control
        self._shard = shard
        self.gate: Gate | None = None  # they are the poisoned ones
        self.counts_hops = False
        settler = registration.settler
        self.lane_topology: Topology = registration.lane_topology
        self.limits = registration.limits
        self.max_message_size = registration.max_message_size
        self.handler = registration.handler
        self.context: Any = registration.context
        self.clock = registration.clock
        self.pacer = registration.pacer
        self.decode = registration.decode
        self.suspects = registration.suspects
        self.settler: Settler = _ReplaySettler(settler, settler.publisher, lane)
        self.ledger: AttemptLedger = _ReplayLedger(settler.publisher.backend, control, lane)

    @property
    def busy(self) -> int:
        return self._registration.busy

    @busy.setter
    def busy(self, count: int) -> None:
        self._registration.busy = count

    def metadata(
        self, delivery: Delivery, retry_count: int | None, shard: int | None
    ) -> MessageMetadata:
        return self._registration.metadata(delivery, retry_count, self._shard)

    def report_lost(self, delivery: Delivery) -> None:
        """The control message's loss is reported."""

    async def owns(self, delivery: Delivery) -> bool:
        await trio.lowlevel.checkpoint()
        return not self._control.lost


class _ReplaySettler(Settler):
    """Settles letters: what fails for good stays where it is."""

    def __init__(self, like: Settler, publisher: PublishService, lane: ReplayLane) -> None:
        super().__init__(like.topology, publisher)
        self.counts = like.counts
        self.observer = like.observer
        self._lane = lane

    async def carry_out(self, delivery: Delivery, verdict: Verdict, retry_count: int) -> bool:
        if isinstance(verdict, (Dead, Discard)):
            self._lane.fail(delivery, verdict, retry_count)
            return True
        return await super().carry_out(delivery, verdict, retry_count)


class _At:
    """What a note about a letter's attempts is about."""

    __slots__ = ("sequence", "stream", "timestamp_ns")

    def __init__(self, stream: str, sequence: int, timestamp_ns: int) -> None:
        self.stream = stream
        self.sequence = sequence
        self.timestamp_ns = timestamp_ns


class _ReplayLedger(AttemptLedger):
    """Notes under the letter's place in the topic's stream, of this control message only."""

    __slots__ = ("_control", "_lane")

    def __init__(self, backend: Backend, control: Delivery, lane: ReplayLane) -> None:
        super().__init__(backend)
        self._control = control
        self._lane = lane

    def _place(self, delivery: Noted) -> _At:
        control = self._control
        return _At(control.stream, self._lane.places[delivery.sequence], control.timestamp_ns)

    async def read(self, delivery: Noted) -> Attempts:
        return await super().read(self._place(delivery))

    async def write(self, delivery: Noted, attempts: Attempts) -> None:
        await super().write(self._place(delivery), attempts)
