"""The port: the one small protocol between the runtime and a backend.

It is not a public API: only this package implements it, so it may change freely. A third backend
would implement exactly this file. The runtime is the same on every backend; whatever differs is a
field of `Capabilities`, never an `isinstance`.

Shapes that matter:

* Nothing on the per-message path suspends. `Lane.receive_nowait`, `ack`, `nak`, `renew` and
  `Backend.post` only put work into buffers that the backend writes out in batches.
* A lane belongs to one durable and one process. It holds at most `credit` unsettled deliveries,
  whatever the server sends.
* Publishing reports through a callback per message, so that a thousand acknowledgements cost
  neither a task nor a future each.
* Time is Trio's: `leased_at` is `trio.current_time()`; `now_ns()` is the *server's* wall clock as
  this side estimates it, used for nothing but the age of held messages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from shove_actors.messaging import ShardLayout, Topology

from ._delivery import Delivery
from ._reshard import Resharded


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do beyond the protocol.

    `name`: for logs and metrics. `durable`: messages survive this process. `virtual_time`: every
    timing follows Trio's clock, so `MockClock` is allowed.
    """

    name: str
    durable: bool
    virtual_time: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """JetStream's acknowledgement of one publish."""

    stream: str
    sequence: int
    duplicate: bool = False


class PostWatch(Protocol):
    """Hears once how a post ended: a receipt, or the exception that its caller gets."""

    def done(self, result: object) -> None: ...


