"""AuditLog: the sink that publishes audit records to a topic of its own.

It does not recurse: a consumer of the audit topic may be audited like any other, and a record about
a record is dropped. A record that is too large for the server is published without its payload,
because it would be too large on the next attempt as well.
"""

from __future__ import annotations

import base64
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from shove_actors._errors import MessageTooLarge, TopicNotDeclared, UsageError
from shove_actors.messaging import (
    AuditRecord,
    DeadMetadata,
    NatsStreamConfig,
    Topic,
    TopologyBuilder,
)

if TYPE_CHECKING:
    from ._broker import Broker

AUDIT_QUEUE: Final = "shove-audit-log"


class AuditedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an audited delivery. `death_reason` is that of a dead letter."""

    delivery_id: str
    retry_count: int
    redelivered: bool
    stream: str
    sequence: int
    subject: str
    stored_at: datetime
    headers: dict[str, str] = {}
    shard: int | None = None
    key: str | None = None
    death_reason: str | None = None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An `AuditRecord` as the audit topic has it.

    `payload` is the message's JSON as it was stored. A payload that is no JSON is in
    `payload_base64`; with `payload_omitted` it (and, if need be, its headers) did not fit into a
    message. `payload_size` is in bytes.
    """

    trace_id: str
    topic: str
    payload: Any = None
    payload_base64: str | None = None
    payload_omitted: bool = False
    payload_size: int
    metadata: AuditedMessage
    outcome: str
    cause: str
    detail: str | None = None
    duration_ms: float
    timestamp: datetime


class _EntryCodec:
    """JSON, with the payload written into it as it is: parsed and written again, a number might
    look different."""

    def __init__(self) -> None:
        self.encode = msgspec.json.Encoder().encode
        self.decode = msgspec.json.Decoder(AuditEntry).decode


def _topic(stream: NatsStreamConfig | None) -> Topic[AuditEntry]:
    builder = TopologyBuilder(AUDIT_QUEUE).dlq()
    if stream is not None:
        builder = builder.nats_stream_config(stream)
    return Topic(AuditEntry, builder.build(), codec=_EntryCodec())


class AuditLog:
    """Publishes each record to the topic `shove-audit-log`, which has a dead-letter queue.

        group.register(ORDERS, audited(handle, AuditLog(broker)))
        group.register(AuditLog.topic, archive)        # here, or in a program of its own

    The topic is declared when a group with this sink starts. Its stream keeps the records until
    somebody consumes `AuditLog.topic`: without a consumer it grows. `audit` returns after
    JetStream's acknowledgement and raises what `publish` raises; a stream that was deleted is made
    again.

    `stream`: limits and replicas, as of any other topic; without it the records have one copy, also
    in a cluster, and handlers wait while the node of that copy is down.
    """

    topic: ClassVar[Topic[AuditEntry]] = _topic(None)

    def __init__(self, broker: Broker, *, stream: NatsStreamConfig | None = None) -> None:
        if not callable(getattr(broker, "publisher", None)):
            raise UsageError(
                f"AuditLog({type(broker).__name__}): give it the broker that publishes"
            )
        if stream is not None and not isinstance(stream, NatsStreamConfig):
            raise UsageError(
                f"AuditLog(stream={type(stream).__name__}): give it a NatsStreamConfig, or nothing"
            )
        self._broker = broker
        self._declared = self.topic if stream is None else _topic(stream)

    async def prepare(self) -> None:
        """Declare the topic; raises what `declare` raises."""
        await self._broker.declare(self._declared)

    async def audit(self, record: AuditRecord[Any]) -> None:
        """Publish one record. One about this topic, or about another entry, is dropped."""
        if record.topic == self.topic.queue or isinstance(record.payload, AuditEntry):
            return
        entry = entry_of(record)
        try:
            await self._publish(entry)
        except TopicNotDeclared:
            await self.prepare()
            await self._publish(entry)

    async def _publish(self, entry: AuditEntry) -> None:
        publisher = self._broker.publisher()
        try:
            await publisher.publish(self.topic, entry)
        except MessageTooLarge:
            smaller = msgspec.structs.replace(
                entry, payload=None, payload_base64=None, payload_omitted=True
            )
            try:
                await publisher.publish(self.topic, smaller)
            except MessageTooLarge:
                bare = msgspec.structs.replace(entry.metadata, headers={})
                await publisher.publish(self.topic, msgspec.structs.replace(smaller, metadata=bare))


def entry_of(record: AuditRecord[Any]) -> AuditEntry:
    metadata = record.metadata
    payload, encoded = _payload(record.raw)
    return AuditEntry(
        trace_id=_text(record.trace_id),
        topic=record.topic,
        payload=payload,
        payload_base64=encoded,
        payload_size=len(record.raw),
        metadata=AuditedMessage(
            delivery_id=_text(metadata.delivery_id),
            retry_count=metadata.retry_count,
            redelivered=metadata.redelivered,
            stream=metadata.stream,
            sequence=metadata.sequence,
            subject=_text(metadata.subject),
            stored_at=metadata.timestamp,
            headers={_text(name): _text(value) for name, value in metadata.headers.items()},
            shard=metadata.shard,
            key=None if metadata.key is None else _text(metadata.key),
            death_reason=metadata.reason if isinstance(metadata, DeadMetadata) else None,
        ),
        outcome=record.outcome.name,
        cause=record.cause,
        detail=None if record.detail is None else _text(record.detail),
        duration_ms=round(record.duration_ms, 3),
        timestamp=record.timestamp,
    )


def _payload(raw: bytes) -> tuple[Any, str | None]:
    """As JSON, byte for byte; else as base64."""
    try:
        msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None, base64.b64encode(raw).decode()
    return msgspec.Raw(raw), None


def _text(text: str) -> str:
    # Foreign header bytes come as surrogate escapes, which JSON cannot hold.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
