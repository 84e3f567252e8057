"""What the runtime's tests are written against: a server, in memory or real, and processes on it.

A test that takes the fixtures `world` and `clock` (see `fixtures.py`) is run twice: in virtual time
on the memory backend, and in real time on a nats-server. So it waits for what happened (`Journal`),
uses short leases, and compares amounts of time with room to spare on the late side.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import msgspec
import trio

from shove_actors import (
    Broker,
    ConsumerGroup,
    MemoryConfig,
    MemoryServer,
    MessageMetadata,
    NatsConfig,
    Outcome,
    SupervisorOutcome,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors._errors import MessageNotFound
from shove_actors.backends.memory import StreamSettings
from shove_actors.backends.nats import NatsBackend
from shove_actors.jetstream import JetStream, StreamConfig
from shove_actors.messaging import decode_headers, encode_headers

#: For what should happen at once: long enough for a busy machine.
SOON_S = 20.0

T = TypeVar("T")


class Order(msgspec.Struct):
    name: str
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One message as a stream holds it."""

    sequence: int
    subject: str
    payload: bytes
    headers: Mapping[str, str]


class World:
    """One server. `virtual`: in memory, on Trio's (mock) clock."""

    def __init__(self, fresh: Callable[[], str], *, url: str | None = None) -> None:
        self.fresh = fresh
        self.url = url
        self.memory = MemoryServer() if url is None else None

    @property
    def virtual(self) -> bool:
        return self.url is None

    def config(self, **options: Any) -> MemoryConfig | NatsConfig:
        if self.memory is not None:
            return MemoryConfig(server=self.memory, **options)
        assert self.url is not None
        return NatsConfig(self.url)

    @asynccontextmanager
    async def broker(self, *topics: Topic[Any], **options: Any) -> AsyncIterator[Broker]:
        """One more process, with these topics declared."""
        async with open_broker(self.config(), **options) as broker:
            if topics:
                await broker.declare(*topics)
            yield broker

    def topic(
        self, build: Callable[[TopologyBuilder], TopologyBuilder] | None = None
    ) -> Topic[Order]:
        """A topic nobody has used; by default with two short hold queues and a DLQ."""
        builder = TopologyBuilder(self.fresh())
        if build is None:
            return Topic(Order, builder.hold_queue(0.2).hold_queue(0.4).dlq().build())
        return Topic(Order, build(builder).build())

    async def kept(self, broker: Broker, stream: str | None) -> list[Kept]:
        """What a stream holds now, oldest first; nothing is consumed."""
        assert stream is not None
        if self.memory is not None:
            return [
                Kept(
                    sequence=message.sequence,
                    subject=message.subject,
                    payload=message.payload,
                    headers=decode_headers(message.header_block),
                )
                for message in self.memory.messages(stream)
            ]
        js, found = _js(broker), []
        info = await js.stream_info(stream)
        for sequence in range(max(1, info.first_seq), info.last_seq + 1):
            try:
                raw = await js.get_message(stream, sequence)
            except MessageNotFound:
                continue
            found.append(
                Kept(
                    sequence=sequence,
                    subject=raw.subject,
                    payload=raw.data,
                    headers=decode_headers(raw.header_block or b""),
                )
            )
        return found

    async def until_kept(self, broker: Broker, stream: str | None, count: int) -> list[Kept]:
        """Waits until the stream holds exactly `count` messages."""
        with trio.fail_after(SOON_S):
            while True:
                found = await self.kept(broker, stream)
                if len(found) == count:
                    return found
                await trio.sleep(0.02)

    async def until_settled(self, broker: Broker, stream: str, durable: str | None = None) -> None:
        """Waits until nothing of a queue is pending or in hand."""
        with trio.fail_after(SOON_S):
            while True:
                backlog = await broker.backend.backlog(stream, durable or f"{stream}-consumer")
                if backlog is not None and not backlog.pending and not backlog.ack_pending:
                    return
                await trio.sleep(0.02)

    async def until_in_hand(self, broker: Broker, stream: str, *, held: int) -> None:
        """Waits until everything has been delivered and exactly `held` messages are in hand."""
        with trio.fail_after(SOON_S):
            while True:
                backlog = await broker.backend.backlog(stream, f"{stream}-consumer")
                if backlog is not None and not backlog.pending and backlog.ack_pending == held:
                    return
                await trio.sleep(0.02)

    async def limit(self, broker: Broker, stream: str | None, max_messages: int | None) -> None:
        """An operator's limit on a stream; None lifts it."""
        assert stream is not None
        if self.memory is not None:
            self.memory.edit_stream(stream, max_messages=max_messages)
            return
        js = _js(broker)
        config = (await js.stream_info(stream)).config
        wanted = -1 if max_messages is None else max_messages
        await js.update_stream(replace(config, max_msgs=wanted))

    async def delete_stream(self, broker: Broker, stream: str | None) -> None:
        assert stream is not None
        if self.memory is not None:
            self.memory.delete_stream(stream)
        else:
            await _js(broker).delete_stream(stream)

    async def foreign_stream(self, broker: Broker, name: str, subject: str) -> None:
        """A stream of somebody else that binds `subject`."""
        if self.memory is not None:
            self.memory.create_stream(StreamSettings(name=name, subjects=(subject,)))
        else:
            await _js(broker).create_stream(StreamConfig(name=name, subjects=(subject,)))


