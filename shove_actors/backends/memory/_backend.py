"""The port over the model: one backend is one process that is connected to a server.

`run` is the backend's one task. It carries the server's work on (`MemoryServer.serve`), then
takes in what has arrived for this process, then sleeps until it is rung or something is due. What
the server has sent to other processes meanwhile is taken in at the same time: a pass of Trio's
scheduler for each of them would cost as much as all the rest of a delivery.
Publishes are stored inside `post`, but answered from that task: the caller may not be ready for
`done` yet.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import outcome
import trio

from shove_actors._errors import (
    BrokerClosed,
    ConnectionError,
    MessageTooLarge,
    NotConnected,
    PublishUnknown,
    RequestTimeout,
    ShoveError,
    TopicNotDeclared,
)
from shove_actors._log import about
from shove_actors.backends import _margins as margins
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._port import (
    BackendEvent,
    Backlog,
    Capabilities,
    Kept,
    Lane,
    LaneSpec,
    Mark,
    Post,
    Stored,
    StreamEnd,
)
from shove_actors.backends._reshard import Resharded, reshard
from shove_actors.messaging import ShardLayout, Topology, bucket_stream, poison_bucket

from ._declare import declare
from ._durable import Durable
from ._keyed_lane import MemoryKeyedLane, keyed_settings
from ._lane import MemoryLane, durable_settings
from ._link import Link
from ._reshard import MemoryShards, layout
from ._server import MemoryServer
from ._stream import StoredMessage

_logger = logging.getLogger("shove_actors.backends.memory")

CAPABILITIES = Capabilities(name="memory", durable=False, virtual_time=True)

#: How soon a process that gave its connection up has the next one.
RECONNECT_S = 0.05
#: How long a request, or the flush on leaving, waits for a stalled link.
REQUEST_LIMIT_S = 5.0
#: How many messages one look brings (`next_messages`).
BATCH = 500

T = TypeVar("T")


class MemoryBackend:
    """Implements `Backend`. Made by `MemoryConfig.create_backend`; `run` connects it."""

    def __init__(
        self, server: MemoryServer, *, name: str | None, max_payload: int, ack_timeout_s: float
    ) -> None:
        self.server = server
        self.name = name if name is not None else server.new_name()
        self.link = Link(self._something_came, server)
        self._max_payload = min(max_payload, server.max_payload)
        self._ack_timeout_s = ack_timeout_s
        self._lanes: dict[MemoryLane | MemoryKeyedLane, None] = {}
        self._listeners: list[Callable[[BackendEvent], None]] = []
        #: Who wants to hear that the shards of a queue may have changed.
        self.shard_watches: dict[str, Callable[[], None]] = {}
        #: Sent, not answered yet; with the Trio time at which waiting for the answer ends.
        self._flying: dict[Post, float] = {}
        #: None of those ends earlier.
        self._next_expiry = math.inf
        #: Decided on this side of the link.
        self._answers: deque[tuple[Post, Stored | Exception]] = deque()
        self._running = False
        self._was_connected = False
        self.waits_for_network = False
        self._close_asked = trio.Event()
        self._close_deadline = math.inf
        self._closed = False
        self._rung = False
        self._bell = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<MemoryBackend {self.name}{'' if self.connected else ', not connected'}>"

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def max_payload(self) -> int:
        return self._max_payload

    @property
    def connected(self) -> bool:
        return self.link.connected and not self.link.dead and not self._closed

    async def wait_connected(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.connected:
            if self._closed:
                raise ConnectionError(f"backend {self.name!r} is closed")
            await self.link.wait_flowing()

    def now_ns(self) -> int:
        return self.server.now_ns()

    def new_name(self) -> str:
        return self.server.new_owner()

    def listen(self, listener: Callable[[BackendEvent], None]) -> None:
        self._listeners.append(listener)

    def emit(self, kind: str, detail: str = "", **fields: object) -> None:
        event = BackendEvent(kind=kind, detail=detail, fields=fields)
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                self._listeners.remove(listener)
                _logger.exception(
                    "a backend listener raised and was removed",
                    extra=about("listener_failed"),
                )

    # ---------------------------------------------------------------------- publishing

    def post(self, batch: Sequence[Post]) -> None:
        if self._closed:
            raise BrokerClosed(f"backend {self.name!r} is closed: publish before leaving its block")
        now = trio.current_time()
        for post in batch:
            if post.size > self._max_payload:
                self._answers.append(
                    (
                        post,
                        MessageTooLarge(
                            f"{post.size} bytes with headers exceed max_payload "
                            f"{self._max_payload}: send less, or raise max_payload on the server"
                        ),
                    )
                )
                continue
            expiry = self._flying[post] = min(post.deadline, now + self._ack_timeout_s)
            self._next_expiry = min(self._next_expiry, expiry)
            if not self.link.send(partial(self._store, post)) and not self.link.dead:
                del self._flying[post]
                self._answers.append((post, NotConnected("not connected: nothing was sent")))
        if self._running:
            self.ring()
        elif self._answers:
            # Between two runs there is no task to answer from, and `done` may not be called here.
            trio.lowlevel.current_trio_token().run_sync_soon(self._report_answers)

    def _store(self, post: Post) -> None:
        faults = self.server.faults
        effect = faults.watch("publish", self) if faults.watch is not None else None
        if self.link.dead:
            return  # the plan let the process die before this
        result: Stored | Exception
        try:
            result = self.server.publish(post.subject, post.payload, post.header_block)
        except ShoveError as error:
            result = error
        else:
            if faults.hits("drop_puback"):
                return
        if effect is None:
            self.link.deliver(partial(self._answered, post, result))
            return
        if effect.late_s:
            answer = partial(self.link.deliver, partial(self._answered, post, result))
            self.server.call_at(self.server.now() + effect.late_s, answer)
        elif not effect.lost:
            self.link.deliver(partial(self._answered, post, result))
        if effect.after is not None:
            effect.after()

    def _answered(self, post: Post, result: Stored | Exception) -> None:
        if self._flying.pop(post, None) is not None:
            post.done(post, result)

    def _answer_unknown(self, posts: Sequence[Post], why: str) -> None:
        for post in posts:
            del self._flying[post]
            self._answers.append((post, PublishUnknown(f"{why}: it may or may not be stored")))

    async def diagnose(self, subject: str) -> Exception:
        try:
            await self.reach_server()
        except ConnectionError as error:
            return NotConnected(str(error))
        except RequestTimeout as error:
            return error
        if self.server.stream_for(subject) is None:
            return TopicNotDeclared(
                f"no stream takes subject {subject!r}: declare its topic first (`broker.declare`)"
            )
        return PublishUnknown(f"no acknowledgement came for subject {subject!r}")

    # ------------------------------------------------------------------------ topology

    async def declare(self, topologies: Sequence[Topology]) -> None:
        await self.reach_server()
        declare(self.server, topologies)

    async def open_lane(self, spec: LaneSpec) -> Lane:
        return (await self._open([spec]))[0]

    async def open_lanes(self, specs: Sequence[LaneSpec]) -> list[Lane]:
        return await self._open(specs)

    async def _open(self, specs: Sequence[LaneSpec]) -> list[Lane]:
        await self.reach_server()
        opened = [(spec, *self._durable(spec)) for spec in specs]
        lanes: list[Lane] = []
        for spec, durable, pause_s in opened:
            kind = MemoryLane if spec.keyed is None else MemoryKeyedLane
            lane = kind(self, spec, durable)
            self._lanes[lane] = None
            lane.start(pause_s=pause_s)
            lanes.append(lane)
        return lanes

    def _durable(self, spec: LaneSpec) -> tuple[Durable, float]:
        """And how long not to read it: it may have taken the place of one that was deleted, or have
        forgotten, with its server, what it had given away."""
        stream = self.server.require_stream(spec.stream)
        new = spec.durable not in stream.durables
        settings = durable_settings(spec) if spec.keyed is None else keyed_settings(spec)
        durable = self.server.open_durable(spec.stream, settings)
        # Also where nothing has left the stream yet: its first message may be in somebody's hands.
        used = stream.last_sequence > 0
        pause_s = margins.DELETED_GRACE_S if new else margins.RESTART_GRACE_S
        return durable, pause_s if durable.silent and used and spec.max_ack_pending == 1 else 0.0

    async def shard_layout(self, queue: str, changed: Callable[[], None]) -> ShardLayout:
        await self.reach_server()
        self.shard_watches[queue] = changed
        return layout(self.server, queue)

    async def reshard(self, topology: Topology, timeout: float) -> Resharded:
        await self.reach_server()
        return await reshard(MemoryShards(self.server, topology.queue), topology, timeout)

    async def backlog(self, stream: str, durable: str) -> Backlog | None:
        await self.reach_server()
        self.server.advance()
        holder = self.server.streams.get(stream)
        found = None if holder is None else holder.durables.get(durable)
        if found is None:
            return None
        return Backlog(
            pending=found.unread, ack_pending=len(found.pending), redelivered=found.redelivered
        )

    async def owns(self, delivery: Delivery) -> bool:
        await self.reach_server()
        self.server.advance()
        holder = self.server.streams.get(delivery.stream)
        durable = None if holder is None else holder.durables.get(delivery.lane.spec.durable)
        entry = None if durable is None else durable.pending.get(delivery.sequence)
        return entry is not None and entry.delivered == delivery.num_delivered

    async def read_note(self, stream: str, sequence: int) -> bytes | None:
        await self.reach_server()
        return self.server.notes.get((stream, sequence))

    async def write_note(self, stream: str, sequence: int, note: bytes) -> None:
        await self._change(partial(self.server.notes.__setitem__, (stream, sequence), note))

    async def read_mark(self, queue: str, name: str) -> Mark:
        await self.reach_server()
        return self.server.marks.read(queue, name)

    async def write_mark(
        self, queue: str, name: str, value: bytes | None, *, revision: int
    ) -> bool:
        def write() -> bool:
            refusal = self.server.faults.refusal(bucket_stream(poison_bucket(queue)))
            if refusal is not None:
                raise refusal
            return self.server.marks.write(queue, name, value, revision)

        return await self._change(write)

    async def list_marks(self, queue: str) -> list[tuple[str, Mark]]:
        await self.reach_server()
        return self.server.marks.all(queue)

    async def keeps_marks(self, queue: str) -> bool:
        await self.reach_server()
        return self.server.marks.exist(queue)

    def watch_marks(self, queue: str, changed: Callable[[], None]) -> Callable[[], None]:
        return self.server.marks.watch(queue, partial(self.link.deliver, changed))

    async def list_owners(self, stream: str) -> dict[str, int]:
        await self.reach_server()
        owners = self.server.owners
        return {name: owners[of, name][1] for of, name in owners if of == stream}

    async def write_owner(self, stream: str, name: str, record: bytes, revision: int) -> int | None:
        return await self._change(partial(self.server.write_owner, stream, name, record, revision))

    async def remove_owner(self, stream: str, name: str, revision: int) -> None:
        def remove() -> None:
            if self.server.owners.get((stream, name), (None, 0))[1] == revision:
                del self.server.owners[stream, name]

        await self._change(remove)

    async def last_sequence(self, stream: str) -> int:
        return (await self.stream_end(stream)).sequence

    async def stream_end(self, stream: str) -> StreamEnd:
        await self.reach_server()
        found = self.server.require_stream(stream)
        return StreamEnd(found.last_sequence, str(found.number))

    async def next_message(self, stream: str, sequence: int) -> Kept | None:
        await self.reach_server()
        self.server.advance()
        found = self.server.require_stream(stream).at_or_after(sequence)
        return None if found is None else _kept(found)

    async def next_messages(self, stream: str, sequence: int) -> list[Kept]:
        await self.reach_server()
        self.server.advance()
        behind = self.server.require_stream(stream).from_sequence(sequence)
        return [_kept(message) for message in itertools.islice(behind, BATCH)]

    async def delete_message(self, stream: str, sequence: int) -> bool:
        return await self._change(lambda: self.server.require_stream(stream).remove(sequence))

    async def _change(self, change: Callable[[], T]) -> T:
        """A request that changes something. What has left here takes effect when it arrives, also
        where nobody waits for the answer any more, or none comes."""
        link = self.link
        if link.flowing and not link.delay_s:
            await self.reach_server()
            if link.flowing and not link.delay_s:
                return change()
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise BrokerClosed(f"backend {self.name!r} is closed")
        heard, results = trio.Event(), list[outcome.Outcome[T]]()

        def arrived() -> None:
            results.append(outcome.capture(change))
            link.deliver(heard.set)

        if not link.send(arrived) and not link.dead:
            raise ConnectionError(f"backend {self.name!r} is not connected")
        link.asked.add(heard)
        try:
            with trio.move_on_after(math.inf if link.dead else REQUEST_LIMIT_S):
                connection = link.connection
                if not link.dead:
                    await heard.wait()
                if self._closed:
                    raise BrokerClosed(f"backend {self.name!r} was closed")
                if link.dead:
                    await trio.sleep_forever()
                if link.connection != connection:
                    raise ConnectionError(f"backend {self.name!r} was cut off before the answer")
                return results[0].unwrap()
        finally:
            link.asked.discard(heard)
        raise RequestTimeout(f"the server did not answer within {REQUEST_LIMIT_S:g} s")

    async def reach_server(self) -> None:
        """A request's way to the server and back; raises why it did not get there."""
        if self.link.delay_s:
            await trio.sleep(2 * self.link.delay_s)
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise BrokerClosed(f"backend {self.name!r} is closed")
        if not self.link.connected and not self.link.dead:
            raise ConnectionError(f"backend {self.name!r} is not connected")
        if self.link.flowing:
            return
        with trio.move_on_after(math.inf if self.link.dead else REQUEST_LIMIT_S):
            await self.link.wait_flowing()
            if self._closed:
                raise BrokerClosed(f"backend {self.name!r} was closed")
            return
        raise RequestTimeout(f"the server did not answer within {REQUEST_LIMIT_S:g} s")

    # ------------------------------------------------------------------------ its task

    def ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._bell.unpark_all()

    def _something_came(self) -> None:
        # What comes while the server works is taken in as soon as it has done so (`_serve`).
        if not self.server.serving:
            self.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connects at once and serves until `close`; then flushes, for at most 5 s, and returns.

        Cancelled, it disconnects without a flush; run again, it connects again and its lanes go
        on. Raises `ConnectionError` when the server is down, `ConfigError` when another open
        backend of the server has its name, and `BrokerClosed` after `close`. Of a crashed process
        nothing runs on: `run` waits for `close` (or to be cancelled), so that no supervisor brings
        it back to life.
        """
        if self._closed:
            raise BrokerClosed(f"backend {self.name!r} is closed: make another one")
        if not self.link.dead:
            if self.server.down:
                await trio.lowlevel.checkpoint()
                raise ConnectionError("the server is down (`server.faults.start_server`)")
            self.server.attach(self)
            self._running = True
            self.link_restored()
        task_status.started()
        try:
            await self._serve()
            await self._close_asked.wait()
        finally:
            self._running = False
            self._leave()

    async def _serve(self) -> None:
        server = self.server
        while not self.link.dead:
            serving = server.is_served_by(self)
            if serving:
                server.serve()
                for other in server.others(self):
                    other.link.drain()
            # What `serve` rang for is taken in right now.
            self._rung = False
            self.link.drain()
            self._expire_posts()
            self._report_answers()
            if self._rung:
                await trio.lowlevel.checkpoint()
                continue
            busy = self._flying or self.link.waiting
            if self._close_asked.is_set() and (
                not busy or trio.current_time() >= self._close_deadline
            ):
                return
            deadline = min(self._close_deadline, self._next_expiry if self._flying else math.inf)
            if serving:
                deadline = min(deadline, server.next_due())
            if deadline == math.inf:
                await self._bell.park()
            else:
                with trio.CancelScope(deadline=deadline):
                    await self._bell.park()

    def _expire_posts(self) -> None:
        now = trio.current_time()
        if now >= self._next_expiry:
            late = [post for post, deadline in self._flying.items() if deadline <= now]
            self._answer_unknown(late, "no acknowledgement came in time")
            self._next_expiry = min(self._flying.values(), default=math.inf)

    def _report_answers(self) -> None:
        while self._answers:
            post, result = self._answers.popleft()
            post.done(post, result)

    def close(self) -> None:
        if not self._close_asked.is_set():
            self._close_asked.set()
            if self._running:
                self._close_deadline = trio.current_time() + REQUEST_LIMIT_S
                self.ring()
            else:
                self._leave()

    def _leave(self) -> None:
        """The end of a run: for good after `close`, else until the next one."""
        if not self._close_asked.is_set():
            self.link_cut()
            self._report_answers()
            self.server.detach(self)
            return
        if self._closed:
            return
        self._closed = True
        self._answer_unknown(list(self._flying), "closed before the acknowledgement came")
        self._report_answers()
        self.link.leave()
        for lane in list(self._lanes):
            lane.left()
        self._lanes.clear()
        self.server.detach(self)
        self.emit("closed")

    # --------------------------------------------------------------- told by the server

    def link_cut(self) -> None:
        if not self.link.connected:
            return
        self.link.cut()
        for changed in list(self.shard_watches.values()):
            changed()
        self._answer_unknown(list(self._flying), "the connection broke before the acknowledgement")
        for lane in self._lanes:
            lane.link_cut()
        self.emit("disconnected")
        self.ring()

    def drop_connection(self) -> None:
        """This side gives the connection up. It has another one once the network lets it."""
        if self.link.connected:
            flows = not self.link.stalled
            self.link_cut()
            self.waits_for_network = not flows
            if flows:
                self.server.call_at(self.server.now() + RECONNECT_S, self.link_restored)

    def network_flows(self) -> None:
        """A stall is over."""
        self.link.unstall()
        if self.waits_for_network:
            self.link_restored()

    def link_restored(self) -> None:
        self.waits_for_network = False
        if self.link.connected or self.link.dead:
            return
        if self.server.down:
            self.server.reconnect_later(self)
            return
        self.link.restore()
        if self._was_connected:
            self.emit("reconnected")
        self._was_connected = True
        for lane in list(self._lanes):
            lane.link_restored()
        self.ring()

    def crash(self) -> None:
        if self.link.dead:
            return
        self._flying.clear()
        self._answers.clear()
        self._listeners.clear()
        self.link.kill()
        for lane in list(self._lanes):
            lane.crashed()
        self.server.detach(self)

    def stream_created(self, name: str) -> None:
        for lane in list(self._lanes):
            if lane.spec.stream == name:
                self.link.deliver(lane.stream_created)

    def durable_gone(self, durable: Durable) -> None:
        for lane in list(self._lanes):
            if lane.durable is durable:
                self.link.deliver(lane.durable_gone)

    def lane_retired(self, lane: MemoryLane | MemoryKeyedLane) -> None:
        self._lanes.pop(lane, None)


def _kept(message: StoredMessage) -> Kept:
    return Kept(
        message.sequence,
        message.subject,
        message.payload,
        message.header_block or None,
        message.timestamp_ns,
    )
