"""The port over JetStream."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import trio

from shove_actors._errors import (
    ApiError,
    ConsumerNotFound,
    MessageTooLarge,
    NoResponders,
    NotConnected,
    PermissionDenied,
    PublishForbidden,
    PublishRefused,
    PublishUnknown,
    RequestTimeout,
    ShoveError,
    StreamFull,
    StreamNotFound,
    TopicNotDeclared,
    UnavailableError,
)
from shove_actors._groups import unwrapped
from shove_actors._log import about
from shove_actors.backends import margins
from shove_actors.backends._another_stream import another_stream
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
from shove_actors.jetstream import (
    Connection,
    ConnectionEvent,
    JetStream,
    NatsConfig,
    hpub,
    parse_ack,
    pub,
    status_of,
)
from shove_actors.messaging import (
    ShardLayout,
    Topology,
    bucket_stream,
    check_collisions,
    owners_bucket,
)

from ._browse import delete_message, next_message, next_messages, stream_end
from ._declare import declare_all
from ._denied import concerns, for_lane
from ._durables import Found, ensure_durable, ensure_durables, look_again, was_read
from ._features import BASE, KEYED, RESHARD, require
from ._keyed_durable import NatsKeyedLane
from ._lane import NatsLane
from ._marks import keeps_marks, list_marks, read_mark, watch_marks, write_mark
from ._notes import read_note, write_note
from ._owners import ensure_owners, list_owners, write_owner
from ._patience import patiently
from ._reshard import NatsShards, ShardWatch
from ._settle_guard import SettleGuard

logger = logging.getLogger("shove_actors.backends.nats")

#: How often the watch looks for lanes whose heartbeats stopped.
WATCH_S = 1.0
#: How long a probe of a silent connection may take.
PROBE_S = 5.0
_NEVER = float("inf")

#: Of the stream, or of the account (10002).
_FULL = frozenset({10002, 10077, 10047, 10110, 10122})
_TOO_LARGE = frozenset({10054, 10097})
#: `Nats-Expected-Stream` named another one.
_ANOTHER_STREAM = 10060
_TEMPORARY = frozenset({10008, 10023})


class _PubAck(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: dict[str, Any] | None = None


_decode_ack = msgspec.json.Decoder(_PubAck).decode


class NatsBackend:
    """See `backends._port.Backend`."""

    def __init__(self, config: NatsConfig) -> None:
        self.connection = Connection(config)
        self.js = JetStream(self.connection)
        self._lanes: set[NatsLane | NatsKeyedLane] = set()
        self.guard = SettleGuard(self.connection)
        self._lane_opened = trio.Event()
        self._shards = ShardWatch(self.connection, self.js)
        #: Subscriptions to announcements, by stream.
        self._heard: dict[str, list[int]] = {}
        self._listeners: list[Callable[[BackendEvent], None]] = []
        self._nursery: trio.Nursery | None = None
        self.connection.listen(self._on_connection)

    def __repr__(self) -> str:
        return f"<NatsBackend {self.connection!r}>"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="nats", durable=True, virtual_time=False)

    @property
    def max_payload(self) -> int:
        return self.connection.max_payload

    @property
    def connected(self) -> bool:
        return self.connection.connected

    async def wait_connected(self) -> None:
        await self.connection.wait_connected()

    def now_ns(self) -> int:
        return self.js.clock.now_ns()

    def new_name(self) -> str:
        return f"{os.getpid()}-{os.urandom(6).hex()}"

    def listen(self, listener: Callable[[BackendEvent], None]) -> None:
        self._listeners.append(listener)

    # ------------------------------------------------------------------ life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with unwrapped(layers=1):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await nursery.start(self.connection.run)
                    # After a restart by the supervisor lanes are there already.
                    for lane in list(self._lanes):
                        lane.on_reconnected()
                    nursery.start_soon(self._watch)
                    nursery.start_soon(self._beat)
                    nursery.start_soon(self.guard.run)
                    task_status.started()
                    await self.connection.wait_ended()
                finally:
                    self._nursery = None
                    nursery.cancel_scope.cancel()

    def close(self) -> None:
        self.connection.close()

    def start_soon(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """For lanes: work that needs a task. Without a run there is nothing to recover."""
        if self._nursery is not None:
            self._nursery.start_soon(function, *args)

    async def _watch(self) -> None:
        """Finds lanes whose pull fell silent; a connection that does not answer is dropped."""
        while True:
            await trio.sleep(WATCH_S)
            now = trio.current_time()
            silent = [lane for lane in self._lanes if lane.deadline < now]
            if not silent or not self.connected:
                continue
            try:
                await self.connection.flush(PROBE_S)
            except RequestTimeout:
                self.connection.drop_session("the server stopped answering")
                continue
            except UnavailableError:
                continue
            # What the server had to say was on its way and came before the PONG: whoever heard of
            # it, after a pause of the server's for instance, is not deaf.
            now = trio.current_time()
            for lane in silent:
                if lane.deadline < now:
                    lane.on_missed_heartbeats()

    async def _beat(self) -> None:
        """Short leases need to hear of the server more often than it sends heartbeats."""
        while True:
            beat_s = min((lane.beat_s for lane in self._lanes), default=_NEVER)
            if beat_s == _NEVER:
                self._lane_opened = trio.Event()
                await self._lane_opened.wait()
            else:
                self.connection.probe_reads()
                await trio.sleep(beat_s)

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event.kind == "disconnected":
            self.guard.disconnected()
            self._shards.disconnected()
            for lane in list(self._lanes):
                lane.on_disconnected()
        elif event.kind == "reconnected":
            self.js.clock.forget()  # another server may have another clock
            for lane in list(self._lanes):
                lane.on_reconnected()
        elif isinstance(event.error, PermissionDenied):
            for lane in list(self._lanes):
                if concerns(event.error, lane):
                    lane.on_denied(for_lane(event.error, lane))
        if event.kind in ("disconnected", "reconnected", "closed", "error"):
            self.notice(event.kind, str(event.error or event.server), event.error)

    def notice(self, kind: str, detail: str, error: BaseException | None = None) -> None:
        record = BackendEvent(kind=kind, detail=detail, error=error)
        for listener in list(self._listeners):
            try:
                listener(record)
            except Exception:
                logger.exception(
                    "a backend listener failed and was removed",
                    extra=about("listener_failed"),
                )
                self._listeners.remove(listener)

    # ------------------------------------------------------------------ publishing

    def post(self, batch: Sequence[Post]) -> None:
        connection = self.connection
        if not connection.connected:
            where = connection.server or "a server"
            for post in batch:
                # One each: whoever waits for a post raises its exception.
                post.done(post, NotConnected(f"not connected to {where}"))
            return
        if isinstance(connection.replies.denied, PermissionDenied):
            # It would be stored, and nobody would ever know.
            for post in batch:
                post.done(post, _forbidden(connection.replies.denied))
            return
        expect = connection.replies.expect
        limit = connection.max_payload
        out: list[bytes] = []
        for post in batch:
            if post.size > limit:
                post.done(
                    post,
                    MessageTooLarge(
                        f"payload and headers are {post.size:,} bytes; the server's max_payload "
                        f"is {limit:,}"
                    ),
                )
                continue
            reply = expect(self._on_puback, post)
            subject = post.subject.encode()
            if post.header_block:
                out.append(hpub(subject, reply, post.header_block, post.payload))
            else:
                out.append(pub(subject, reply, post.payload))
        if out:
            # The publisher has coalesced already; waiting for the egress would add a pass.
            connection.write_through(b"".join(out))

    @staticmethod
    def _on_puback(
        argument: object, header_block: bytes | None, payload: bytes | Exception
    ) -> None:
        post = argument
        assert isinstance(post, Post)
        result: Stored | Exception
        if isinstance(payload, PermissionDenied):
            result = _forbidden(payload)
        elif isinstance(payload, Exception):
            # Lost in flight: stored or not, only the message id makes a repetition safe.
            result = PublishUnknown(str(payload))
        elif not payload:
            status = status_of(header_block)
            result = NoResponders(f"no stream answers on {post.subject}")
            if status is None or status[0] != 503:
                result = PublishRefused("the answer to a publish was empty")
        else:
            try:
                ack = _decode_ack(payload)
            except (msgspec.DecodeError, msgspec.ValidationError):
                result = PublishRefused(f"somebody who is not a stream answered on {post.subject}")
            else:
                if ack.error is None and ack.seq:
                    result = Stored(ack.stream, ack.seq, ack.duplicate)
                else:
                    result = _refusal(ack.error or {}, post)
        post.done(post, result)

    async def diagnose(self, subject: str) -> Exception:
        try:
            await self.js.account_info()
            stream = await self.js.stream_name_by_subject(subject)
        except PermissionDenied as exc:
            # Not to publish, but to ask what is wrong with it: still unknown.
            return PublishUnknown(f"nobody acknowledges {subject}, and why cannot be asked: {exc}")
        except ShoveError as exc:
            return exc
        if stream is None:
            return TopicNotDeclared(
                f"no stream takes messages on {subject!r}; call `await broker.declare(topic)`"
            )
        return PublishUnknown(f"stream {stream} does not acknowledge messages on {subject}")

    # ------------------------------------------------------------------ topology and lanes

    async def declare(self, topologies: Sequence[Topology]) -> None:
        check_collisions(topologies)
        for topology in topologies:
            await patiently(partial(declare_all, self.js, (topology,)), self.connection)

    async def ensure_durable(self, spec: LaneSpec) -> bool:
        return await patiently(partial(ensure_durable, self.js, spec), self.connection)

    async def identity(self, spec: LaneSpec) -> str:
        """Names one durable among all that had its name."""
        return (await self.js.consumer_info(spec.stream, spec.durable)).identity

    async def stores(self, spec: LaneSpec) -> bool:
        """Whether there is a message that such a durable would deliver, or has delivered."""
        body = {"subjects_filter": spec.filter_subject or ">"}
        state = (await self.js.call(f"STREAM.INFO.{spec.stream}", body))["state"]
        return bool(state.get("subjects"))

    def _hear_deletions(self, stream: str) -> None:
        """A lane without a pull under way would not learn that its durable is gone, and with it
        every lease. The server announces it to whoever may listen (`$JS.EVENT.>`).
        """
        if stream in self._heard:
            return
        self._heard[stream] = [
            self.connection.subscribe(f"$JS.EVENT.ADVISORY.{what}".encode(), self._on_deletion)
            for what in (f"CONSUMER.DELETED.{stream}.*", f"STREAM.DELETED.{stream}")
        ]

    def _on_deletion(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        tokens = subject.decode(errors="replace").split(".")
        stream = tokens[5] if len(tokens) > 5 else ""
        durable = tokens[6] if len(tokens) > 6 else None
        for lane in list(self._lanes):
            if lane.spec.stream == stream and durable in (None, lane.spec.durable):
                lane.on_deleted(stream=durable is None)

    async def open_lane(self, spec: LaneSpec) -> Lane:
        return (await self.open_lanes([spec]))[0]

    async def open_lanes(self, specs: Sequence[LaneSpec]) -> list[Lane]:
        keyed = [spec for spec in specs if spec.keyed is not None]
        require(self.connection, KEYED if keyed else BASE)
        found = Found()
        server_id = self.connection.server_id
        start = partial(patiently, connection=self.connection, waits=True)
        if keyed:
            # Before the durables: its age against theirs says whether it is the first one.
            await start(partial(self._ensure_owners, keyed[0].stream))
        identities = await start(partial(ensure_durables, self.js, specs, found))
        pauses: dict[str, float] = {}
        unsure = specs[0].max_ack_pending == 1 and bool(found.fresh or found.silent)
        if unsure and await start(partial(was_read, self.js, specs[0].stream)):
            # They may have taken the place of deleted ones; or what they have given away was
            # forgotten.
            pauses.update(dict.fromkeys(found.silent, margins.RESTART_GRACE_S))
            pauses.update(dict.fromkeys(found.fresh, margins.DELETED_GRACE_S))
        for stream in {spec.stream for spec in specs}:
            self._hear_deletions(stream)
        opened: list[Lane] = []
        for spec in specs:
            identity = identities.get(spec.durable, "")
            if spec.keyed is not None:
                keyed_lane = NatsKeyedLane(self, spec, identity)
                self._lanes.add(keyed_lane)
                opened.append(keyed_lane)
                continue
            lane = NatsLane(self, spec, identity, server_id)
            self._lanes.add(lane)
            lane.start(pause_s=pauses.get(spec.durable, 0.0))
            opened.append(lane)
        self._lane_opened.set()
        self.start_soon(self.look_again, specs)
        return opened

    async def look_again(self, specs: Sequence[LaneSpec]) -> None:
        """See `_durables.look_again`; what cannot be asked now, the next recovery asks."""
        await look_again(self.js, specs)

    async def _ensure_owners(self, stream: str) -> None:
        await ensure_owners(self.js, owners_bucket(stream), stream)

    def forget_lane(self, lane: NatsLane | NatsKeyedLane) -> None:
        self._lanes.discard(lane)
        stream = lane.spec.stream
        if not any(other.spec.stream == stream for other in self._lanes):
            for sid in self._heard.pop(stream, ()):
                self.start_soon(self.connection.unsubscribe, sid)

    async def read_note(self, stream: str, sequence: int) -> bytes | None:
        return await read_note(self.js, stream, sequence)

    async def owns(self, delivery: Delivery) -> bool:
        try:
            info = await self.js.consumer_info(delivery.stream, delivery.lane.spec.durable)
        except (ConsumerNotFound, StreamNotFound):
            return False
        latest = parse_ack(delivery.reply).consumer_sequence
        return info.deliveries == latest and info.num_ack_pending > 0

    async def write_note(self, stream: str, sequence: int, note: bytes) -> None:
        await write_note(self.js, stream, sequence, note)

    async def read_mark(self, queue: str, name: str) -> Mark:
        return await read_mark(self.js, queue, name)

    async def write_mark(
        self, queue: str, name: str, value: bytes | None, *, revision: int
    ) -> bool:
        return await write_mark(self.js, queue, name, value, revision)

    async def list_marks(self, queue: str) -> list[tuple[str, Mark]]:
        return await list_marks(self.js, queue)

    async def keeps_marks(self, queue: str) -> bool:
        return await patiently(partial(keeps_marks, self.js, queue), self.connection, waits=True)

    def watch_marks(self, queue: str, changed: Callable[[], None]) -> Callable[[], None]:
        sid = watch_marks(self.connection, queue, changed)
        return partial(self.start_soon, self.connection.unsubscribe, sid)

    async def list_owners(self, stream: str) -> dict[str, int]:
        return await list_owners(self.js, owners_bucket(stream))

    async def write_owner(self, stream: str, name: str, record: bytes, revision: int) -> int | None:
        return await write_owner(self.js, owners_bucket(stream), name, record, revision)

    async def remove_owner(self, stream: str, name: str, revision: int) -> None:
        await self.js.delete_message(bucket_stream(owners_bucket(stream)), revision)

    async def last_sequence(self, stream: str) -> int:
        return (await stream_end(self.js, stream)).sequence

    async def stream_end(self, stream: str) -> StreamEnd:
        return await stream_end(self.js, stream)

    async def next_message(self, stream: str, sequence: int) -> Kept | None:
        return await next_message(self.js, stream, sequence)

    async def next_messages(self, stream: str, sequence: int) -> list[Kept]:
        return await next_messages(self.js, stream, sequence)

    async def delete_message(self, stream: str, sequence: int) -> bool:
        return await delete_message(self.js, stream, sequence)

    async def shard_layout(self, queue: str, changed: Callable[[], None]) -> ShardLayout:
        return await self._shards.layout(queue, changed)

    async def reshard(self, topology: Topology, timeout: float) -> Resharded:
        require(self.connection, RESHARD)
        return await reshard(NatsShards(self.js, topology.queue), topology, timeout)

    async def backlog(self, stream: str, durable: str) -> Backlog | None:
        try:
            info = await self.js.consumer_info(stream, durable)
        except (ConsumerNotFound, StreamNotFound):
            return None
        return Backlog(
            pending=info.num_pending,
            ack_pending=info.num_ack_pending,
            redelivered=info.num_redelivered,
        )


def _forbidden(error: PermissionDenied) -> PublishForbidden:
    forbidden = PublishForbidden(str(error), subject=error.subject, operation=error.operation)
    if error.operation == "subscribe":
        forbidden.stored = None  # what was sent before it was refused has no answer either
    return forbidden


def _refusal(error: dict[str, Any], post: Post) -> Exception:
    code, text = error.get("err_code", 0), str(error.get("description", ""))
    if code in _FULL:
        return StreamFull(f"the stream for {post.subject} is full: {text}")
    if code in _TOO_LARGE:
        return MessageTooLarge(f"the stream for {post.subject} refuses its size: {text}")
    if code in _TEMPORARY:
        return PublishUnknown(f"JetStream is not ready for {post.subject}: {text}")
    if code == _ANOTHER_STREAM:
        return another_stream(post.subject)
    refusal = PublishRefused(f"the stream for {post.subject} refused: {text} ({code})")
    refusal.__cause__ = ApiError(int(error.get("code", 0)), int(code), text)
    return refusal