def _js(broker: Broker) -> JetStream:
    backend = broker.backend
    assert isinstance(backend, NatsBackend)
    return backend.js


async def raw_publish(
    broker: Broker,
    subject: str,
    payload: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    block: bytes | None = None,
) -> int:
    """As a foreign producer: any bytes, any headers; returns the stream sequence."""
    if block is None:
        block = encode_headers(headers) if headers else b""
    return (await broker.publish_service.publish(subject, payload, block)).sequence


async def until(predicate: Callable[[], bool]) -> None:
    """For what tells nobody when it changes. In Trio's time, which may be virtual."""
    with trio.fail_after(SOON_S):
        while True:
            if predicate():
                return
            await trio.sleep(0.02)


class Journal(Generic[T]):
    """What happened, in order, and a way to wait for it."""

    def __init__(self) -> None:
        self.entries: list[T] = []
        self._changed = trio.Event()

    def add(self, entry: T) -> None:
        self.entries.append(entry)
        self._changed.set()
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self.entries)

    async def until(self, count: int, within: float = SOON_S) -> list[T]:
        """The entries, once there are `count`."""
        with trio.move_on_after(within):
            while len(self.entries) < count:
                await self._changed.wait()
        assert len(self.entries) >= count, (
            f"{len(self.entries)} of {count} after {within:g} s: {self.entries}"
        )
        return self.entries


@dataclass(kw_only=True)
class Script:
    """A handler that does as it is told: per message name, the outcomes of its attempts.

    What is left over, or not named, is acknowledged. An exception in a script is raised.
    """

    outcomes: dict[str, list[object]] = field(default_factory=dict)
    journal: Journal[tuple[str, int]] = field(default_factory=Journal)
    times: list[float] = field(default_factory=list)
    seen: list[MessageMetadata] = field(default_factory=list)

    async def handle(self, message: Order, metadata: MessageMetadata, context: object) -> object:
        self.times.append(trio.current_time())
        self.seen.append(metadata)
        left = self.outcomes.get(message.name)
        outcome = left.pop(0) if left else Outcome.ACK
        self.journal.add((message.name, metadata.retry_count))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def attempts(self, name: str) -> list[int]:
        """The retry counts that the handler saw for one message."""
        return [count for seen, count in self.journal.entries if seen == name]


@dataclass
class Run:
    """A group that runs; `outcome` is there once it has ended."""

    group: ConsumerGroup
    outcome: SupervisorOutcome | None = None
    ended: trio.Event = field(default_factory=trio.Event)

    async def end(self, within: float = SOON_S) -> SupervisorOutcome:
        with trio.fail_after(within):
            await self.ended.wait()
        assert self.outcome is not None
        return self.outcome

    async def stop(self) -> SupervisorOutcome:
        self.group.stop()
        return await self.end()


@asynccontextmanager
async def running(group: ConsumerGroup, *, drain_timeout: float = 5.0) -> AsyncIterator[Run]:
    """Serves the group for the length of the block; drained at its end."""
    run = Run(group)

    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        run.outcome = await group.serve(drain_timeout=drain_timeout, task_status=task_status)
        run.ended.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        yield run
        group.stop()


@asynccontextmanager
async def consuming(
    broker: Broker, topic: Topic[Any], handler: Any, **options: Any
) -> AsyncIterator[Run]:
    """One registration, served for the length of the block."""
    drain_timeout = options.pop("drain_timeout", 5.0)
    context = options.pop("context", None)
    group = broker.consumer_group(context=context)
    group.register(topic, handler, **options)
    async with running(group, drain_timeout=drain_timeout) as run:
        yield run


@asynccontextmanager
async def burying(
    broker: Broker, topic: Topic[Any], handler: Any, **options: Any
) -> AsyncIterator[Run]:
    """The topic's dead letters, consumed for the length of the block."""
    group = broker.consumer_supervisor()
    group.register_dlq(topic, handler, **options)
    async with running(group) as run:
        yield run


async def ack(message: object) -> Outcome:
    return Outcome.ACK
