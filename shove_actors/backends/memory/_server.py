"""The server: streams, durables, time, and who is connected.

A `MemoryServer` is a plain object. It has no task of its own: the task of the backend that has been
open for longest calls `serve` when it is rung and sleeps until `next_due`. Whatever makes something
due earlier rings it, and when it leaves the next one is rung, so the server works for as long as
any backend is open. With none open nothing runs, yet time passes: every call first carries out what
has become due (`advance`), and so does the next backend on opening.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from shove_actors._errors import (
    ConfigError,
    NoResponders,
    TopicNotDeclared,
    TopologyError,
    UsageError,
)
from shove_actors.backends._another_stream import another_stream
from shove_actors.backends._port import Stored
from shove_actors.messaging import Retention, Storage, layout_of, overlap

from ._durable import Durable, DurableSettings
from ._faults import Faults
from ._marks import Marks
from ._pins import PinnedDurable
from ._stream import Observer, StoredMessage, Stream, StreamSettings, expected_stream
from ._timers import DEFAULT_EPOCH_NS, ServerClock, Timers

if TYPE_CHECKING:
    from ._backend import MemoryBackend

#: Of how many subjects it is kept in mind which stream takes them.
_SUBJECTS = 1024


class MemoryServer:
    """A model of a JetStream server, to be shared by several backends ("processes").

    It outlives each of them: what is stored, and who holds what, is still there when the next one
    opens. `max_payload` is in bytes, headers included. `seed` is for `faults.sometimes`.
    `epoch_ns` is the date at which the server's clock starts (2026-01-01 UTC): with it, and
    Trio's clock, every stored-at time is the same in every run.

        server = MemoryServer()
        async with open_broker(MemoryConfig(server=server)) as broker: ...
        async with open_broker(MemoryConfig(server=server)) as broker: ...   # a later process
    """

    def __init__(
        self,
        *,
        max_payload: int = 1_048_576,
        seed: int = 0,
        epoch_ns: int = DEFAULT_EPOCH_NS,
    ) -> None:
        if max_payload < 1:
            raise ConfigError(f"max_payload must be at least 1 byte, not {max_payload}")
        self.max_payload = max_payload
        self.faults = Faults(self, seed)
        self._clock = ServerClock(epoch_ns)
        self._timers = Timers()
        self._streams: dict[str, Stream] = {}
        self._made = 0
        self._owners = 0
        self._backends: dict[str, MemoryBackend] = {}
        self._dirty: dict[Durable, None] = {}
        #: In the middle of delivering; whoever serves takes in what comes of it.
        self.serving = False
        self._by_subject: dict[str, Stream] = {}
        self._observer: Observer | None = None
        #: What a fault plan does at its time, and what a slow link delivers.
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._call_count = 0
        self._soon: deque[Callable[[], None]] = deque()
        #: Not running: nobody is connected. `incarnation` counts its starts.
        self.down = False
        self.incarnation = 1
        self._to_reconnect: dict[MemoryBackend, None] = {}
        #: Notes about attempts, by stream and sequence.
        self.notes: dict[tuple[str, int], bytes] = {}
        #: Queues whose number of shards was changed on purpose.
        self.resharded: set[str] = set()
        self.marks = Marks()
        #: Who handles which keyed shard, and at which revision; by stream and shard.
        self.owners: dict[tuple[str, str], tuple[bytes | None, int]] = {}
        self.owner_writes = 0
        self._names = 0

    def __repr__(self) -> str:
        return f"<MemoryServer: {len(self._streams)} streams, {len(self._backends)} backends>"

    @property
    def streams(self) -> Mapping[str, Stream]:
        """By name. Read only: change them with `create_stream`, `edit_stream`, `delete_stream`."""
        return self._streams

    @property
    def backends(self) -> Mapping[str, MemoryBackend]:
        """The open ones, by name."""
        return self._backends

    def observe(self, observer: Observer | None) -> None:
        """Have somebody told what is stored and what is settled; one at a time."""
        self._observer = observer
        for stream in self._streams.values():
            stream.observer = observer

    # ------------------------------------------------------------------------- streams

    def create_stream(self, settings: StreamSettings) -> Stream:
        """Raises `TopologyError` when the name or one of the subjects is taken."""
        if settings.name in self._streams:
            raise TopologyError(f"stream {settings.name!r} exists already: edit or delete it")
        self.check_overlap(settings)
        self._made += 1
        stream = Stream(settings, self._timers, self.touch, self._made)
        stream.observer = self._observer
        self._streams[settings.name] = stream
        self._by_subject.clear()
        for backend in self._backends.values():
            backend.stream_created(settings.name)
        return stream

    def edit_stream(self, name: str, /, **changes: object) -> Stream:
        """Changes single settings of an existing stream and leaves all others alone.

        Raises `TopologyError` for a missing stream, an immutable setting (`name`, `retention`,
        `storage`) or subjects that belong to another stream.
        """
        stream = self.require_stream(name)
        for field in ("name", "retention", "storage"):
            if field in changes and changes[field] != getattr(stream.settings, field):
                raise TopologyError(f"{field} of stream {name!r} cannot change: delete it first")
        settings = dataclasses.replace(stream.settings, **changes)  # type: ignore[arg-type]
        self.check_overlap(settings)
        stream.reconfigure(settings)
        self._by_subject.clear()
        self.advance()
        self.ring()
        return stream

    def delete_stream(self, name: str) -> None:
        """Messages and durables go with it. Lanes wait until it is created again."""
        stream = self.require_stream(name)
        del self._streams[name]
        self._by_subject.clear()
        durables = list(stream.durables.values())
        stream.close()
        self._report_gone(durables)

    def require_stream(self, name: str) -> Stream:
        stream = self._streams.get(name)
        if stream is None:
            raise TopicNotDeclared(
                f"stream {name!r} does not exist: declare its topic first (`broker.declare`)"
            )
        return stream

    def write_owner(self, stream: str, name: str, record: bytes, revision: int) -> int | None:
        """The new revision; None, and nothing is changed, if it is not at `revision`."""
        if self.owners.get((stream, name), (None, 0))[1] != revision:
            return None
        self.owner_writes += 1
        self.owners[stream, name] = (record, self.owner_writes)
        return self.owner_writes

    def stream_for(self, subject: str) -> Stream | None:
        """The one stream that takes a literal subject; streams never overlap."""
        found = self._by_subject.get(subject)
        if found is None:
            found = next((s for s in self._streams.values() if s.takes(subject)), None)
            if found is not None:
                if len(self._by_subject) >= _SUBJECTS:
                    self._by_subject.clear()
                self._by_subject[subject] = found
        return found

    def messages(self, stream: str) -> list[StoredMessage]:
        """What a stream holds now, oldest first. Browsing delivers and removes nothing."""
        self.advance()
        return list(self.require_stream(stream).browse())

    def check_overlap(self, settings: StreamSettings) -> None:
        for other in self._streams.values():
            if other.settings.name == settings.name:
                continue
            for subject in settings.subjects:
                for taken in other.settings.subjects:
                    if overlap(subject, taken):
                        raise TopologyError(
                            f"subject {subject!r} of stream {settings.name!r} overlaps {taken!r} "
                            f"of stream {other.settings.name!r}: use other subjects, or delete "
                            "that stream"
                        )

    # ------------------------------------------------------------------------ durables

    def open_durable(self, stream: str, settings: DurableSettings) -> Durable:
        """Creates the durable, or brings an existing one to these settings.

        Raises `TopicNotDeclared` for a missing stream and `TopologyError` for another filter,
        for a filter that can never match, and for a second durable that would read the same
        messages of a work queue.
        """
        holder = self.require_stream(stream)
        self.advance()
        durable = holder.durables.get(settings.name)
        if durable is not None:
            actual = durable.settings.filter_subject
            if actual != settings.filter_subject:
                raise TopologyError(
                    f"durable {settings.name!r} of stream {stream!r} reads {_shown(actual)}, but "
                    f"{_shown(settings.filter_subject)} is wanted: drain it and delete the durable"
                )
            if durable.settings != settings:
                durable.reconfigure(settings)
            return durable
        self._check_filter(holder, settings)
        durable = PinnedDurable(
            holder,
            settings,
            timers=self._timers,
            touch=self.touch,
            on_deliver=self.faults.on_deliver,
        )
        holder.add_durable(durable)
        return durable

    def delete_durable(self, stream: str, name: str) -> None:
        """Lanes that read it create it anew; the messages they held are lost to them."""
        durable = self.require_stream(stream).take_durable(name)
        if durable is None:
            raise UsageError(f"stream {stream!r} has no durable {name!r}")
        durable.close()
        self._report_gone([durable])

    def _check_filter(self, stream: Stream, settings: DurableSettings) -> None:
        name, wanted = stream.settings.name, settings.filter_subject
        closed = layout_of(name, stream.settings.subjects).under_way is not None
        if (
            wanted is not None
            and not closed
            and not any(overlap(wanted, s) for s in stream.settings.subjects)
        ):
            raise TopologyError(
                f"durable {settings.name!r} would read {wanted!r}, which stream {name!r} never "
                f"holds (its subjects: {', '.join(stream.settings.subjects)}): it would stay idle"
            )
        if stream.settings.retention is not Retention.WORK_QUEUE:
            return
        for other in stream.durables.values():
            if overlap(wanted or ">", other.settings.filter_subject or ">"):
                raise TopologyError(
                    f"stream {name!r} is a work queue and durable {other.settings.name!r} reads "
                    f"{_shown(other.settings.filter_subject)} already: each message has one "
                    f"reader. Share that durable instead of adding {settings.name!r}, or use "
                    "another retention"
                )

    def _report_gone(self, durables: Iterable[Durable]) -> None:
        for durable in durables:
            self._dirty.pop(durable, None)
            for backend in self._backends.values():
                backend.durable_gone(durable)

    # ---------------------------------------------------------------------- publishing

    def publish(self, subject: str, payload: bytes, header_block: bytes = b"") -> Stored:
        """Stores one message at once. Raises `NoResponders`, `StreamFull` or the refusal set."""
        self.advance()
        stream = self.stream_for(subject)
        if stream is None:
            raise NoResponders(f"no stream takes subject {subject!r}")
        expected = expected_stream(header_block)
        if expected is not None and expected != stream.settings.name:
            raise another_stream(subject)
        refusal = self.faults.refusal(stream.settings.name)
        if refusal is not None:
            raise refusal
        now = self._clock.now()
        return stream.store(subject, payload, header_block, now, self._clock.date_ns(now))

    # ---------------------------------------------------------------------------- time

    def now(self) -> float:
        """The server's clock: Trio's, in the run in which the server was first used."""
        return self._clock.now()

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def next_due(self) -> float:
        """Trio time of the next thing that happens by itself; infinity for never."""
        if self._soon:
            return -math.inf
        due = self._timers.next_due()
        if self._calls:
            due = min(due, self._calls[0][0])
        return self._clock.in_trio(due)

    def call_at(self, moment: float, action: Callable[[], None]) -> None:
        """At a moment of the server's clock, in the task of some backend."""
        self._call_count += 1
        heapq.heappush(self._calls, (moment, self._call_count, action))
        self.ring()

    def call_soon(self, action: Callable[[], None]) -> None:
        """When the server is not in the middle of something."""
        self._soon.append(action)
        self.ring()

    def advance(self) -> None:
        """Carries out what is due: ack waits, delayed naks, ages. Delivers nothing yet."""
        self._timers.fire_due(self._clock.now() + self._clock.slack)

    def serve(self) -> None:
        """One pass of work: what is due, then a delivery for every request that can have one."""
        while self._soon:
            self._soon.popleft()()
        while self._calls and self._calls[0][0] <= self._clock.now() + self._clock.slack:
            heapq.heappop(self._calls)[2]()
        self.serving = True
        try:
            self.advance()
            if self.down:
                return
            now = self._clock.now()
            while self._dirty:
                durable = next(iter(self._dirty))
                del self._dirty[durable]
                durable.dispatch(now)
        finally:
            self.serving = False

    def serve_one(self, durable: Durable) -> None:
        """What this durable can deliver now. Not while something else is due or under way."""
        if durable in self._dirty and not (self.serving or self.down or self._soon):
            del self._dirty[durable]
            self.serving = True
            try:
                durable.dispatch(self._clock.now())
            finally:
                self.serving = False
            for backend in list(self._backends.values()):
                backend.link.drain()

    def touch(self, durable: Durable) -> None:
        """This durable may have something to deliver: some backend's task will look."""
        if durable not in self._dirty:
            self._dirty[durable] = None
            if not self.serving:
                self.ring()

    def is_served_by(self, backend: MemoryBackend) -> bool:
        """One backend's task is enough, and it has to be one that runs."""
        return next(iter(self._backends.values()), None) is backend

    def others(self, backend: MemoryBackend) -> list[MemoryBackend]:
        return [other for other in self._backends.values() if other is not backend]

    def ring(self) -> None:
        for backend in self._backends.values():
            backend.ring()
            return

    # ----------------------------------------------------------------------- processes

    def new_owner(self) -> str:
        """A name to own shards by: never the same one twice, and the same in every run."""
        self._owners += 1
        return f"{self._owners:06d}"

    def new_name(self) -> str:
        """`memory-1`, `memory-2`, ...: never the same one twice."""
        self._names += 1
        return f"memory-{self._names}"

    def attach(self, backend: MemoryBackend) -> None:
        if backend.name in self._backends:
            raise ConfigError(
                f"name {backend.name!r} is taken by an open backend of this server: names tell "
                "processes apart, give each its own"
            )
        self.advance()
        self._backends[backend.name] = backend

    def detach(self, backend: MemoryBackend) -> None:
        self._to_reconnect.pop(backend, None)
        if self._backends.get(backend.name) is backend:
            del self._backends[backend.name]
            self.ring()

    def stop(self, *, killed: bool = True) -> None:
        """The server ends: killed, or shut down. Every connection breaks."""
        if self.down:
            return
        self.advance()
        self.down = True
        now = self._clock.now()
        for backend in [b for b in self._backends.values() if b.link.connected]:
            self._to_reconnect[backend] = None
            backend.link_cut()
        for name in [n for n, s in self._streams.items() if s.settings.storage is Storage.MEMORY]:
            self._streams.pop(name).close()
        self._by_subject.clear()
        for stream in self._streams.values():
            stream.restarted(now)
            for durable in stream.durables.values():
                durable.restarted(killed=killed, now=now, whole_second=self._clock.whole_second)

    def start(self) -> None:
        """The server is there again, and so is who was connected when it ended."""
        if not self.down:
            return
        self.down = False
        self.incarnation += 1
        self.advance()
        waiting, self._to_reconnect = list(self._to_reconnect), {}
        for backend in waiting:
            backend.link_restored()
        self.ring()

    def reconnect_later(self, backend: MemoryBackend) -> None:
        """It would be connected if the server were not down."""
        self._to_reconnect[backend] = None


def _shown(filter_subject: str | None) -> str:
    return "the whole stream" if filter_subject is None else repr(filter_subject)