class Post:
    """One message on its way into a stream. Mutable on purpose: it is its own completion slot.

    `done(post, result)` is called exactly once per `Backend.post` of it, from a Trio task or from
    the connection's ingress, and must neither block nor raise. `result` is `Stored` or a
    `PublishError`/`UnavailableError`. After a retryable error the same object may be posted again;
    its headers carry the same `Nats-Msg-Id`, so nothing is stored twice inside the window.
    """

    __slots__ = (
        "attempts",
        "deadline",
        "done",
        "given_up",
        "header_block",
        "payload",
        "subject",
        "tag",
        "watch",
    )

    def __init__(
        self,
        subject: str,
        payload: bytes,
        header_block: bytes,
        done: Callable[[Post, Stored | Exception], None],
        tag: object = None,
        watch: PostWatch | None = None,
    ) -> None:
        self.subject = subject
        self.payload = payload
        #: A complete `NATS/1.0 ... CRLF CRLF` block, or b"" for none.
        self.header_block = header_block
        self.done = done
        #: For the caller; the backend never looks at it.
        self.tag = tag
        #: For telemetry; None where nobody looks. The backend never looks at it.
        self.watch = watch
        self.attempts = 0
        self.deadline = float("inf")
        #: Nobody waits for it any more: it is not posted (again). The backend never looks at it.
        self.given_up = False

    @property
    def size(self) -> int:
        """Bytes the server counts against `max_payload`: headers and payload together."""
        return len(self.payload) + len(self.header_block)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSpec:
    """A shard whose keys run side by side, in one process at a time (`_ownership.py`).

    `record`: the name under which its owner is recorded, beside the stream. `max_in_flight`:
    deliveries in handlers at once. `key_of`: whose turn a delivery takes; called once for each, it
    must not raise.
    """

    record: str
    max_in_flight: int
    key_of: Callable[[Delivery], Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpec:
    """One durable to read from.

    `credit`: how many deliveries this process may hold unsettled at once; may change later.
    `max_ack_pending`: the server's limit over all processes; 1 for a shard. `ack_wait_s`: the
    lease. `filter_subject`: None takes the whole stream.
    """

    stream: str
    durable: str
    filter_subject: str | None = None
    credit: int = 1
    max_ack_pending: int = 1000
    ack_wait_s: float = 30.0
    keyed: KeyedSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What one durable still has to do: never delivered, and delivered but unsettled."""

    pending: int
    ack_pending: int
    redelivered: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """What stands beside a queue under one name. `value` None: nothing (any more).

    `revision` tells this state of it from every other one; 0 if there was never anything.
    """

    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class Kept:
    """One stored message, looked at without being delivered."""

    sequence: int
    subject: str
    payload: bytes
    raw_headers: bytes | None
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """`sequence`: of the newest message that a stream was given. `made`: names one stream among
    all that had its name; sequences of another one mean nothing here.
    """

    sequence: int
    made: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatistics:
    """`held`: deliveries in hand (waiting or in a handler). `requested`: asked for, not here."""

    waiting: int
    held: int
    requested: int
    credit: int
    received: int
    pulls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEvent:
    """Something an operator may want to know. `kind` is stable; `detail` is redacted text.

    Kinds: `disconnected`, `reconnected`, `closed`, `error`, `slow_consumer`, `lane_recreated`,
    `lane_waiting`, `pull_stalled`.
    """

    kind: str
    detail: str = ""
    error: BaseException | None = None
    fields: Mapping[str, object] = field(default_factory=dict)


class Lane(Protocol):
    """Deliveries of one durable to this process."""

    @property
    def spec(self) -> LaneSpec: ...

    @property
    def held(self) -> Mapping[int, Delivery]:
        """Unsettled deliveries by stream sequence, oldest first. Read only."""
        ...

    @property
    def busy_until(self) -> float:
        """Trio time until which the event loop counts as busy (see `LaneBuffer`)."""
        ...

    def receive_nowait(self) -> Delivery:
        """The next delivery. Raises `trio.WouldBlock`, or `LaneClosed`/its error once ended."""
        ...

    async def receive(self) -> Delivery:
        """As above, waiting. Cancel-safe: a cancelled call has taken nothing."""
        ...

    def wake_next(self) -> bool:
        """A receiver is about to wait elsewhere: let another one take what is waiting.

        True if there is nothing left to hand over, or somebody was woken. False: deliveries wait
        and nobody is parked (a concurrent consumer then starts one more worker).
        """
        ...

    def set_credit(self, credit: int) -> None: ...

    def ack(self, delivery: Delivery) -> None: ...

    def nak(self, delivery: Delivery, delay_s: float | None = None) -> None: ...

    def renew(self, delivery: Delivery) -> None:
        """Restart the lease. Once the server has confirmed it, `leased_at` moves to now."""
        ...

    def forget(self, delivery: Delivery) -> None:
        """Stop holding it without telling the server: the lease was lost."""
        ...

    async def confirm(self) -> bool:
        """Wait until the server has processed every settle sent so far. False: not in time."""
        ...

    async def close(self) -> None:
        """Give back what waits (NAK), end the pull, confirm the last settles. Idempotent.

        Deliveries that are still in handlers stay settleable until the backend closes.
        """
        ...

    def statistics(self) -> LaneStatistics: ...


class Backend(Protocol):
    """Everything the runtime asks of NATS, or of its model in memory."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connect, report started, serve until `close`. The bridge actor's body.

        Raises when the connection cannot be had or is given up for good. May be called again
        after that (its supervisor restarts it): lanes and listeners survive.
        """
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def max_payload(self) -> int:
        """Bytes, headers and payload together."""
        ...

    @property
    def connected(self) -> bool: ...

    async def wait_connected(self) -> None:
        """Returns at once when connected; raises `ConnectionError` once given up for good."""
        ...

    def now_ns(self) -> int: ...

    def new_name(self) -> str:
        """One that nobody else has who uses the same server. In memory it is the same in every run:
        who owns a shard may depend on the order of names.
        """
        ...

    def post(self, batch: Sequence[Post]) -> None: ...

    async def diagnose(self, subject: str) -> Exception:
        """Why does nobody acknowledge this subject? The exception to raise."""
        ...

    async def declare(self, topologies: Sequence[Topology]) -> None: ...

    async def open_lane(self, spec: LaneSpec) -> Lane:
        """Create or verify the durable, then start reading it.

        Raises `TopicNotDeclared` for a missing stream, `TopologyError` for a durable that cannot
        be brought to this spec.
        """
        ...

    async def open_lanes(self, specs: Sequence[LaneSpec]) -> Sequence[Lane]:
        """`open_lane` for many durables of one stream, in the order of `specs`; all or none."""
        ...

    async def shard_layout(self, queue: str, changed: Callable[[], None]) -> ShardLayout:
        """How many shards the queue's stream takes messages for.

        `changed` is called when that may not hold any more: the stream was changed, or the
        connection was lost. Raises `TopicNotDeclared`.
        """
        ...

    async def reshard(self, topology: Topology, timeout: float) -> Resharded:
        """See `backends._reshard`."""
        ...

    async def backlog(self, stream: str, durable: str) -> Backlog | None:
        """None: the durable does not exist. Any other failure raises: unknown is not zero."""
        ...

    async def owns(self, delivery: Delivery) -> bool:
        """Whether, of all deliveries of its shard (`max_ack_pending` 1), this is the one that
        counts: not settled by anybody, and followed by no other. False: forget it.
        """
        ...

    async def read_note(self, stream: str, sequence: int) -> bytes | None:
        """The note beside a stored message, None if there is none."""
        ...

    async def write_note(self, stream: str, sequence: int, note: bytes) -> None:
        """Store or replace the note beside a stored message; durable when this returns.

        Notes are few and small, and are kept for a week.
        """
        ...

    async def read_mark(self, queue: str, name: str) -> Mark:
        """What stands beside the queue under this name, as whoever decides about it has it.

        A mark whose writing has returned, in any process, is seen: no cache and no follower
        answers. A queue without a place for marks has none of them.
        """
        ...

    async def write_mark(
        self, queue: str, name: str, value: bytes | None, *, revision: int
    ) -> bool:
        """Put a mark there, or take it away (None); durable when this returns.

        False, and nothing is changed, if it is not at `revision` any more. Marks stay until they
        are taken away. Errors are those of a publish, too; then it may or may not be written.
        """
        ...

    async def list_marks(self, queue: str) -> Sequence[tuple[str, Mark]]:
        """All that stand there, by name."""
        ...

    async def keeps_marks(self, queue: str) -> bool:
        """Whether the queue has a place for marks: a FAIL_ALL topic was declared for it."""
        ...

    def watch_marks(self, queue: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Hear of every mark that anybody puts or takes away, until what this returns is called.

        Of a mark that was written after a look at it, `changed` is called before any delivery that
        was published after the writing had returned (in a cluster: once the announcement is
        there). Nothing is heard while there is no connection.
        """
        ...

    async def list_owners(self, stream: str) -> Mapping[str, int]:
        """The revision of every record beside a keyed topic's stream, by name: of who owns which
        shard, and of who is there.
        """
        ...

    async def write_owner(self, stream: str, name: str, record: bytes, revision: int) -> int | None:
        """The new revision, once it is durable. None: it was not at `revision`, nothing changed.

        Any error: written or not, only a look tells.
        """
        ...

    async def remove_owner(self, stream: str, name: str, revision: int) -> None:
        """Nothing happens if it is not at `revision` any more, or an error is raised."""
        ...

    async def last_sequence(self, stream: str) -> int:
        """Of the newest message that the stream was given. Raises `TopicNotDeclared`."""
        ...

    async def stream_end(self, stream: str) -> StreamEnd:
        """`last_sequence`, and of which stream of that name. Raises `TopicNotDeclared`."""
        ...

    async def next_message(self, stream: str, sequence: int) -> Kept | None:
        """The first message at or after `sequence`, nothing is delivered. None: there is none.

        As `read_mark`, it sees everything that was acknowledged. Raises `TopicNotDeclared`.
        """
        ...

    async def next_messages(self, stream: str, sequence: int) -> Sequence[Kept]:
        """The first messages at or after `sequence`, as many as can be had for one wait.

        In order and without a gap; none only if there are no more. One that was deleted a moment
        ago may be among them. Raises `TopicNotDeclared`.
        """
        ...

    async def delete_message(self, stream: str, sequence: int) -> bool:
        """Remove one stored message for good. False: it was not there."""
        ...

    def listen(self, listener: Callable[[BackendEvent], None]) -> None: ...

    def close(self) -> None:
        """Ask `run` to flush and return. Returns at once. Lanes must be closed before."""
        ...


class BackendConfig(Protocol):
    """What `open_broker` takes: the configuration knows how to make its backend."""

    def create_backend(self) -> Backend: ...
