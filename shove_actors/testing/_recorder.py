"""Recording a history: what a program's publishers and handlers do.

    with recording(history, "worker-1") as record:
        async with open_broker(config) as broker:
            group = broker.consumer_group()
            group.register(ORDERS, record.handler(ORDERS, handle))
            publisher = record.publisher(broker.publisher())
            ...
    violation = check_history(history, HistoryRules(max_retries=10))

On both backends, and in real processes (`History(path=...)`, one file each). It changes nothing but
one thing: messages published without an id get one, because the history has to name them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
import trio.testing

from shove_actors._errors import BatchError, DecodeError, EncodeError, UsageError
from shove_actors.messaging import (
    DEATH_REASON,
    DUPLICATE_WINDOW_S,
    Defer,
    MessageMetadata,
    Outcome,
    Retry,
    SequencedTopic,
    Topic,
    Unaudited,
    decode_headers,
    decode_key,
    letter_id,
    letter_origin,
    logical_id,
    stored_of,
)
from shove_actors.messaging import KEY as KEY_HEADER
from shove_actors.runtime import Broker, Publisher, PublishReceipt
from shove_actors.runtime._replay_lane import ReplayLane

from ._audited_handler import resolve_handler
from ._given import check_kind, check_text
from ._history import Event, History, Result, digest_of

M = TypeVar("M")

#: For so long a server knows an id; a millisecond less, since clocks round.
_WINDOW_NS = int(DUPLICATE_WINDOW_S * 1e9) - 1_000_000
_RESULTS: dict[str, Result] = {
    "ack": "ack",
    "retry": "retry",
    "reject": "reject",
    "defer": "defer",
}
#: A handler that has taken longer may have been told to stop.
_LONG_S = 1.0


def history_time() -> float:
    """Trio's time under a mock clock, else this machine's: one clock for all its processes."""
    try:
        clock = trio.lowlevel.current_clock()
    except RuntimeError:
        return time.monotonic()
    return clock.current_time() if isinstance(clock, trio.testing.MockClock) else time.monotonic()


class Recorder:
    """Writes one process's part of a history. Made by `recording`."""

    def __init__(self, history: History, process: str) -> None:
        check_kind(history, "history", History, "a History, such as History(path=...)")
        check_text(process, "process")
        self.history = history
        self.process = process
        #: Set when the process was killed: what its tasks still do is not part of history.
        self.dead = False
        self._ids = itertools.count(1)
        self.batches = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Recorder of {self.process!r}{', killed' if self.dead else ''}>"

    def add(self, event: Event) -> None:
        if not self.dead:
            self.history.add(event)

    def crashed(self) -> None:
        """The process was killed, now. Idempotent."""
        if not self.dead:
            self.history.add(Event("crashed", history_time(), self.process))
            self.dead = True

    # ------------------------------------------------------------------------ handlers

    def handler(self, topic: Topic[Any], handler: object) -> Callable[..., Any]:
        """`handler` for `group.register`, recorded. Takes whatever `register` takes.

        With audits around it (`audited`) it has ended when its audit record is written.
        """
        resolved = resolve_handler(handler, topic)
        call, wants_metadata = resolved.call, resolved.wants_metadata
        ordered = isinstance(topic, SequencedTopic)
        queue, process, add, now = topic.queue, self.process, self.add, history_time

        async def recorded(message: Any, metadata: MessageMetadata, context: Any) -> Any:
            id_, sequence = metadata.delivery_id, metadata.sequence
            key, shard = (metadata.key, metadata.shard) if ordered else (None, None)
            attempt, detail = metadata.retry_count, ""
            stored = stored_of(metadata)
            lane = stored.lane if ordered else None  # type: ignore[attr-defined]
            if isinstance(lane, ReplayLane):
                sequence, detail = lane.places[sequence], "replay"
            facts = process, queue, id_, key, shard, sequence, attempt
            digest = _digest_received(topic, message, stored.payload)
            began = now()
            add(Event("started", began, *facts, None, False, detail, 0, digest))
            result: Result = "cancelled"
            after = 0.0
            try:
                outcome = await call(message, metadata if wants_metadata else None, context)
                result = _result_of(outcome)
                if isinstance(outcome, (Retry, Defer)):
                    after = outcome.after or 0.0
                return outcome
            except Exception:
                result = "raised"
                raise
            finally:
                # Entirely ended: the last thing that happens in it.
                ended = now()
                late = ended - began > _LONG_S and trio.current_effective_deadline() == -math.inf
                add(Event("ended", ended, *facts, result, False, detail, 0, "", after, late))

        recorded.__qualname__ = resolved.name
        return recorded

    # ---------------------------------------------------------------------- publishing

    def publisher(self, publisher: Publisher) -> RecordedPublisher:
        """`publisher`, with what it was told to be stored recorded."""
        return RecordedPublisher(self, publisher)

    def new_id(self) -> str:
        return f"{self.process}-{next(self._ids)}"

    def published(
        self,
        topic: Topic[M],
        message: M,
        message_id: str,
        receipt: PublishReceipt,
        batch: str = "",
        digest: str = "",
    ) -> None:
        key = topic.key_of(message) if isinstance(topic, SequencedTopic) else None
        self.add(
            Event(
                "published",
                history_time(),
                self.process,
                topic.queue,
                message_id,
                key,
                None,
                receipt.sequence,
                0,
                None,
                receipt.duplicate,
                batch,
                0,
                digest,
            )
        )

    def unconfirmed(self, topic: Topic[Any], message_id: str, digest: str) -> None:
        """The publisher was told nothing, or an error: it may be stored all the same."""
        now, queue = history_time(), topic.queue
        self.add(Event("unconfirmed", now, self.process, queue, message_id, digest=digest))


