"""Marks beside a queue: a key-value bucket, `{queue}-poison`.

Laid out as every NATS client lays out a bucket (stream `KV_{bucket}`, subjects `$KV.{bucket}.>`, a
history of one), so that `nats kv ls` and `nats kv get` read it. `declare` makes it; if somebody has
deleted it, whoever writes the next mark makes it again.

Reads ask the stream's leader (`STREAM.MSG.GET`). The bucket allows direct reads, which clients
prefer and which any replica answers, but one that lags would say that a key is not poisoned.

A mark is a message on its subject, whoever writes it and with whatever client, so an ordinary
subscription hears of it (`watch_marks`). One server hands the announcement to our connection while
it takes the mark in, so before it can have acknowledged it, and a connection keeps its order: what
was published after the acknowledgement arrives behind it. From another server of a cluster it
comes by another way than deliveries do; there it takes as long as a message takes between servers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from shove_actors._errors import (
    ConnectionError,
    MessageNotFound,
    PermissionDenied,
    PublishRefused,
    RequestTimeout,
    StreamNameInUse,
    StreamNotFound,
    TopicNotDeclared,
    UnavailableError,
)
from shove_actors.backends._port import Mark
from shove_actors.jetstream import Connection, JetStream, RawMessage, StreamConfig, header_value
from shove_actors.messaging import bucket_stream, bucket_subject, encode_headers, poison_bucket

#: Another write came first: there are two numbers for it.
_CHANGED = frozenset({10071, 10164})
#: JetStream is not ready, or short of something: worth another try.
_TEMPORARY = frozenset({10008, 10023, 10028})
#: For the answer to a write. Three of these fit into the time that a settle may take, so that a
#: bucket that was deleted is noticed and made again within one.
ANSWER_LIMIT_S: Final = 3.0
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_OPERATION = "KV-Operation"


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_PubAck).decode


def bucket_config(queue: str, replicas: int) -> StreamConfig:
    bucket = poison_bucket(queue)
    return StreamConfig(
        name=bucket_stream(bucket),
        subjects=(bucket_subject(bucket, ">"),),
        description=f"poisoned keys of {queue}, kept by shove_actors",
        discard="new",
        max_msgs_per_subject=1,
        num_replicas=replicas,
        allow_direct=True,
        deny_delete=True,
        extra={"allow_rollup_hdrs": True},
    )


async def read_mark(js: JetStream, queue: str, name: str) -> Mark:
    bucket = poison_bucket(queue)
    try:
        message = await js.get_last_message(bucket_stream(bucket), bucket_subject(bucket, name))
    except (StreamNotFound, MessageNotFound):
        return Mark(None, 0)
    return _mark(message)


def _mark(message: RawMessage) -> Mark:
    block = message.header_block
    removed = block is not None and header_value(block, _OPERATION.encode()) in (b"DEL", b"PURGE")
    return Mark(None if removed else message.data, message.sequence)


async def write_mark(
    js: JetStream, queue: str, name: str, value: bytes | None, revision: int
) -> bool:
    headers = {_EXPECTED: str(revision)}
    if value is None:
        headers[_OPERATION] = "DEL"
    block = encode_headers(headers)
    bucket = poison_bucket(queue)
    subject = bucket_subject(bucket, name)
    written = await _store(js, bucket, subject, value or b"", block)
    if written is None:
        await _make_bucket(js, queue)
        written = await _store(js, bucket, subject, value or b"", block)
        if written is None:
            raise PublishRefused(
                f"bucket {bucket} does not take marks: no stream answers on its subjects, "
                f"{bucket_subject(bucket, '>')}. Have its stream {bucket_stream(bucket)} bind them"
            )
    return written


async def _make_bucket(js: JetStream, queue: str) -> None:
    try:
        replicas = (await js.stream_info(queue)).config.num_replicas
    except StreamNotFound as exc:
        raise TopicNotDeclared(
            f"there is no stream {queue!r}; call `await broker.declare(topic)` first"
        ) from exc
    try:
        await js.create_stream(bucket_config(queue, replicas))
    except StreamNameInUse:
        pass  # another process was faster, or an operator has changed it


async def _store(
    js: JetStream, bucket: str, subject: str, value: bytes, block: bytes
) -> bool | None:
    """None: no stream answers there. Errors do not name the subject: it says a user's key."""
    try:
        reply = await js.connection.request(
            subject, value, timeout=ANSWER_LIMIT_S, header_block=block
        )
    except RequestTimeout as exc:
        if await _is_gone(js, bucket):
            return None
        raise RequestTimeout(
            f"no answer to a mark in bucket {bucket} within {ANSWER_LIMIT_S:g} s"
        ) from exc
    if reply.status is not None:
        return None
    try:
        ack = _decode(reply.payload)
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise ConnectionError(
            f"the answer to a mark in bucket {bucket} is no acknowledgement; somebody else answers "
            "on its subjects"
        ) from exc
    if ack.error is not None:
        code = ack.error.get("err_code")
        if code in _CHANGED:
            return False
        if code in _TEMPORARY:
            raise UnavailableError(f"JetStream is not ready for bucket {bucket}: {ack.error}")
    if ack.error is not None or not ack.seq:
        raise PublishRefused(
            f"a mark in bucket {bucket} was refused: {ack.error}. Its stream is "
            f"{bucket_stream(bucket)}; a full one needs room, a changed one its settings back"
        )
    return True


async def _is_gone(js: JetStream, bucket: str) -> bool:
    """Whoever watches a bucket is interest in its subjects: where its stream is deleted, a write is
    answered by nobody, and the server does not say so. Consumers of the topic watch it."""
    try:
        await js.stream_info(bucket_stream(bucket))
    except StreamNotFound:
        return True
    return False


async def keeps_marks(js: JetStream, queue: str) -> bool:
    try:
        await js.stream_info(bucket_stream(poison_bucket(queue)))
    except (StreamNotFound, PermissionDenied):
        return False  # who may not look is not to be kept from consuming; the connection says so
    return True


def watch_marks(connection: Connection, queue: str, changed: Callable[[], None]) -> int:
    """The id of a subscription. Refused it, one hears nothing, and the connection says so."""
    subject = bucket_subject(poison_bucket(queue), ">").encode()
    return connection.subscribe(subject, lambda *message: changed())


async def list_marks(js: JetStream, queue: str) -> list[tuple[str, Mark]]:
    bucket = poison_bucket(queue)
    stream, prefix = bucket_stream(bucket), bucket_subject(bucket, "")
    found: dict[str, Mark] = {}
    sequence = 1
    try:
        while True:
            message = await js.next_message(stream, sequence)
            if message is None:
                break
            sequence = message.sequence + 1
            found[message.subject.removeprefix(prefix)] = _mark(message)
    except StreamNotFound:
        return []
    return [(name, found[name]) for name in sorted(found) if found[name].value is not None]
