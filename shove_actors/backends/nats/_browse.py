"""Looking at a stream's messages without consuming them, and taking single ones out.

Single reads ask the stream's leader: what was acknowledged before is seen. Many are read through a
consumer that is made for the purpose and acknowledges nothing; a request for each would cost far
more than the message. Such a consumer lives where any replica of the stream is, and that may lag:
it then knows less of the end than the leader does, and never has a gap before it. So where it has
nothing more, the leader has the word (`next_messages`).

Tests: `tests/backends/checks_browsing.py`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import trio

from shove_actors._errors import (
    ApiError,
    ConsumerNotFound,
    PermissionDenied,
    StreamNotFound,
    TopicNotDeclared,
)
from shove_actors.backends._port import Kept, StreamEnd
from shove_actors.jetstream import (
    ConsumerConfig,
    JetStream,
    ack_numbers,
    parse_ack,
    pub,
    status_of,
)

#: How much one read brings at most: bounds what is in memory at a time.
BATCH, BATCH_BYTES = 500, 4 << 20
#: How long a read waits for what the server said it has. More is asked for with the next one.
READ_S = 2.0
#: The server forgets a reader of whom it hears nothing for so long.
READER_S = 10.0


def _missing(stream: str) -> TopicNotDeclared:
    return TopicNotDeclared(
        f"there is no stream {stream!r}; call `await broker.declare(topic)` first"
    )


async def stream_end(js: JetStream, stream: str) -> StreamEnd:
    try:
        info = await js.stream_info(stream)
    except StreamNotFound as exc:
        raise _missing(stream) from exc
    return StreamEnd(info.last_seq, info.created.isoformat())


async def next_message(js: JetStream, stream: str, sequence: int) -> Kept | None:
    try:
        raw = await js.next_message(stream, max(1, sequence))
    except StreamNotFound as exc:
        raise _missing(stream) from exc
    if raw is None:
        return None
    return Kept(raw.sequence, raw.subject, raw.data, raw.header_block, raw.time_ns)


async def delete_message(js: JetStream, stream: str, sequence: int) -> bool:
    try:
        return await js.delete_message(stream, sequence)
    except StreamNotFound as exc:
        raise _missing(stream) from exc


async def next_messages(js: JetStream, stream: str, sequence: int) -> list[Kept]:
    found = await _read(js, stream, max(1, sequence))
    if found:
        return found
    kept = await next_message(js, stream, sequence)
    return [] if kept is None else [kept]


@dataclass(slots=True)
class _Reading:
    """What one request brings."""

    wanted: int
    found: list[Kept] = field(default_factory=list)
    over: trio.Event = field(default_factory=trio.Event)

    def take(
        self, subject: bytes, reply: bytes, header_block: bytes | None, payload: bytes
    ) -> None:
        if self.over.is_set():
            return
        if not reply.startswith(b"$JS.ACK."):
            status = None if payload else status_of(header_block)
            if status is not None and status[0] != 100:
                self.over.set()
            return
        if parse_ack(reply).consumer_sequence != len(self.found) + 1:
            self.over.set()  # some were lost with the connection: what comes is behind a gap
            return
        _, sequence, timestamp_ns = ack_numbers(reply)
        where = subject.decode(errors="backslashreplace")
        self.found.append(Kept(sequence, where, payload, header_block, timestamp_ns))
        if len(self.found) == self.wanted:
            self.over.set()


async def _read(js: JetStream, stream: str, sequence: int) -> list[Kept]:
    """Nothing: there may still be something."""
    name, conn = f"shove-read-{secrets.token_hex(8)}", js.connection
    try:
        reader = await js.put_consumer(
            stream,
            ConsumerConfig(
                name=name,
                deliver_policy="by_start_sequence",
                ack_policy="none",
                inactive_threshold=READER_S,
                opt_start_seq=sequence,
                mem_storage=True,
            ),
        )
    except StreamNotFound as exc:
        raise _missing(stream) from exc
    except (ApiError, ConsumerNotFound, PermissionDenied):
        return []  # forbidden, or no room for one more consumer: one by one, then
    reading = _Reading(min(BATCH, reader.num_pending))
    if not reading.wanted:
        _forget(js, stream, name)
        return []
    inbox = conn.new_inbox()
    sid = conn.subscribe(inbox, reading.take)
    try:
        body = b'{"batch":%d,"max_bytes":%d,"expires":%d}' % (
            reading.wanted,
            BATCH_BYTES,
            READ_S * 1_000_000_000,
        )
        conn.write(pub(f"{js.prefix}CONSUMER.MSG.NEXT.{stream}.{name}".encode(), inbox, body))
        with trio.move_on_after(2 * READ_S):
            await reading.over.wait()
        return reading.found
    finally:
        _forget(js, stream, name)
        await conn.unsubscribe(sid)


def _forget(js: JetStream, stream: str, name: str) -> None:
    """No answer is waited for: it would end by itself."""
    js.connection.write(pub(f"{js.prefix}CONSUMER.DELETE.{stream}.{name}".encode(), b"", b""))
