"""shove_actors, through its public API only, with every default on: supervision, validation
while decoding, handler timeout, keep-alive, headers and retry metadata, Nats-Msg-Id.

The topic has a hold queue and a dead-letter queue, as a topic in production has. What differs
from the other scripts, and why:

* The set-up declares the topic through the broker, because the durables carry the package's own
  names and a work-queue stream admits one durable per subject. The stored messages still come
  from peerlib's socket client.
* The durables are created in the set-up (the group is served once while nothing is stored), as
  peerlib creates them for the others. Opening the consumers again is inside the measurement, but
  for ``sequenced``: there the lanes are opened before it, as the others bind their subscriptions
  before it, and each holds one message at a gate until the meter starts (at most 64 of 3840).
* ``sequenced``: the package's own hash picks the shard. The 64 keys are spelled so that it spreads
  them as ``id % shards`` does for the others: with the same keys per lane, and so the same longest
  lane, the rows measure the libraries and not the luck of a hash.
* The measured stretch ends when the group has stopped and every acknowledgement is confirmed,
  which is a little more than the flush of the others.
"""

from __future__ import annotations

import itertools
import time

import msgspec
import peerlib as pl
import trio

from shove_actors import (
    NatsConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    open_broker,
)


class Item(msgspec.Struct):
    id: int
    published_at_ns: int


def even_keys(shards: int) -> list[str]:
    """64 keys of which number i falls into shard i % shards."""
    probe = make_probe(shards)
    keys = []
    for i in range(pl.KEYS):
        spellings = (f"{i}-{n}" for n in itertools.count())
        keys.append(next(k for k in spellings if probe.shard_of(k) == i % shards))
    return keys


def make_probe(shards: int):
    builder = TopologyBuilder("probe").sequenced(SequenceFailure.SKIP).routing_shards(shards)
    return SequencedTopic(Item, key=str, topology=builder.hold_queue(5).dlq().build())


KEYS: list[str] = []


def key_of(item: Item) -> str:
    return KEYS[item.id % pl.KEYS]


def make_topic(args):
    builder = TopologyBuilder(pl.STREAM)
    if args.workload != "sequenced":
        return Topic(Item, builder.hold_queue(5).dlq().build())
    KEYS[:] = even_keys(args.shards)
    builder = builder.sequenced(SequenceFailure.SKIP).routing_shards(args.shards)
    return SequencedTopic(Item, key=key_of, topology=builder.hold_queue(5).dlq().build())


def reset(args, topic) -> None:
    """No stream of ours is left over from an earlier run."""
    wire = pl._Wire(args.url)
    try:
        for name in topic.topology.stream_names():
            wire.api(f"STREAM.DELETE.{name}")
    finally:
        wire.close()


def store(args, topic) -> None:
    """The messages that a consume workload starts from."""
    topology = topic.topology

    def subject(i: int) -> str:
        if args.workload != "sequenced":
            return topology.default_subject
        return topology.shard_subject(topic.shard_of(KEYS[i % pl.KEYS]))

    wire = pl._Wire(args.url)
    try:
        wire.publish_all((subject(i), f"m{i}", pl.body(i)) for i in range(args.n + args.extra))
    finally:
        wire.close()


def group_for(broker, args, topic, sink, done, gate=None):
    sleeping = args.workload == "consume-fast"

    async def handle(item: Item) -> Outcome:
        if gate is not None and not gate.is_set():
            await gate.wait()
        if sleeping:
            await trio.sleep(pl.fast_sleep())
        if sink.accept({"id": item.id, "published_at_ns": item.published_at_ns}):
            done.set()
        return Outcome.ACK

    group = broker.consumer_group()
    if args.workload == "sequenced":
        group.register(topic, handle)
    else:
        group.register(
            topic, handle, consumers=(args.workers, args.workers), prefetch=args.prefetch,
            concurrent_processing=sleeping,
        )  # fmt: skip
    return group


async def publish(broker, args, topic, meter) -> None:
    publisher = broker.publisher()
    meter.start()
    async with publisher.pipeline(topic, max_pending=args.inflight) as pipe:
        for i in range(args.n):
            await pipe.send(Item(i, time.time_ns()))
    meter.stop()


async def publish_sync(broker, args, topic, meter) -> None:
    publisher = broker.publisher()
    meter.start()
    for i in range(args.n):
        await publisher.publish(topic, Item(i, time.time_ns()))
    meter.stop()


async def paced_publish(broker, args, topic) -> None:
    publisher = broker.publisher()
    t0 = trio.current_time()
    for i in range(args.n):
        await trio.sleep_until(t0 + i / args.rate)
        await publisher.publish(topic, Item(i, time.time_ns()))


async def create_durables(broker, args, topic) -> None:
    group = group_for(broker, args, topic, pl.Sink(args), trio.Event())
    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        group.stop()


async def consume(broker, args, topic, meter, sink) -> str | None:
    await create_durables(broker, args, topic)
    if args.workload != "latency":
        await trio.to_thread.run_sync(store, args, topic)
    done = trio.Event()
    if args.workload == "sequenced":
        return await consume_lanes(broker, args, topic, meter, sink, done)
    group = group_for(broker, args, topic, sink, done)
    async with trio.open_nursery() as nursery:
        meter.start()
        if args.workload == "latency":
            nursery.start_soon(paced_publish, broker, args, topic)
        outcome = await group.run_until(done.wait, drain_timeout=10)
        meter.stop()
    return None if outcome.is_clean else f"unclean stop: {outcome}"


async def consume_lanes(broker, args, topic, meter, sink, done) -> str | None:
    gate = trio.Event()
    group = group_for(broker, args, topic, sink, done, gate)
    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        meter.start()
        gate.set()
        await done.wait()
        group.stop()
    meter.stop()
    return None if group.outcome.is_clean else f"unclean stop: {group.outcome}"


async def main(args) -> None:
    topic = make_topic(args)
    await trio.to_thread.run_sync(reset, args, topic)
    meter, sink = pl.Meter(args), pl.Sink(args)
    error = None
    async with open_broker(NatsConfig(args.url)) as broker:
        await broker.declare(topic)
        if args.workload == "publish":
            await publish(broker, args, topic, meter)
        elif args.workload == "publish-sync":
            await publish_sync(broker, args, topic, meter)
        else:
            error = await consume(broker, args, topic, meter, sink)
        error = await trio.to_thread.run_sync(pl.verify, args) or error
    await trio.to_thread.run_sync(reset, args, topic)  # the next script finds a clean server
    pl.report(args, meter, sink, error=error)


if __name__ == "__main__":
    pl.guarded("shove-actors", lambda args: trio.run(main, args))
