"""Who owns the shards of a keyed topic: a key-value bucket, `{queue}-owners`.

One entry per shard, by its number, changed by compare-and-swap only (`backends/_ownership.py`).
Reads ask the stream's leader: one that lags would show a record that was renewed since, which only
costs a refused write, but also one that was handed on and has been claimed since.

No record is an answer, too: "nobody ever had this shard, take it". So whether that is so, or the
record was lost, must not be guessed. The bucket is made before the durables are: one that is
younger than a durable has taken the place of another, which may have had the record. And it does
not count from 1: a write that was meant for the other bucket, and is read late, must not find the
revision there that it expects. So a bucket begins with the milliseconds of the time of its making.
"""

from __future__ import annotations

import dataclasses

import msgspec

from shove_actors._errors import (
    ConnectionError,
    MessageNotFound,
    PublishRefused,
    StreamNameInUse,
    StreamNotFound,
    TopicNotDeclared,
    UnavailableError,
)
from shove_actors.jetstream import JetStream, StreamConfig, parse_time_ns
from shove_actors.messaging import bucket_stream, bucket_subject, encode_headers

#: Another write came first: there are two numbers for it.
_CHANGED = frozenset({10071, 10164})
#: JetStream is not ready, or short of something: worth another try.
_TEMPORARY = frozenset({10008, 10023, 10028})


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_PubAck).decode


def owners_config(bucket: str, replicas: int) -> StreamConfig:
    return StreamConfig(
        name=bucket_stream(bucket),
        subjects=(bucket_subject(bucket, ">"),),
        description="who handles which shard, kept by shove_actors",
        discard="new",
        max_msgs_per_subject=1,
        num_replicas=replicas,
        allow_direct=True,
        extra={"allow_rollup_hdrs": True},
    )


async def ensure_owners(js: JetStream, bucket: str, stream: str) -> None:
    """Make the bucket, with as many replicas as the topic's stream, if there is none."""
    try:
        await js.stream_info(bucket_stream(bucket))
        return
    except StreamNotFound:
        pass
    try:
        replicas = (await js.stream_info(stream)).config.num_replicas
    except StreamNotFound as exc:
        raise TopicNotDeclared(
            f"there is no stream {stream!r}; call `await broker.declare(topic)` first"
        ) from exc
    try:
        first = js.clock.now_ns() // 1_000_000
        await js.create_stream(
            dataclasses.replace(owners_config(bucket, replicas), first_seq=first)
        )
    except StreamNameInUse:
        pass  # another process was faster, or an operator has changed it


async def read_owner(js: JetStream, bucket: str, name: str) -> tuple[bytes | None, int]:
    """The record and its revision; 0 if there is no trace of it. A delete marker has a revision.

    Raises `StreamNotFound` if the bucket is gone.
    """
    try:
        message = await js.get_last_message(bucket_stream(bucket), bucket_subject(bucket, name))
    except MessageNotFound:
        return None, 0
    return message.data or None, message.sequence


async def bucket_made_ns(js: JetStream, bucket: str) -> int:
    """When, by the server's clock. Raises `StreamNotFound`."""
    return parse_time_ns((await js.call(f"STREAM.INFO.{bucket_stream(bucket)}"))["created"])


async def list_owners(js: JetStream, bucket: str) -> dict[str, int]:
    """The revision of every record."""
    stream, prefix = bucket_stream(bucket), bucket_subject(bucket, "")
    found: dict[str, int] = {}
    sequence = 1
    while True:
        try:
            message = await js.next_message(stream, sequence)
        except StreamNotFound:
            return {}
        if message is None:
            return found
        sequence = message.sequence + 1
        found[message.subject.removeprefix(prefix)] = message.sequence


async def write_owner(
    js: JetStream, bucket: str, name: str, record: bytes, revision: int
) -> int | None:
    """The new revision. None: it was not at `revision`, and nothing is changed."""
    subject = bucket_subject(bucket, name)
    block = encode_headers({"Nats-Expected-Last-Subject-Sequence": str(revision)})
    reply = await js.connection.request(subject, record, header_block=block)
    if reply.status is not None:
        raise UnavailableError(f"no stream takes {subject}: was bucket {bucket} deleted?")
    try:
        ack = _decode(reply.payload)
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise ConnectionError(f"the answer to {subject} is no acknowledgement") from exc
    if ack.error is not None:
        code = ack.error.get("err_code")
        if code in _CHANGED:
            return None
        if code in _TEMPORARY:
            raise UnavailableError(f"JetStream is not ready for {subject}: {ack.error}")
    if ack.error is not None or not ack.seq:
        raise PublishRefused(f"the record on {subject} was refused: {ack.error}")
    return ack.seq