class RecordedPublisher:
    """As `Publisher`; made by `Recorder.publisher`."""

    def __init__(self, recorder: Recorder, publisher: Publisher) -> None:
        self._recorder = recorder
        self._publisher = publisher

    async def publish(
        self,
        topic: Topic[M],
        message: M,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        subject: str | None = None,
    ) -> PublishReceipt:
        """See `Publisher.publish`."""
        id_ = message_id if message_id is not None else self._recorder.new_id()
        digest = _digest_sent(topic, message)
        try:
            receipt = await self._publisher.publish(
                topic, message, headers=headers, message_id=id_, subject=subject
            )
        except (EncodeError, UsageError):
            raise  # nothing was sent
        except BaseException:
            self._recorder.unconfirmed(topic, id_, digest)
            raise
        self._recorder.published(topic, message, id_, receipt, "", digest)
        return receipt

    async def publish_batch(
        self,
        topic: Topic[M],
        messages: Sequence[M],
        *,
        message_ids: Sequence[str] | None = None,
    ) -> list[PublishReceipt]:
        """See `Publisher.publish_batch`; `message_ids` are made if they are not given."""
        recorder, publisher = self._recorder, self._publisher
        ids = (
            list(message_ids) if message_ids is not None else [recorder.new_id() for _ in messages]
        )
        # The public method makes ids that nobody learns.
        prepared = [
            publisher._prepare(topic, message, None, id_, None)
            for message, id_ in zip(messages, ids, strict=True)
        ]
        digests = [_digest_sent(topic, message) for message in messages]
        try:
            results = await publisher._all(prepared)
        except BaseException:
            for id_, digest in zip(ids, digests, strict=True):
                recorder.unconfirmed(topic, id_, digest)
            raise
        failed: Exception | None = None
        batch = f"batch {next(recorder.batches)} of {recorder.process}"
        for message, id_, result, digest in zip(messages, ids, results, digests, strict=True):
            if isinstance(result, PublishReceipt):
                recorder.published(topic, message, id_, result, batch, digest)
            else:
                recorder.unconfirmed(topic, id_, digest)
                failed = failed or result
        if failed is not None:
            count = sum(isinstance(result, Exception) for result in results)
            raise BatchError(
                f"{count} of {len(results)} messages of topic {topic.queue!r} were not stored; the "
                f"first failure: {failed}",
                list(results),
            ) from failed
        return [result for result in results if isinstance(result, PublishReceipt)]


