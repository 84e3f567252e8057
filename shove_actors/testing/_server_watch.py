"""What only the server knows, for a history: exact settles, dead letters, poisoned keys, faults."""

from __future__ import annotations

from typing import Any

import msgspec

from shove_actors.backends.memory import MemoryServer, StoredMessage
from shove_actors.backends.memory._marks import Marks
from shove_actors.backends.memory._stream import message_id
from shove_actors.messaging import (
    CONTROL,
    DEATH_REASON,
    DEFER_COUNT,
    KEY,
    ORIGIN,
    RETRY_COUNT,
    SequencedTopic,
    Topic,
    decode_headers,
    decode_key,
    decode_record,
    letter_id,
    letter_origin,
    logical_id,
)

from ._fault_kinds import DeleteConsumer, RestartServer
from ._faults import FaultPlan, Happened
from ._given import check_kind
from ._history import Event, History, Kind, digest_of
from ._recorder import Recorder

_CONTROL = CONTROL.encode()
_ORIGIN = ORIGIN.encode()
#: After these a server may deliver again what it has delivered.
_FORGETS = (RestartServer, DeleteConsumer)
_note = msgspec.json.Decoder(dict[str, object]).decode


class ServerWatch:
    """Records what a `MemoryServer` does with the messages of some topics.

        ServerWatch(history, server, [ORDERS])

    With `settled` events the rules are exact: without a server that tells, one has to take the word
    of a handler, whose acknowledgement may have been lost.
    """

    def __init__(self, history: History, server: MemoryServer, topics: list[Topic[Any]]) -> None:
        check_kind(history, "history", History, "a History")
        check_kind(server, "server", MemoryServer, "a MemoryServer")
        check_kind(topics, "topics", (list, tuple), "a list of topics")
        for topic in topics:
            check_kind(topic, "a topic", Topic, "a Topic")
        self._history = history
        self._server = server
        self._queues: dict[str, tuple[Kind, str]] = {}
        self._sequenced: set[str] = set()
        #: Copies by stream, what they are copies of, and as what; when each was stored, and as
        #: which message.
        self._copies: dict[tuple[object, ...], tuple[float, int]] = {}
        self._incarnation = server.incarnation
        for topic in topics:
            topology = topic.topology
            self._queues[topology.queue] = ("settled", topology.queue)
            for hold in topology.holds:
                self._queues[hold.name] = ("held", topology.queue)
            if topology.dlq is not None:
                self._queues[topology.dlq] = ("dead", topology.queue)
            if isinstance(topic, SequencedTopic):
                self._sequenced.add(topology.queue)
        server.observe(self)
        server.marks = _WatchedMarks(self, server.marks)
        server.notes = _WatchedNotes(self, server.notes)

    def stored(self, stream: str, message: StoredMessage) -> None:
        kind, queue = self._queues.get(stream, ("settled", ""))
        if not queue:
            return
        block = message.header_block
        if kind == "settled":
            if _ORIGIN not in block:
                return
            kind = "held"  # back from there
        headers = decode_headers(block)
        sequence, name_of = message.sequence, logical_id
        # What a copy's id is made of. Of a message there is one dead letter, whatever its retries.
        copy: tuple[object, ...] | None = None
        if kind == "dead":
            origin, name_of = letter_origin(headers), letter_id
            if origin is not None:
                sequence = origin[0]
                copy = (stream, *origin) if origin[1] else None
        id_ = name_of(headers, stream, message.sequence)
        if kind == "held" and ORIGIN in headers:
            # The origin names no stream: two that hop from two of them may have the same one.
            hops = headers.get(RETRY_COUNT), headers.get(DEFER_COUNT)
            copy = stream, id_, headers[ORIGIN], *hops
        self._history.add(
            Event(
                kind,
                self._server.now(),
                topic=queue,
                id=id_,
                key=_key(headers.get(KEY)),
                sequence=sequence,
                duplicate=copy is not None and self._again(stream, message.sequence, copy),
                detail=headers.get(DEATH_REASON, "") if kind == "dead" else stream,
                letter=message.sequence if kind == "dead" else 0,
                digest=digest_of(message.payload),
            )
        )

    def _again(self, stream: str, sequence: int, copy: tuple[object, ...]) -> bool:
        """Whether the same copy was stored before, and its id must be known still."""
        server = self._server
        if self._incarnation != server.incarnation:
            # Ids of what is stored no longer do not survive a restart. What is stored now was so
            # then: nearly all dead letters are, of held messages the few that wait.
            self._incarnation = server.incarnation
            self._copies = {
                known: told
                for known, told in self._copies.items()
                if (name := str(known[0])) in server.streams
                and told[1] in server.streams[name].messages
            }
        before, now = self._copies.get(copy), server.now()
        self._copies[copy] = now, sequence
        window = server.streams[stream].settings.duplicate_window_s
        return before is not None and now - before[0] < window

    def settled(self, stream: str, message: StoredMessage) -> None:
        kind, queue = self._queues.get(stream, ("held", ""))
        if kind != "settled" or queue not in self._sequenced:
            # Elsewhere it settles one copy, and the next one may exist already.
            return
        block = message.header_block
        if _CONTROL in block:
            return
        # Nothing of a sequenced topic hops, so its id is the one it was published with; finding it
        # costs a tenth of decoding the headers, and this runs once per message.
        found = message_id(block)
        id_ = found.decode() if found is not None else f"{stream}:{message.sequence}"
        self._history.add(
            Event("settled", self._server.now(), "", queue, id_, None, None, message.sequence)
        )

    def marked(self, queue: str, name: str, value: bytes | None, before: bytes | None) -> None:
        data = value if value is not None else before
        if queue not in self._sequenced or data is None:
            return
        record = decode_record(data, name)
        self._history.add(
            Event(
                "poisoned" if value is not None else "released",
                self._server.now(),
                topic=queue,
                key=_key(record.shove_key),
                sequence=record.sequence,
                detail=record.reason,
                last=self._server.streams[queue].last_sequence if value is None else 0,
            )
        )

    def noted(self, stream: str, sequence: int, note: bytes) -> None:
        kind, queue = self._queues.get(stream, ("held", ""))
        message = self._server.streams[stream].messages.get(sequence) if queue else None
        if kind != "settled" or message is None:
            return  # of no topic here; or of a dead letter that is replayed
        told = _note(note)
        if "started" not in told:
            return  # how far a replay is, beside the message that asks for it
        headers = decode_headers(message.header_block)
        self._history.add(
            Event(
                "suspected",
                self._server.now(),
                topic=queue,
                id=logical_id(headers, stream, sequence),
                sequence=sequence,
                detail="" if told["started"] else "over",
            )
        )

    def _last(self) -> int:
        streams = self._server.streams
        return max(streams[name].last_sequence for name in self._queues if name in streams)

    def faults_of(self, plan: FaultPlan, recorders: dict[str, Recorder]) -> None:
        """Record the faults of a plan; a crash, as the end of the process's `Recorder`."""

        def happened(fault: Happened) -> None:
            recorder = recorders.get(fault.process or "")
            if type(fault.step.fault).__name__ == "Crash" and recorder is not None:
                recorder.crashed()
            self._history.add(
                Event(
                    "fault",
                    self._server.now(),
                    fault.process or "",
                    sequence=self._last() if isinstance(fault.step.fault, _FORGETS) else 0,
                    detail=repr(fault.step.fault),
                )
            )

        plan.listen(happened)


class _WatchedMarks(Marks):
    """The server's marks, with somebody told of each change."""

    __slots__ = ("_watch",)

    def __init__(self, watch: ServerWatch, marks: Marks) -> None:
        for name in Marks.__slots__:
            setattr(self, name, getattr(marks, name))
        self._watch = watch

    def write(self, queue: str, name: str, value: bytes | None, revision: int) -> bool:
        before = self.read(queue, name)
        written = super().write(queue, name, value, revision)
        if written:
            self._watch.marked(queue, name, value, before.value)
        return written


class _WatchedNotes(dict[tuple[str, int], bytes]):
    """The server's notes about attempts, likewise."""

    def __init__(self, watch: ServerWatch, notes: dict[tuple[str, int], bytes]) -> None:
        super().__init__(notes)
        self._watch = watch

    def __setitem__(self, place: tuple[str, int], note: bytes) -> None:
        super().__setitem__(place, note)
        self._watch.noted(*place, note)


def _key(header: str | None) -> str | None:
    return decode_key(header) if header is not None else None
