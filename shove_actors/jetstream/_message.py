"""A message that a consumer has delivered, and what can be said to the server about it.

Everything but the payload is read when it is asked for: most readers never look at the subject as
text, the headers or the metadata, and a header dictionary per message would cost more than all of
the delivery.

Settling is synchronous but for the wait for a connection, so two tasks cannot both settle one
message: whoever comes second gets `AlreadyAcked`. A message counts as settled only when its
acknowledgement was handed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import trio

from shove_actors._errors import AlreadyAcked, InvalidOption, NoResponders, NotJetStreamMessage

from ._connection import Connection
from ._headers import Headers, parse_headers
from ._options import check_seconds, encoded
from ._times import datetime_of_ns
from ._wire import parse_ack

_NS = 1_000_000_000
_ACK = b"$JS.ACK."
#: Bytes of a `term` with its reason: it travels on in an advisory, and is for people.
MAX_TERM = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageMetadata:
    """Where a message comes from, read from its acknowledgement subject."""

    stream: str
    consumer: str
    domain: str | None
    stream_sequence: int
    consumer_sequence: int
    #: 1 for the first delivery.
    num_delivered: int
    #: How many messages the consumer had not delivered yet, after this one.
    num_pending: int
    #: When it was stored, cut to microseconds; `timestamp_ns` has all of it.
    time: datetime
    timestamp_ns: int


class Message:
    """One delivery. Settle it once: `ack`, `double_ack`, `nak` or `term`.

        async for message in messages:
            print(message.subject, message.data, message.metadata.stream_sequence)
            await message.ack()

    Unsettled, it comes again after the consumer's `ack_wait`. Every verb waits for the connection
    while there is none (bound it with a cancel scope), raises `ConnectionError` when that was
    given up, `NotJetStreamMessage` for a message that no consumer delivered, and `AlreadyAcked`
    after `ack`, `nak` or `term`. Cancelled, nothing was sent.
    """

    __slots__ = ("_conn", "_subject", "data", "header_block", "raw_reply", "settled")

    def __init__(
        self,
        conn: Connection,
        subject: bytes,
        raw_reply: bytes,
        header_block: bytes | None,
        data: bytes,
    ) -> None:
        self._conn = conn
        self._subject = subject
        #: The acknowledgement subject, as it came.
        self.raw_reply = raw_reply
        self.header_block = header_block
        self.data = data
        #: Whether a final acknowledgement was sent.
        self.settled = False

    def __repr__(self) -> str:
        return f"<Message on {self.subject}, {len(self.data)} bytes>"

    @property
    def subject(self) -> str:
        return self._subject.decode(errors="backslashreplace")

    @property
    def reply(self) -> str:
        """The acknowledgement subject."""
        return self.raw_reply.decode(errors="backslashreplace")

    @property
    def headers(self) -> Headers:
        """Always a mapping; empty without headers."""
        return parse_headers(self.header_block)

    @property
    def metadata(self) -> MessageMetadata:
        """Raises `NotJetStreamMessage`."""
        try:
            parts = parse_ack(self.raw_reply)
        except ValueError:
            raise self._foreign() from None
        return MessageMetadata(
            stream=parts.stream,
            consumer=parts.consumer,
            domain=parts.domain,
            stream_sequence=parts.stream_sequence,
            consumer_sequence=parts.consumer_sequence,
            num_delivered=parts.num_delivered,
            num_pending=parts.pending,
            time=datetime_of_ns(parts.timestamp_ns),
            timestamp_ns=parts.timestamp_ns,
        )

    @property
    def size(self) -> int:
        """As the server counts it: subject, reply, headers and payload."""
        block = self.header_block
        return (
            len(self._subject)
            + len(self.raw_reply)
            + len(self.data)
            + (len(block) if block is not None else 0)
        )

    async def ack(self) -> None:
        """Done: never deliver it again. Sent, not confirmed; see `double_ack`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.settled or not self._conn.connected or not self.raw_reply:
            await self._ready()
        # Between the last await and this line nobody else can have run.
        self.settled = True
        self._conn.write(b"PUB %b 4\r\n+ACK\r\n" % self.raw_reply)

    async def double_ack(self, timeout: float | None = None) -> None:
        """As `ack`, and wait until the server has confirmed it (default: the connection's
        `request_timeout`). May be repeated.

        Raises `NoResponders` when the consumer is gone, `RequestTimeout`, `ConnectionError` when
        the connection was lost meanwhile: it may or may not have been carried out then.
        """
        if not self.raw_reply:
            raise self._foreign()
        answer = await self._conn.request(self.reply, b"+ACK", timeout=timeout)
        status = answer.status
        if status is not None and status[0] == 503:
            raise NoResponders(
                "nobody takes the acknowledgement (503): the consumer or its stream is gone"
            )
        self.settled = True

    async def nak(self, delay: float | None = None) -> None:
        """Not done: deliver it again, now or after `delay` seconds, whatever `ack_wait` and
        `backoff` say."""
        body = b"-NAK"
        if delay is not None and delay != 0:
            check_seconds("delay", delay)
            body = b'-NAK {"delay":%d}' % round(delay * _NS)
        await self._settle(body)

    async def term(self, reason: str | None = None) -> None:
        """Never deliver it again, done or not. The reason appears in the server's advisory."""
        if reason is not None and not isinstance(reason, str):
            raise InvalidOption(f"reason is of type {type(reason).__name__}; give a str")
        body = b"+TERM " + encoded("reason", reason) if reason else b"+TERM"
        if len(body) > MAX_TERM:
            raise InvalidOption(
                f"reason has {len(body) - 6} bytes; at most {MAX_TERM - 6} go into an advisory"
            )
        await self._settle(body)

    async def in_progress(self) -> None:
        """Still at it: `ack_wait` begins anew. As often as needed, before it is settled."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.settled or not self._conn.connected or not self.raw_reply:
            await self._ready()
        self._conn.publish(self.raw_reply, b"+WPI")

    async def _settle(self, body: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.settled or not self._conn.connected or not self.raw_reply:
            await self._ready()
        self.settled = True
        self._conn.publish(self.raw_reply, body)

    async def _ready(self) -> None:
        if not self.raw_reply:
            raise self._foreign()
        while not self.settled and not self._conn.connected:
            await self._conn.wait_connected()
        if self.settled:
            raise AlreadyAcked("the message was settled before; ack, nak or term it once")

    def _foreign(self) -> NotJetStreamMessage:
        return NotJetStreamMessage(
            f"the message on {self.subject!r} was not delivered by a consumer; it has neither "
            "metadata nor anything to settle"
        )
