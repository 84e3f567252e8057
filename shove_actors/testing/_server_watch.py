"""What only the server knows, for a history: exact settles, dead letters, poisoned keys, faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shove_actors.backends import Mark
from shove_actors.backends.memory import MemoryServer, StoredMessage
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
    letter_origin,
    logical_id,
)

from ._faults import FaultPlan, Happened
from ._history import Event, History, Kind
from ._recorder import Recorder

_CONTROL = CONTROL.encode()
_ORIGIN = ORIGIN.encode()


class ServerWatch:
    """Records what a `MemoryServer` does with the messages of some topics.

        ServerWatch(history, server, [ORDERS])

    With `settled` events the rules are exact: without a server that tells, one has to take the word
    of a handler, whose acknowledgement may have been lost.
    """

    def __init__(self, history: History, server: MemoryServer, topics: list[Topic[Any]]) -> None:
        self._history = history
        self._server = server
        self._queues: dict[str, tuple[Kind, str]] = {}
        self._sequenced: set[str] = set()
        #: Copies by stream, what they are copies of, and as what; when each was stored.
        self._copies: dict[tuple[str | None, ...], float] = {}
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
        self._marks = server.marks
        server.marks = _WatchedMarks(self, server)  # type: ignore[assignment]

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
        sequence = message.sequence
        if kind == "dead":
            origin = letter_origin(headers)
            sequence = origin[0] if origin is not None else sequence
        self._history.add(
            Event(
                kind,
                self._server.now(),
                topic=queue,
                id=logical_id(headers, stream, message.sequence),
                key=_key(headers.get(KEY)),
                sequence=sequence,
                duplicate=self._again(stream, headers),
                detail=headers.get(DEATH_REASON, "") if kind == "dead" else stream,
            )
        )

    def _again(self, stream: str, headers: Mapping[str, str]) -> bool:
        """Whether the same copy was stored before, and its id must be known still."""
        server = self._server
        if self._incarnation != server.incarnation:
            # Ids of what is stored no longer do not survive a restart.
            self._incarnation = server.incarnation
            self._copies.clear()
        origin = headers.get(ORIGIN)
        if origin is None:
            return False
        copy = stream, origin, headers.get(RETRY_COUNT), headers.get(DEFER_COUNT)
        before, now = self._copies.get(copy), server.now()
        self._copies[copy] = now
        window = server.streams[stream].settings.duplicate_window_s
        return before is not None and now - before < window

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
            )
        )

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
                    detail=repr(fault.step.fault),
                )
            )

        plan.listen(happened)


class _WatchedMarks:
    """The server's marks, with somebody told of each change."""

    def __init__(self, watch: ServerWatch, server: MemoryServer) -> None:
        self._watch = watch
        self._marks = server.marks

    def read(self, queue: str, name: str) -> Mark:
        return self._marks.read(queue, name)

    def write(self, queue: str, name: str, value: bytes | None, revision: int) -> bool:
        before = self._marks.read(queue, name)
        written = self._marks.write(queue, name, value, revision)
        if written:
            self._watch.marked(queue, name, value, before.value)
        return written

    def all(self, queue: str) -> list[tuple[str, Mark]]:
        return self._marks.all(queue)


def _key(header: str | None) -> str | None:
    return decode_key(header) if header is not None else None
