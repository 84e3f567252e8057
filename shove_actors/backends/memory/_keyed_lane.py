"""A keyed lane on the model: what `nats/_keyed_durable.py` is on a server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import TopicNotDeclared, TopologyError
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._keyed_lane import KeyedLane
from shove_actors.backends._owner_record import OwnerRecord, decode_owner, lost_record
from shove_actors.backends._pinned import pin_timeout
from shove_actors.backends._port import LaneSpec

from ._durable import Durable, DurableSettings
from ._pins import PinnedDurable, PinnedRequest
from ._stream import StoredMessage

if TYPE_CHECKING:
    from ._backend import MemoryBackend

#: How long `confirm` waits for acknowledgements that are stuck in a stalled link.
CONFIRM_LIMIT_S = 2.0


class _Inbox:
    """Where the answers to the pulls of one pin go."""

    def __init__(self, pinned: MemoryPinned) -> None:
        self._pinned = pinned
        #: Nothing but messages is heard any more.
        self.old = False

    @property
    def process(self) -> MemoryBackend:
        return self._pinned.backend

    def arrive(self, message: StoredMessage, num_delivered: int) -> None:
        durable = self._pinned.durable
        self._pinned.backend.link.deliver(
            partial(self._take, durable.pin, durable.deliveries, message)
        )

    def _take(self, pin: str | None, count: int, message: StoredMessage) -> None:
        self._pinned.lane.arrived(
            pin,
            count,
            message.subject,
            message.payload,
            message.header_block or None,
            message.sequence,
            message.timestamp_ns,
            b"",
            trio.current_time(),
            not self.old,
        )

    def refused(self) -> None:
        self._pinned.backend.link.deliver(self._refused)

    def _refused(self) -> None:
        if not self.old:
            self._pinned.lane.refused()


class MemoryPinned:
    """See `backends._pinned.PinnedDurable`."""

    def __init__(self, backend: MemoryBackend, spec: LaneSpec, durable: PinnedDurable) -> None:
        assert spec.keyed is not None
        self.backend = backend
        self.durable = durable
        self._record = (spec.stream, spec.keyed.record)
        self._expires_s = 2 * pin_timeout(spec.ack_wait_s)
        self._inbox = _Inbox(self)
        self._unread: set[int] = set()
        self._tickets = 0
        self._all_read: trio.Event | None = None
        self.lane: MemoryKeyedLane

    @property
    def connected(self) -> bool:
        return self.backend.connected

    def pull(self, batch: int, pin: str | None) -> bool:
        if self.lane.awaits_stream:
            return False
        server = self.backend.server
        request = PinnedRequest(self._inbox, batch, pin, server.now() + self._expires_s)
        durable = self.durable
        if not self.backend.link.send(lambda: durable.ask(request, server.now())):
            return False
        server.call_at(
            server.now() + self._expires_s,
            lambda: self.backend.link.deliver(partial(self._ended, request)),
        )
        return True

    def _ended(self, request: PinnedRequest) -> None:
        if request.puller is self._inbox and request.wants > 0:
            left, request.wants = request.wants, 0
            self.lane.pull_ended(left)

    def begin(self) -> None:
        old, self._inbox = self._inbox, _Inbox(self)
        old.old = True
        self.backend.link.send(partial(self.durable.forget_requests, old))

    def ack(self, delivery: Delivery) -> bool:
        connected = self.connected
        if connected:
            self._settle(delivery, None)
        return connected

    def ask(self, delivery: Delivery, ticket: int) -> None:
        self._settle(delivery, ticket)

    def _settle(self, delivery: Delivery, question: int | None) -> None:
        server, durable, sequence = self.backend.server, self.durable, delivery.sequence
        faults = server.faults
        effect = faults.watch("ack", self.backend) if faults.watch is not None else None
        lost = faults.hits("drop_ack") or (effect is not None and effect.lost)
        self._tickets += 1
        ticket = self._tickets
        connection = self.backend.link.connection

        sent = True

        def read() -> None:
            durable.ack(sequence, server.now())
            if question is not None and self._are_read():
                if sent:
                    self.lane.acks.answered(question)  # in the same moment: nothing was in between
                else:
                    self.backend.link.deliver(partial(self.lane.acks.answered, question))
            self._unread.discard(ticket)
            if self._all_read is not None and not self._unread:
                self._all_read.set()

        def read_late() -> None:
            if self.backend.link.connection == connection:
                read()

        if not lost:
            self._unread.add(ticket)
            link = self.backend.link
            if effect is not None and effect.late_s and link.connected and not link.dead:
                server.call_at(server.now() + effect.late_s, read_late)
            elif not self.backend.link.send(read):
                self._unread.discard(ticket)
        sent = False
        if effect is not None and effect.after is not None:
            effect.after()

    def _are_read(self) -> bool:
        """Whether an answer proves what it should. A fault may have left out any of them, which a
        server does not do to a connection that lasts: then there is no answer."""
        stored = self._messages
        return not any(item.sequence in stored for item in self.lane.acks.asked)

    @property
    def _messages(self) -> Mapping[int, StoredMessage]:
        stream = self.backend.server.streams.get(self._record[0])
        return {} if stream is None else stream.messages

    async def confirm(self) -> bool:
        await trio.lowlevel.checkpoint()
        if self._unread and self.connected:
            self._all_read = trio.Event()
            with trio.move_on_after(CONFIRM_LIMIT_S):
                await self._all_read.wait()
            self._all_read = None
        confirmed = not self._unread
        self._unread.clear()
        return confirmed

    async def first_stored(self, sequence: int) -> float:
        await self.backend.reach_server()
        stream = self.backend.server.streams.get(self._record[0])
        found = None if stream is None else stream.at_or_after(sequence)
        return float("inf") if found is None else found.sequence

    async def read_owner(self) -> tuple[OwnerRecord | None, int]:
        await self.backend.reach_server()
        value, revision = self.backend.server.owners.get(self._record, (None, 0))
        if value is None and (revision or self.durable.owned):
            return lost_record(self.durable.settings.ack_wait_s), revision
        return decode_owner(value), revision

    async def write_owner(self, record: bytes, revision: int) -> int | None:
        await self.backend.reach_server()
        written = self.backend.server.write_owner(*self._record, record, revision)
        self.durable.owned = self.durable.owned or written is not None
        return written

    async def look(self) -> tuple[str | None, int, int, str]:
        await self.backend.reach_server()
        self.backend.server.advance()
        durable = self.durable
        return durable.pin, durable.floor, durable.last_read, str(durable.stream.number)

    async def rewind(self) -> None:
        await self.backend.reach_server()
        self.durable.rewind()

    async def unpin(self) -> None:
        await self.backend.reach_server()
        self.durable.unpin()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.begin()


class MemoryKeyedLane(KeyedLane):
    """A keyed lane, with what the backend tells all its lanes."""

    def __init__(self, backend: MemoryBackend, spec: LaneSpec, durable: Durable) -> None:
        assert isinstance(durable, PinnedDurable)
        self._backend = backend
        self._pinned = MemoryPinned(backend, spec, durable)
        self._pinned.lane = self
        self.awaits_stream = False
        super().__init__(spec, self._pinned, backend.new_name())

    @property
    def durable(self) -> Durable:
        return self._pinned.durable

    def start(self, *, pause_s: float = 0.0) -> None:
        """Its `run` does everything."""

    def crashed(self) -> None:
        """The process is gone; whoever still waits here waits for ever."""
        self._pinned.durable.forget_requests(self._pinned._inbox)
        self._buffer.take_all()
        self.disconnected()

    def left(self) -> None:
        """The backend has left with this lane open."""
        self._pinned.durable.forget_requests(self._pinned._inbox)
        self._buffer.end()

    def link_cut(self) -> None:
        self._pinned.durable.forget_requests(self._pinned._inbox)
        self._pinned.begin()
        self._pinned._unread.clear()
        self.disconnected()

    def link_restored(self) -> None:
        if self._pinned.durable.gone:
            self.durable_gone()
        self.reconnected()

    def durable_gone(self) -> None:
        self.recreated()
        self.reopen()

    def stream_created(self) -> None:
        if self.awaits_stream:
            self.reopen()

    def reopen(self) -> None:
        """Creates the durable anew, now or when its stream comes back."""
        if self._closing:
            return
        try:
            durable = self._backend.server.open_durable(self.spec.stream, keyed_settings(self.spec))
        except TopicNotDeclared as error:
            self.awaits_stream = True
            self._backend.emit("lane_waiting", str(error), durable=self.spec.durable)
        except TopologyError as error:
            self.fail(error)
        else:
            assert isinstance(durable, PinnedDurable)
            self._pinned.durable = durable
            self.awaits_stream = False
            self._backend.emit("lane_recreated", durable=self.spec.durable)
            self._timer.set()

    async def discard(self) -> None:
        await super().discard()
        self._backend.lane_retired(self)


def keyed_settings(spec: LaneSpec) -> DurableSettings:
    return DurableSettings(
        name=spec.durable,
        filter_subject=spec.filter_subject,
        max_ack_pending=spec.max_ack_pending,
        ack_wait_s=spec.ack_wait_s,
        pin_timeout_s=pin_timeout(spec.ack_wait_s),
    )
