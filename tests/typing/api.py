"""Every public signature, used once. Checked by mypy (`nox -s typing`), never run.

A `type: ignore` here is an assertion: mypy's `warn_unused_ignores` fails when the error is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import trio

from shove_actors import (
    RAW,
    AuditEntry,
    AuditLog,
    AuditRecord,
    Defer,
    MemoryConfig,
    MessageMetadata,
    MsgpackCodec,
    NatsConfig,
    NatsStreamConfig,
    Outcome,
    PoisonedKey,
    PublishReceipt,
    Reject,
    Retention,
    Retry,
    SequencedTopic,
    SequenceFailure,
    SupervisorOutcome,
    Telemetry,
    Topic,
    TopologyBuilder,
    actors,
    audited,
    embedded_server,
    jetstream,
    open_broker,
)
from shove_actors.jetstream import legacy


class Order(msgspec.Struct):
    order_id: str


@dataclass
class Entry:
    account: str


ORDERS: Topic[Order] = Topic(Order, TopologyBuilder("orders").hold_queue(5).dlq().build())
LEDGER: SequencedTopic[Entry] = SequencedTopic(
    Entry,
    key=lambda entry: entry.account,
    topology=TopologyBuilder("ledger")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(4)
    .hold_queue(0.5)
    .dlq_named("ledger-dead")
    .nats_stream_config(NatsStreamConfig(retention=Retention.WORK_QUEUE, max_age=600))
    .build(),
)
BLOBS: Topic[bytes] = Topic(bytes, TopologyBuilder("blobs").dlq().build(), codec=RAW)
PACKED: Topic[Order] = Topic(Order, ORDERS.topology, codec=MsgpackCodec(Order))
WRONG_CODEC: Topic[Order] = Topic(Order, ORDERS.topology, codec=MsgpackCodec(Entry))  # type: ignore[arg-type]


async def one(order: Order) -> Outcome:
    return Outcome.ACK


async def two(order: Order, metadata: MessageMetadata) -> Outcome:
    return Retry(after=5) if metadata.retry_count == 0 else Reject(reason="enough")


async def three(entry: Entry, metadata: MessageMetadata, context: list[str]) -> Outcome:
    context.append(metadata.delivery_id)
    return Defer(after=1)


async def sink(record: AuditRecord[Order]) -> None:
    print(record.trace_id, record.payload.order_id, record.outcome == Outcome.INTERRUPTED)


def plain_sink(record: AuditRecord[Order]) -> None:
    print(record.duration_ms / 1000, record.timestamp.isoformat(), record.metadata.delivery_id)


async def archive(entry: AuditEntry) -> Outcome:
    print(entry.outcome, entry.payload, entry.metadata.headers)
    return Outcome.ACK


async def watched() -> None:
    telemetry = Telemetry(prefix="acme_", tracing=False)
    async with open_broker(MemoryConfig(), telemetry=telemetry) as broker:
        group = broker.consumer_group()
        group.register(ORDERS, audited(one, sink, timeout=2, on_failure="keep"))
        group.register(BLOBS, factory=audited(Entry, AuditLog(broker)))
        group.register_dlq(ORDERS, audited(two, plain_sink))
        group.register(AuditLog.topic, archive)
        audited(one, sink, on_failure="drop")  # type: ignore[arg-type]
    async with open_broker(MemoryConfig(), telemetry=None):
        pass


async def main() -> int:
    async with open_broker(MemoryConfig()) as memory:
        await memory.declare(ORDERS)
    async with embedded_server() as server, open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(ORDERS, LEDGER, BLOBS)
        publisher = broker.publisher()
        receipt: PublishReceipt = await publisher.publish(
            ORDERS, Order("1"), headers={"x": "y"}, message_id="m-1"
        )
        await publisher.publish(ORDERS, Entry("a"))  # type: ignore[misc]
        await publisher.publish(BLOBS, "text")  # type: ignore[misc]
        receipts: list[PublishReceipt] = await publisher.publish_batch(LEDGER, [Entry("a")])
        async with publisher.pipeline(ORDERS, max_pending=10) as pipe:
            await pipe.send(Order("2"))
            await pipe.send(Entry("a"))  # type: ignore[arg-type]
        group = broker.consumer_group(context=[])
        group.register(ORDERS, one, consumers=(1, 4), prefetch=20)
        group.register(LEDGER, three, handler_timeout=None)
        group.register_dlq(ORDERS, two)
        outcome: SupervisorOutcome = await group.run_until(trio.Event().wait, drain_timeout=10)
        code: int = outcome.exit_code
        found: tuple[PoisonedKey, ...] = await broker.poisoned(LEDGER)
        released: bool = await broker.release(LEDGER, found[0].key, replay=True)
        await broker.release(LEDGER, 7)  # type: ignore[arg-type]
        print(receipt.sequence, receipts, broker.snapshot().name, released, found[0].since)
    return code


async def echo(ctx: actors.Context[str]) -> None:
    ctx.started()
    async for word in ctx:
        ctx.reply(word.upper())


class Counter:
    def __init__(self, ctx: actors.Context[int]) -> None:
        self.total = 0

    async def receive(self, message: int) -> None:
        self.total += message


async def alone() -> None:
    spec = actors.ChildSpec(id="echo", start=echo)
    async with actors.open_actor_system(children=[spec]) as system:
        ref: actors.ActorRef[str] = system.ref("echo")
        await ref.tell("hello")
        await ref.tell(3)  # type: ignore[arg-type]
        pool = actors.DynamicSupervisor()
        # What an actor receives is known from its function, or its class, to its address.
        child = await pool.start_child(actors.ChildSpec(id="one", start=echo))
        child.tell_nowait("hello")
        child.tell_nowait(b"hello")  # type: ignore[arg-type]
        of_a_class = actors.ChildSpec(id="two", start=actors.of_class(Counter))
        counter: actors.ActorRef[int] = await pool.start_child(of_a_class)
        await counter.tell("one")  # type: ignore[arg-type]
        wrong: actors.ActorRef[bytes] = await pool.start_child(of_a_class)  # type: ignore[arg-type]
        print(wrong)
    async with jetstream.connect("nats://localhost:4222") as js:
        info: jetstream.StreamInfo = await js.stream_info("orders")
        print(info.messages)


async def connecting() -> None:
    def hear(event: jetstream.ConnectionEvent) -> None:
        kind: jetstream.ConnectionEventKind = event.kind
        print(kind, event.server, event.error)

    def choose(servers: Sequence[str], attempts: int) -> tuple[str, float]:
        return servers[attempts % len(servers)], 0.1

    async with jetstream.open_connection(
        ["nats://a", "nats://b"],
        max_reconnect_attempts=None,
        on_disconnected=hear,
        choose_server=choose,
        credentials=lambda: jetstream.Credentials(token="t"),
    ) as connection:
        async with connection.events() as events:
            event: jetstream.ConnectionEvent = await events.receive()
            print(event)
        async with jetstream.JetStream(connection, domain="hub", timeout=1.0) as js:
            prefix: str = js.options.prefix
            print(prefix)
        await connection.drain()
    async with jetstream.connect("nats://a", publish_async_max_pending=5, name="x") as js:
        print((await js.account_info()).limits.max_streams)
    async with jetstream.connect("nats://a", max_pending=5) as js:  # type: ignore[call-arg]
        pass


async def streams(js: jetstream.JetStream) -> None:
    stream: jetstream.Stream = await js.create_stream(name="S", subjects=["a", "b"])
    await js.create_stream(jetstream.StreamConfig(name="S"), retention="workqueue")
    await js.create_stream(name="S", retention="never")  # type: ignore[arg-type]
    await js.create_stream(name="S", max_message=5)  # type: ignore[call-arg]
    stream = await js.edit_stream("S", max_bytes=8, placement=jetstream.Placement(tags=("ssd",)))
    info: jetstream.StreamInfo = await stream.info(subject_filter="a.*")
    counts: Mapping[str, int] = info.state.subjects
    created: datetime = info.created
    message: jetstream.RawMessage = await stream.get_message(1, next_for="a")
    header: str = message.headers["A"]
    purged: int = await stream.purge(keep=1)
    names: jetstream.Lister[str] = js.stream_names()
    async for name in names:
        print(name.upper(), counts, created, header, purged)
    async for each in js.list_streams("a.b"):
        print(each.config.name)


async def publishing(js: jetstream.JetStream) -> None:
    ack: jetstream.PubAck = await js.publish("a", b"x", msg_id="1", ttl="never")
    await js.publish("a", "text", headers={"A": "1", "B": ["2", "3"]}, expect_last_sequence=0)
    await js.publish("a", 5)  # type: ignore[arg-type]
    await js.publish("a", b"x", ttl="1h")  # type: ignore[arg-type]
    await js.publish("a", b"x", message_id="1")  # type: ignore[call-arg]
    await js.publish("a", schedule=jetstream.Every(5), schedule_target="b")
    await js.publish(jetstream.PubMessage(subject="a", options={"msg_id": "1"}))
    future: jetstream.PublishFuture = await js.publish_async("a", b"x", stall_wait=None)
    ack = await future.wait()
    async with js.batch() as batch:
        await batch.add("a", b"x", expect_last_sequence=0)
    done: jetstream.PubAck | None = batch.ack
    print(ack.sequence, done)


async def legacy_names(js: legacy.JetStreamContext) -> None:
    def callback(message: jetstream.Message) -> None:
        print(message.data)

    info: jetstream.StreamInfo = await js.add_stream(name="S", subjects=["a"])
    async with js.subscribe("a", callback, manual_ack=True) as push:
        await push.drain()
    async with js.subscribe_sync("a", durable="d", max_deliver=3) as sync:
        message: jetstream.Message = await sync.next_msg(1.0)
    async with js.pull_subscribe("a", "d") as pull:
        messages: list[jetstream.Message] = await pull.fetch(10)
    print(info, message, messages)


async def stores(js: jetstream.JetStream) -> None:
    kv: jetstream.KeyValue = await js.create_kv(bucket="b", history=5)
    await js.create_kv(jetstream.KeyValueConfig(bucket="b"), history="5")  # type: ignore[arg-type]
    await js.create_kv(bucket="b", histroy=5)  # type: ignore[call-arg]
    revision: int = await kv.put("a", "text")
    await kv.put("a", 5)  # type: ignore[arg-type]
    await kv.update("a", b"bytes", revision)
    async with kv.watch("a.*", "b", ignore_deletes=True) as watcher:
        whole: jetstream.Watcher[jetstream.KeyValueEntry] = watcher
        channel: trio.abc.ReceiveChannel[jetstream.KeyValueEntry | None] = watcher
        async for entry in watcher:
            if entry is not None:
                value: bytes = entry.value
                print(value, entry.key.upper())
            entry.key  # type: ignore[union-attr]  # noqa: B018
        initial: list[jetstream.KeyValueEntry] = await watcher.initial()
        print(initial, whole, channel)
    async with kv.list_keys() as keys:
        print([key.upper() async for key in keys])
    async for name in js.kv_names():
        print(name.upper())
    store: jetstream.ObjectStore = await js.create_object_store(bucket="o")
    info: jetstream.ObjectInfo = await store.put("x", b"content", headers={"A": "1", "B": ["2"]})
    await store.put("x", 5)  # type: ignore[arg-type]
    async with store.get("x") as reader:
        stream: trio.abc.ReceiveStream = reader
        async for chunk in reader:
            part: bytes = chunk
            print(part, stream)
    async with store.watch(updates_only=True) as objects:
        async for each in objects:
            if each is not None:
                print(each.name.upper(), each == info)
