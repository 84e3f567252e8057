"""A durable with a pinned client, and the record of its owner, as `backends._keyed_lane` wants it.

What the server does (2.15.1; docs/keyed.md has the whole list)
* A pull that names the pin keeps it; one that names another, while somebody is pinned, is turned
  away at once (423). While nobody is pinned it waits, and is turned away when somebody is.
* A pull without a pin waits until nobody is pinned and there is a message: then its sender is.
* So pulls of another pin than the present one are answered later, and those answers say nothing:
  with each new pin the inbox is another one, and of the old one only messages are heard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from shove_actors._errors import PermissionDenied, ShoveError, StreamNotFound
from shove_actors.backends._delivery import Delivery
from shove_actors.backends._keyed_lane import KeyedLane
from shove_actors.backends._owner_record import OwnerRecord, decode_owner, lost_record
from shove_actors.backends._owner_requests import forbidden
from shove_actors.backends._pinned import pin_timeout
from shove_actors.backends._port import LaneSpec
from shove_actors.jetstream import (
    JetStream,
    header_value,
    parse_time_ns,
    pub,
    status_of,
)
from shove_actors.messaging import owners_bucket

from ._owners import bucket_made_ns, ensure_owners, read_owner, write_owner
from ._pinning import GROUP
from ._pull import STALLED_S, Verdict, not_pull, verdict_of
from ._recovery import Recovery

if TYPE_CHECKING:
    from ._backend import NatsBackend

_NS: Final = 1_000_000_000
_NEVER: Final = float("inf")
_PIN_HEADER: Final = b"\r\nNats-Pin-Id:"
#: Of the answer to a pull whose pin is not the present one.
_WRONG_PIN: Final = 423


class NatsPinned:
    """See `PinnedDurable`."""

    def __init__(self, backend: NatsBackend, spec: LaneSpec) -> None:
        assert spec.keyed is not None
        self._backend = backend
        self._conn = backend.connection
        self._js: JetStream = backend.js
        self._spec = spec
        self._bucket = owners_bucket(spec.stream)
        self._name = spec.keyed.record
        self._last_acked: bytes | None = None
        #: Where the answer to the latest question comes.
        self._answer = b""
        pin_s = pin_timeout(spec.ack_wait_s)
        self.patience_s = pin_s * 2
        #: When the silence of the server means that something is wrong (Trio time).
        self.deadline = _NEVER
        self._tail = b',"expires":%d,"idle_heartbeat":%d' % (
            round(2 * pin_s * _NS),
            round(max(0.1, pin_s / 2) * _NS),
        )
        self.subject = self._js.prefix.encode() + (
            f"CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}".encode()
        )
        self.inbox = self._conn.new_inbox()
        self.sid = self._conn.subscribe(self.inbox, self._on_message)
        self.closed = False
        #: The latest pin, and the header that it comes in.
        self._pin: str | None = None
        self._pin_line = b"\r\n\r\n\r\n"
        self._now = trio.lowlevel.current_clock().current_time
        #: The latest subject, and decoded: nearly always the same.
        self._subject = b"", ""
        self.lane: NatsKeyedLane

    @property
    def connected(self) -> bool:
        # While it is looked for, the durable may be another one: nothing is to be settled in it.
        return self._conn.connected and not self.lane.recovery.active

    # ------------------------------------------------------------------ asking

    def pull(self, batch: int, pin: str | None) -> bool:
        body = b'{"batch":%d,"group":"owner"%b' % (batch, self._tail)
        body += b',"id":"%b"}' % pin.encode() if pin is not None else b"}"
        if self.closed or self.lane.recovery.active:
            return False
        if not self._conn.write(pub(self.subject, self.inbox, body)):
            return False
        self.deadline = trio.current_time() + self.patience_s
        return True

    def begin(self) -> None:
        if self.closed:
            return
        old = self.sid
        self._conn.redirect(old, self._on_late_message)
        self.inbox = self._conn.new_inbox()
        self.sid = self._conn.subscribe(self.inbox, self._on_message)
        self.deadline = _NEVER
        self._backend.start_soon(self._conn.unsubscribe, old)

    def ack(self, delivery: Delivery) -> bool:
        if self.lane.recovery.active:
            return False
        sent = self._conn.write(b"PUB %b 4\r\n+ACK\r\n" % delivery.reply)
        if sent:
            self._last_acked = delivery.reply
        return sent

    def ask(self, delivery: Delivery, ticket: int) -> None:
        self._last_acked = delivery.reply
        self._conn.replies.forget(self._answer)  # nothing is expected of an earlier question
        self._answer = self._conn.replies.expect(self._answered, ticket)
        self._conn.write(pub(delivery.reply, self._answer, b"+ACK"))

    def void(self) -> None:
        """The durable is another one: what was acknowledged must not be acknowledged again."""
        self._last_acked = None

    def _answered(
        self, ticket: object, header_block: bytes | None, payload: bytes | Exception
    ) -> None:
        if isinstance(payload, Exception) or (not payload and status_of(header_block)):
            return  # nobody has read it
        assert isinstance(ticket, int)
        self.lane.acks.answered(ticket)

    async def first_stored(self, sequence: int) -> float:
        try:
            found = await self._js.next_message(self._spec.stream, sequence)
        except PermissionDenied as exc:
            # Keys whose settle is in doubt would wait for ever.
            self.lane.on_denied(forbidden(self._spec, exc))
            raise
        return _NEVER if found is None else found.sequence

    async def confirm(self) -> bool:
        """As `Settles.confirm`: the last acknowledgement once more, with an answer."""
        reply = self._last_acked
        if reply is None or not self.connected:
            await trio.lowlevel.checkpoint()
            return reply is None
        try:
            answer = await self._conn.request(reply.decode(), b"+ACK", timeout=2.0)
        except ShoveError:
            return False
        if answer.status is None and self._last_acked is reply:
            self._last_acked = None
        return answer.status is None

    async def read_owner(self) -> tuple[OwnerRecord | None, int]:
        try:
            value, revision = await read_owner(self._js, self._bucket, self._name)
        except StreamNotFound:
            await ensure_owners(self._js, self._bucket, self._spec.stream)
            value, revision = None, 0
        if value is not None:
            return decode_owner(value), revision
        return await self._missing(trace=revision > 0), revision

    async def _missing(self, *, trace: bool) -> OwnerRecord | None:
        """There is no record: whether it was lost, and how long its owner may go on.

        `trace`: there was one for sure. The durable knows more: its ack wait is the longest of all
        who use it; and an acknowledgement, which only an owner sends, is counted in its floor.
        """
        info = await self._js.call(f"CONSUMER.INFO.{self._spec.stream}.{self._spec.durable}")
        trace = trace or int(info["ack_floor"]["consumer_seq"]) > 0
        if not trace:
            made_ns = await bucket_made_ns(self._js, self._bucket)
            if made_ns <= parse_time_ns(info["created"]):
                return None
        return lost_record(int(info["config"].get("ack_wait") or 0) / _NS)

    async def write_owner(self, record: bytes, revision: int) -> int | None:
        return await write_owner(self._js, self._bucket, self._name, record, revision)

    async def look(self) -> tuple[str | None, int, int, str]:
        stream = await self._js.call(f"STREAM.INFO.{self._spec.stream}")
        info = await self._js.call(f"CONSUMER.INFO.{self._spec.stream}.{self._spec.durable}")
        pinned: str | None = None
        for group in info.get("priority_groups") or ():
            if group.get("group") == GROUP:
                pinned = group.get("pinned_client_id") or None
        floor, high = info["ack_floor"]["stream_seq"], info["delivered"]["stream_seq"]
        return pinned, int(floor), int(high), str(stream["created"])

    async def rewind(self) -> None:
        await self._js.call(f"CONSUMER.RESET.{self._spec.stream}.{self._spec.durable}", {})

    async def unpin(self) -> None:
        op = f"CONSUMER.UNPIN.{self._spec.stream}.{self._spec.durable}"
        await self._js.call(op, {"group": GROUP})

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            await self._conn.unsubscribe(self.sid)

    # ------------------------------------------------------------------ hearing

    def _on_message(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        now = self._now()
        if reply.startswith(b"$JS.ACK."):
            self._deliver(subject, reply, header_block, payload, now, True)
        else:
            status = None if payload else status_of(header_block)
            if status is not None:
                self._on_status(*status, header_block)
        pulls = self.lane.pulls
        if pulls.stalled:
            self.deadline = min(self.deadline, now + STALLED_S)
        else:
            self.deadline = now + self.patience_s if pulls.requested else _NEVER

    def _on_late_message(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        if reply.startswith(b"$JS.ACK."):
            self._deliver(subject, reply, header_block, payload, trio.current_time(), False)

    def _deliver(
        self,
        subject: bytes,
        reply: bytes,
        header_block: bytes | None,
        payload: bytes,
        now: float,
        requested: bool,
    ) -> None:
        # Both forms, see `parse_ack`; once per message, so without its checks.
        tokens = reply.split(b".")
        first = 5 if len(tokens) == 9 else 7
        if subject != self._subject[0]:
            self._subject = subject, subject.decode(errors="backslashreplace")
        # The last of that name: the server's, whatever the publisher has written. Nearly always the
        # same as before.
        known = header_block is not None and self._pin_line in header_block
        self.lane.arrived(
            self._pin if known else self._pin_of(header_block),
            int(tokens[first + 1]),
            self._subject[1],
            payload,
            header_block,
            int(tokens[first]),
            int(tokens[first + 2]),
            reply,
            now,
            requested,
        )

    def _pin_of(self, header_block: bytes | None) -> str | None:
        """Which pin it came with, when that is not the one before it."""
        if header_block is None:
            return None
        start = header_block.rfind(_PIN_HEADER)
        if start < 0:
            return None
        value = header_block[start + len(_PIN_HEADER) :].partition(b"\r\n")[0].strip()
        self._pin = value.decode(errors="replace")
        self._pin_line = _PIN_HEADER + b" " + value + b"\r\n"
        return self._pin

    def _on_status(self, code: int, text: str, header_block: bytes | None) -> None:
        if code == _WRONG_PIN:
            self.lane.refused()
            return
        verdict = verdict_of(code, text)
        if verdict is Verdict.ALIVE:
            self.lane.heartbeat(_number(header_block, b"Nats-Last-Consumer"))
        elif verdict in (Verdict.RETURNED, Verdict.LEAVING):
            if verdict is Verdict.LEAVING:
                self.lane.acks.doubt()  # what came between two leaders nobody has read
            self.lane.pull_ended(_number(header_block, b"Nats-Pending-Messages"))
        elif verdict is Verdict.VANISHED:
            self.lane.vanished(f"{code} {text}", deleted=code == 409)
        elif verdict is Verdict.NOT_PULL:
            self.lane.fail(not_pull(self._spec))
        elif verdict is Verdict.STALLED:
            # Asked at once it would be refused at once. When the time is up, it is looked why.
            if not self.lane.pulls.stalled:
                self.lane.notice("pull_stalled", f"{code} {text}")
            self.lane.pulls.stall()
        else:
            self.lane.pull_ended(None)


def _number(header_block: bytes | None, name: bytes) -> int | None:
    value = header_value(header_block, name) if header_block else None
    return int(value) if value is not None and value.isdigit() else None


class NatsKeyedLane(KeyedLane):
    """A keyed lane, with what the backend tells all its lanes."""

    def __init__(self, backend: NatsBackend, spec: LaneSpec, identity: str = "") -> None:
        self._backend = backend
        self._pinned = NatsPinned(backend, spec)
        self._pinned.lane = self
        self.recovery = Recovery(
            backend,
            spec,
            notice=self.notice,
            on_gone=self.recreated,
            on_failed=self.fail,
            on_ended=self._recovered,
        )
        self.recovery.identity = identity
        #: Pulls are heart-beaten often enough.
        self.beat_s = _NEVER
        super().__init__(spec, self._pinned, backend.new_name())

    @property
    def inbox(self) -> bytes:
        return self._pinned.inbox

    @property
    def pull_subject(self) -> bytes:
        return self._pinned.subject

    @property
    def deadline(self) -> float:
        return self._pinned.deadline

    def notice(self, kind: str, detail: str) -> None:
        self._backend.notice(kind, f"{self.spec.stream}/{self.spec.durable}: {detail}")

    def on_disconnected(self) -> None:
        self._pinned.deadline = _NEVER
        self.disconnected()

    def on_reconnected(self) -> None:
        # The server may have been another one, or have lost a stream in memory: look first.
        self.recovery.begin("reconnected")

    def recreated(self) -> None:
        self._pinned.void()
        super().recreated()

    def _recovered(self) -> None:
        if self._backend.connected:
            self.reconnected()

    def on_deleted(self, *, stream: bool = False) -> None:
        if stream:
            self.recovery.stream_deleted()
        self.vanished("the durable was deleted", deleted=True)

    def on_denied(self, error: Exception) -> None:
        self.fail(error)

    def on_missed_heartbeats(self) -> None:
        self._pinned.deadline = _NEVER
        self._pinned.begin()
        self.acks.doubt()
        self.pull_ended(None)
        self.vanished("missed heartbeats", deleted=False)

    def vanished(self, why: str, *, deleted: bool) -> None:
        self.pull_ended(None)
        if deleted:
            self.recreated()
        self.recovery.begin(why)

    async def discard(self) -> None:
        self.recovery.stop()
        self._backend.forget_lane(self)
        await super().discard()
