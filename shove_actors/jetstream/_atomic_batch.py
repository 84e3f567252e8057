"""An atomic batch: stored as a whole, or not at all.

The protocol: every message carries the batch's id and a number from 1 on; the last one says
"commit". Until then the server keeps them aside. So the newest message is held back here until it
is known whether another one follows. Every message asks for a reply (empty, but for the last), and
only so many are unanswered at a time; the first is waited for, because it tells whether the stream
takes batches at all.

A batch that is not committed leaves nothing: the server forgets it ten seconds after its last
message, or when another one comes out of turn. Until then it takes one of the stream's places for
open batches, of which there are fifty. So who leaves one sends it a message out of turn, which is
refused, and the place is free at once (`test_c26_abandoned_batches_give_their_place_back`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from shove_actors._errors import (
    BrokerClosed,
    ConnectionError,
    Disconnected,
    InvalidAck,
    InvalidOption,
    NotConnected,
    PublishTimeout,
    UsageError,
)

from ._connection import Connection
from ._pub_ack import PubAck, read_ack
from ._publish_options import Data, Encoded, PublishOptions, PubMessage
from ._wire import CRLF, hpub

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: The server refuses a longer one (error 10199).
MOST_MESSAGES = 1000
#: Messages on their way without an answer.
_WINDOW = 64
_EMPTY_BLOCK = b"NATS/1.0\r\n\r\n"

Encode = Callable[["str | PubMessage", Data, PublishOptions], Encoded]


class AtomicBatch:
    """Messages for one stream that become visible together, when the block is left.

    An exception inside the block abandons the batch: nothing is stored. The stream needs
    `allow_atomic` (nats-server 2.12). At most a thousand messages, at most ten seconds between two.

    `add` and leaving the block raise `AtomicBatchError` and other `ApiError`s when the server
    refuses the batch (nothing is stored), `NoStreamResponse`, `NotConnected`; `FeatureUnavailable`
    on an older server, before anything is sent. `PublishTimeout` and `Disconnected` at the end
    leave it open whether all of it is stored or nothing.
    """

    def __init__(self, connection: Connection, timeout: float, encode: Encode) -> None:
        self._connection = connection
        self._timeout = timeout
        self._encode = encode
        self._id = secrets.token_hex(11)
        self._held: Encoded | None = None
        self._sent = 0
        #: Where the newest message went, once the server has taken the first one; b"" when there
        #: is nothing (any more) to be abandoned.
        self._open_on = b""
        self._unanswered: set[bytes] = set()
        self._lot = trio.lowlevel.ParkingLot()
        self._failure: Exception | None = None
        self._state = "new"
        #: The acknowledgement of the whole, once the block has been left.
        self.ack: PubAck | None = None

    @property
    def id(self) -> str:
        """The batch's id, as in `PubAck.batch`."""
        return self._id

    def __len__(self) -> int:
        """How many messages were added."""
        return self._sent + (self._held is not None)

    async def __aenter__(self) -> AtomicBatch:
        if self._state != "new":
            raise UsageError("a batch is entered once; make another one with js.batch()")
        self._state = "open"
        return self

    async def add(
        self,
        subject: str | PubMessage,
        data: Data = b"",
        **options: Unpack[PublishOptions],
    ) -> None:
        """One more message. It is sent when the next one is added, or with the commit."""
        if self._state != "open":
            raise UsageError("add messages inside the batch's `async with` block")
        encoded = self._encode(subject, data, options)
        if len(self) >= MOST_MESSAGES:
            raise InvalidOption(f"an atomic batch has {MOST_MESSAGES} messages at most")
        self._check()
        held, self._held = self._held, encoded
        if held is not None:
            await self._send(held)
        else:
            await trio.lowlevel.checkpoint()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._state = "closed"
        try:
            if exc is None and self._held is not None:
                self._check()
                await self._commit(self._held)
        finally:
            self._abandon()
            for reply in self._unanswered:
                self._connection.replies.forget(reply)
            self._held = None

    # ----------------------------------------------------------------- sending

    async def _send(self, message: Encoded) -> None:
        """A message that is not the last."""
        first = self._sent == 0
        with trio.move_on_after(self._timeout):
            if first:
                await self._ready()
            self._write(message, b"")
            while self._unanswered and (first or len(self._unanswered) >= _WINDOW):
                await self._lot.park()
                self._check()
            self._open_on = message.wire_subject
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        raise PublishTimeout(
            f"the stream of {message.subject!r} did not answer within {self._timeout:g} s; "
            "nothing is stored"
        )

    async def _commit(self, message: Encoded) -> None:
        with trio.move_on_after(self._timeout):
            if self._sent == 0:
                await self._ready()
            self._write(message, b"Nats-Batch-Commit: 1" + CRLF)
            self._open_on = b""
            while self.ack is None:
                self._check()
                await self._lot.park()
            return
        raise PublishTimeout(
            f"no acknowledgement of the batch from {message.subject!r} within {self._timeout:g} s"
        )

    def _abandon(self) -> None:
        """Have the server forget it now. Nothing waits for the answer, which is a refusal."""
        if self._open_on and self._failure is None:
            block = b"NATS/1.0\r\nNats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n\r\n" % (
                self._id.encode(),
                self._sent + 2,
            )
            # Without a connection the server forgets it by itself.
            self._connection.write(hpub(self._open_on, b"", block, b""))
        self._open_on = b""

    async def _ready(self) -> None:
        if not self._connection.connected:
            await self._connection.wait_connected()
        # An older one would store each message by itself.
        self._connection.needs((2, 12), "an atomic batch")

    def _write(self, message: Encoded, commit: bytes) -> None:
        number = self._sent + 1
        block = (message.block or _EMPTY_BLOCK)[: -len(CRLF)]
        block += b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n%b\r\n" % (
            self._id.encode(),
            number,
            commit,
        )
        expected = _Expected(message.subject)
        reply = expected.reply = self._connection.replies.expect(self._answered, expected)
        self._unanswered.add(reply)
        if not self._connection.write(hpub(message.wire_subject, reply, block, message.payload)):
            raise NotConnected("the connection was lost; nothing of the batch is stored")
        self._sent = number

    # ----------------------------------------------------------------- answers

    def _answered(
        self, argument: object, header_block: bytes | None, payload: bytes | Exception
    ) -> None:
        assert isinstance(argument, _Expected)
        self._unanswered.discard(argument.reply)
        if isinstance(payload, Exception):
            lost = isinstance(payload, (ConnectionError, BrokerClosed))
            self._fail(Disconnected(str(payload)) if lost else payload)
        elif payload or header_block:
            outcome = read_ack(argument.subject, header_block, payload)
            if isinstance(outcome, Exception):
                self._fail(outcome)
            else:
                self.ack = outcome
        self._lot.unpark_all()

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.ack is not None and self._state == "open":
            raise InvalidAck("the stream stored a message of a batch by itself: it knows none")


class _Expected:
    """`subject` is what the connection looks at when the server refuses a publish."""

    __slots__ = ("reply", "subject")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.reply = b""