@contextmanager
def recording(history: History, process: str = "main") -> Iterator[Recorder]:
    """Record one process for the length of the block: `opened` and `closed` are its edges.

    Put the broker inside the block, so that it is over when the process counts as ended: whatever
    still runs then breaks the rule T. `process` is the name in the history; another block may use
    it again.
    """
    recorder = Recorder(history, process)
    recorder.add(Event("opened", history_time(), process))
    try:
        yield recorder
    finally:
        recorder.add(Event("closed", history_time(), process))


async def take_inventory(history: History, broker: Broker, topic: Topic[Any]) -> None:
    """Record what is stored of a topic: `remaining` in its queue and hold queues, and `dead`.

    Nothing is delivered or changed. For `check_history(..., complete=True)`, once nothing else
    happens any more. Works on both backends. Raises what looking at the streams raises.
    """
    check_kind(history, "history", History, "a History")
    check_kind(broker, "broker", Broker, "an open broker")
    check_kind(topic, "topic", Topic, "a Topic; call it once for each")
    topology = topic.topology
    for stream in [topology.queue, *(hold.name for hold in topology.holds)]:
        if stream == topology.queue or not topology.sequenced:
            await _browse(history, broker, topic.queue, stream, dead=False)
    if topology.dlq is not None:
        await _browse(history, broker, topic.queue, topology.dlq, dead=True)


async def _browse(history: History, broker: Broker, queue: str, stream: str, *, dead: bool) -> None:
    sequence = 1
    #: When the last letter of each copy was stored.
    stored: dict[tuple[int, int], int] = {}
    while True:
        kept = await broker.backend.next_message(stream, sequence)
        if kept is None:
            return
        sequence = kept.sequence + 1
        headers = decode_headers(kept.raw_headers) if kept.raw_headers else {}
        key = headers.get(KEY_HEADER)
        origin = letter_origin(headers) if dead else None
        name_of = letter_id if dead else logical_id
        id_ = name_of(headers, stream, kept.sequence)
        duplicate = False
        if origin is not None and origin[1]:
            # Its id is that of the letter before: after the window the server has forgotten it.
            before = stored.get(origin)
            duplicate = before is not None and kept.timestamp_ns - before < _WINDOW_NS
            stored[origin] = kept.timestamp_ns
        history.add(
            Event(
                "dead" if dead else "remaining",
                history_time(),
                topic=queue,
                id=id_,
                key=decode_key(key) if key is not None else None,
                sequence=origin[0] if origin is not None else kept.sequence,
                duplicate=duplicate,
                letter=kept.sequence if dead else 0,
                detail=headers.get(DEATH_REASON, "") if dead else stream,
                digest=digest_of(kept.payload),
                found=True,
            )
        )


def _result_of(outcome: object) -> Result:
    if isinstance(outcome, Unaudited):
        return "unaudited"
    # What is no outcome is a programming error, and treated as a retry.
    return _RESULTS.get(outcome.name, "retry") if isinstance(outcome, Outcome) else "retry"


def _digest_sent(topic: Topic[M], message: M) -> str:
    """Of what `publish` is about to encode. "" for a codec that writes something else each time."""
    try:
        payload = topic.encode(message)
        return digest_of(payload) if topic.encode(message) == payload else ""
    except EncodeError:
        return ""  # publishing raises it


def _digest_received(topic: Topic[Any], message: object, payload: bytes) -> str:
    """Of the payload that the handler's message stands for.

    It is that of the payload that has arrived, if that decodes to this message: what is not written
    again as it was read (spaces, fields that this version does not know) has to be decoded for that
    a second time. What is written otherwise each time cannot be compared.
    """
    try:
        again = topic.encode(message)
        if again != payload and topic.encode(topic.decode(payload)) != again:
            return digest_of(again) if topic.encode(message) == again else digest_of(payload)
    except (EncodeError, DecodeError):
        # What was decoded may be more than its codec writes; what does not decode is no message.
        return digest_of(payload)
    return digest_of(payload)
