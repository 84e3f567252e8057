"""Section D of the cases: publishing, ids, and headers."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shove_actors import (
    RAW,
    HeaderError,
    MessageTooLarge,
    NatsStreamConfig,
    Outcome,
    Reject,
    SequencedTopic,
    SequenceFailure,
    StreamFull,
    Topic,
    TopicNotDeclared,
    TopologyBuilder,
)
from shove_actors.backends.nats import NatsBackend
from tests.runtime.fixtures import Clock
from tests.runtime.world import Journal, Order, Script, World, consuming, raw_publish

# ------------------------------------------------------------------ PC-049


async def test_pc049_a_duplicate_is_reported_as_one(world: World, clock: Clock) -> None:
    topic = world.topic()
    script = Script()
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        async with consuming(broker, topic, script):
            first = await publisher.publish(topic, Order("1"), message_id="X")
            await script.journal.until(1)
            await world.until_kept(broker, topic.queue, 0)
            again = await publisher.publish(topic, Order("2"), message_id="X")
            other = await publisher.publish(topic, Order("3"), message_id="Y")
            await script.journal.until(2)
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert again.sequence == first.sequence
    assert [name for name, _ in script.journal.entries] == ["1", "3"]


@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.DEFER, Outcome.REJECT])
async def test_pc049_a_hop_is_never_swallowed_by_that_of_another_message(
    world: World, clock: Clock, outcome: Outcome
) -> None:
    """Two stored messages with one logical id, hopped within the window: two copies."""
    topic = world.topic(lambda b: b.hold_queue(3600).dlq())
    place = topic.topology.dlq if outcome is Outcome.REJECT else topic.topology.holds[0].name
    script = Script(outcomes={"x": [outcome] * 2})
    async with world.broker(topic) as broker:
        for _ in range(2):
            await raw_publish(broker, topic.queue, b'{"name":"x"}', {"Shove-Message-Id": "X"})
        async with consuming(broker, topic, script):
            copies = await world.until_kept(broker, place, 2)
            await world.until_kept(broker, topic.queue, 0)
    assert [copy.headers["Shove-Message-Id"] for copy in copies] == ["X", "X"]
    assert copies[0].headers["Nats-Msg-Id"] != copies[1].headers["Nats-Msg-Id"]


# ------------------------------------------------------------------ PC-050


async def test_pc050_messages_without_an_id_do_not_share_one(world: World, clock: Clock) -> None:
    topic = world.topic(lambda b: b.hold_queue(3600).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY] * 2})
    async with world.broker(topic) as broker:
        for payload in (b"?", b"?", b'{"name":"x"}', b'{"name":"x"}'):
            await raw_publish(broker, topic.queue, payload)
        async with consuming(broker, topic, script):
            dead = await world.until_kept(broker, topic.topology.dlq, 2)
            held = await world.until_kept(broker, topic.topology.holds[0].name, 2)
            await world.until_kept(broker, topic.queue, 0)
    ids = [message.headers["Shove-Message-Id"] for message in (*dead, *held)]
    assert ids == [f"{topic.queue}:{n}" for n in (1, 2, 3, 4)]


# ------------------------------------------------------------------ PC-053


async def test_pc053_full_stream_is_its_own_error(world: World, clock: Clock) -> None:
    topic = world.topic(lambda b: b.nats_stream_config(NatsStreamConfig(max_messages=1)).dlq())
    async with world.broker(topic) as broker:
        publisher = broker.publisher()
        await publisher.publish(topic, Order("1"))
        started = trio.current_time()
        with pytest.raises(StreamFull) as caught:
            await publisher.publish(topic, Order("2"), message_id="second")
        assert caught.value.stored is False
        assert trio.current_time() - started < 1.0  # told at once, not tried again
        script = Script()
        async with consuming(broker, topic, script):
            await script.journal.until(1)
            await world.until_kept(broker, topic.queue, 0)
        # What was refused left nothing behind, not even its id.
        assert not (await publisher.publish(topic, Order("2"), message_id="second")).duplicate


# ------------------------------------------------------------------ PC-055


@pytest.mark.parametrize("way", ["publish", "batch", "pipeline"])
async def test_pc055_topic_that_was_not_declared(world: World, clock: Clock, way: str) -> None:
    topic = world.topic()
    async with world.broker() as broker:
        publisher = broker.publisher()
        with trio.fail_after(10):
            if way == "publish":
                with pytest.raises(TopicNotDeclared, match=topic.queue):
                    await publisher.publish(topic, Order("x"))
            elif way == "batch":
                from shove_actors import BatchError

                with pytest.raises(BatchError, match="2 of 2") as failed:
                    await publisher.publish_batch(topic, [Order("x"), Order("y")])
                assert all(isinstance(r, TopicNotDeclared) for r in failed.value.results)
            else:
                with pytest.raises(BaseException) as group:  # noqa: PT011, PT012 - looked at below
                    async with publisher.pipeline(topic) as pipe:
                        for name in "xyz":
                            await pipe.send(Order(name))
                errors = group.value.exceptions  # type: ignore[attr-defined]
                assert all(isinstance(error, TopicNotDeclared) for error in errors)
                assert [error.message.name for error in errors] == ["x", "y", "z"]
        # The rest of the broker is not affected.
        await broker.declare(topic)
        assert (await publisher.publish(topic, Order("x"))).sequence == 1


@pytest.mark.parametrize("answers", [False, True])
async def test_pc055_somebody_else_listens_on_the_subject(
    server_world: World, answers: bool
) -> None:
    from shove_actors import PublishRefused

    topic = server_world.topic()
    heard: list[bytes] = []
    async with server_world.broker() as broker:
        backend = broker.backend
        assert isinstance(backend, NatsBackend)
        connection = backend.connection

        def listen(subject: bytes, reply: bytes, block: bytes | None, payload: bytes) -> None:
            heard.append(payload)
            if answers:
                connection.write(b"PUB %b 5\r\nhello\r\n" % reply)

        connection.subscribe(topic.queue.encode(), listen)
        with trio.fail_after(10):
            with pytest.raises(PublishRefused if answers else TopicNotDeclared):
                await broker.publisher().publish(topic, Order("x"))
    assert heard


# ------------------------------------------------------------------ PC-056


async def test_pc056_size_counts_headers_and_is_checked_here(world: World, clock: Clock) -> None:
    topic = Topic(bytes, TopologyBuilder(world.fresh()).dlq().build(), codec=RAW)
    events: list[str] = []
    async with world.broker(topic) as broker:
        broker.backend.listen(lambda event: events.append(event.kind))
        limit = broker.backend.max_payload
        for payload, headers in (
            (b"x" * limit, None),
            (b"x" * (limit - 10), None),  # fits without its headers
            (b"x", {"X-Large": "v" * limit}),
        ):
            with pytest.raises(MessageTooLarge, match=topic.queue) as caught:
                await broker.publisher().publish(topic, payload, headers=headers)
            assert caught.value.stored is False
        assert broker.backend.connected
        await broker.publisher().publish(topic, b"x" * (limit - 2000))
    assert "disconnected" not in events


@pytest.mark.parametrize("room", [0, 400, 800])
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.REJECT])
async def test_pc056_message_that_cannot_grow_has_a_way_out(
    world: World, clock: Clock, outcome: Outcome, room: int
) -> None:
    """A foreign producer used (almost) every byte: the dead letter tells as much as fits."""
    topic = world.topic(lambda b: b.hold_queue(0.05).dlq())
    script = Script(outcomes={"x": [outcome] * 9})
    async with world.broker(topic) as broker:
        limit = broker.backend.max_payload
        payload = b'{"name":"x"' + b" " * (limit - room - 12) + b"}"
        assert len(payload) == limit - room
        await raw_publish(broker, topic.queue, payload)
        async with consuming(broker, topic, script, max_retries=1):
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
            await world.until_kept(broker, topic.queue, 0)
        assert broker.backend.connected
    assert dead.payload == payload
    if room == 0:
        assert dead.headers == {}
    else:
        assert dead.headers["Shove-Original-Queue"] == topic.queue
        reasons = ("rejected", "oversize", "max_retries_exceeded")
        assert dead.headers["Shove-Death-Reason"] in reasons


async def test_pc056_the_largest_message_accepted_can_be_retried_and_buried(
    world: World, clock: Clock
) -> None:
    topic = Topic(bytes, TopologyBuilder(world.fresh()).hold_queue(0.05).dlq().build(), codec=RAW)
    runs: Journal[int] = Journal()

    async def handle(payload: bytes) -> Outcome:
        runs.add(len(payload))
        return Outcome.RETRY if len(runs) < 3 else Reject(reason="r" * 500)

    async with world.broker(topic) as broker:
        size = broker.backend.max_payload
        while True:
            try:
                await broker.publisher().publish(topic, b"x" * size, message_id="i" * 40)
                break
            except MessageTooLarge:
                size -= 16
        async with consuming(broker, topic, handle):
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
    assert runs.entries == [size] * 3
    assert dead.headers["Shove-Message-Id"] == "i" * 40
    assert dead.headers["Shove-Death-Reason"] == "rejected"
    assert len(dead.headers["Shove-Death-Detail"]) == 200


# ------------------------------------------------------------------ PC-058


@pytest.mark.parametrize(
    "value", ["a\r\nNats-Msg-Id: evil", "a\n\nbody", "a\rb", "a\x00b", "a\x85b", " a", "\ud800"]
)
async def test_pc058_values_that_would_break_out_are_refused(
    memory_world: World, autojump_clock: trio.testing.MockClock, value: str
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        publisher = broker.publisher()
        with pytest.raises(HeaderError) as caught:
            await publisher.publish(topic, Order("x"), headers={"X-Own": value})
        assert "evil" not in str(caught.value)
        with pytest.raises(HeaderError):
            await publisher.publish(topic, Order("x"), message_id=value)
        async with publisher.pipeline(topic) as pipe:
            with pytest.raises(HeaderError):
                await pipe.send(Order("x"), headers={"X-Own": value})
        assert await memory_world.kept(broker, topic.queue) == []


async def test_pc058_values_arrive_as_they_were_sent(world: World, clock: Clock) -> None:
    topic = world.topic()
    headers = {"X-A": "a: b, c; d=e", "X-Empty": "", "X-Umlaut": "grüße ☃", "X-Colon": "::"}
    script = Script(outcomes={"x": [Reject(reason="line one\r\nNats-Msg-Id: evil\r\n\r\nbody")]})
    async with world.broker(topic) as broker:
        await broker.publisher().publish_with_headers(topic, Order("x"), headers)
        async with consuming(broker, topic, script):
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
    for found in (script.seen[0].headers, dead.headers):
        assert {name: found[name] for name in headers} == headers
    assert dead.headers["Shove-Death-Detail"] == "line one Nats-Msg-Id: evil body"
    assert "evil" not in dead.headers["Nats-Msg-Id"]


# ------------------------------------------------------------------ PC-059


async def test_pc059_status_of_a_foreign_producer_is_dead_lettered_not_looped(
    world: World, clock: Clock
) -> None:
    """One in flight at most: whatever the message did, it would block its lane for good."""
    topic = SequencedTopic(
        Order,
        key=lambda o: o.key,
        topology=TopologyBuilder(world.fresh())
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(1)
        .hold_queue(0.1)
        .dlq()
        .build(),
    )
    script = Script()
    subject = topic.topology.shard_subject(0)
    async with world.broker(topic) as broker:
        await raw_publish(broker, subject, b'{"name":"posing"}', {"Status": "done"})
        await raw_publish(
            broker, subject, b'{"name":"posing"}', {"Status": "404", "Description": "No Messages"}
        )
        await raw_publish(broker, subject, b"", {"Status": "408"})
        await raw_publish(broker, subject, b'{"name":"well"}')
        async with consuming(broker, topic, script, prefetch=1):
            await script.journal.until(1)
            dead = await world.until_kept(broker, topic.topology.dlq, 3)
            await world.until_kept(broker, topic.queue, 0)
    assert script.journal.entries == [("well", 0)]
    assert {m.headers["Shove-Death-Reason"] for m in dead} == {"foreign_header"}
    assert dead[0].headers["Shove-Foreign-Status"] == "done"


# ------------------------------------------------------------------ PC-062

RESERVED = [
    "Nats-Msg-Id", "nats-msg-id", "NATS-MSG-ID", "Nats-Expected-Stream", "Nats-Rollup", "Nats-TTL",
    "Nats-Expected-Last-Sequence", "Nats-Anything", "Shove-Retry-Count", "shove-retry-count",
    "Shove-Death-Reason", "Shove-Message-Id", "Shove-Key", "Shove-New", "Status", "STATUS",
    "Description",
]  # fmt: skip


@pytest.mark.parametrize("name", RESERVED)
async def test_pc062_reserved_names_are_refused(
    memory_world: World, autojump_clock: trio.testing.MockClock, name: str
) -> None:
    topic = memory_world.topic()
    async with memory_world.broker(topic) as broker:
        with pytest.raises(HeaderError, match="reserved"):
            await broker.publisher().publish(topic, Order("x"), headers={name: "1"})
        assert await memory_world.kept(broker, topic.queue) == []


@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.REJECT])
async def test_pc062_control_headers_are_left_behind_by_copies(
    world: World, clock: Clock, outcome: Outcome
) -> None:
    """The server would obey a copied one again: this copy is for another stream than expected."""
    topic = world.topic(lambda b: b.hold_queue(3600).dlq())
    place = topic.topology.dlq if outcome is Outcome.REJECT else topic.topology.holds[0].name
    script = Script(outcomes={"x": [outcome]})
    headers = {
        "Nats-Expected-Stream": topic.queue,
        "Nats-Expected-Last-Sequence": "0",
        "X-Own": "kept",
    }
    async with world.broker(topic) as broker:
        await raw_publish(broker, topic.queue, b'{"name":"x"}', headers)
        async with consuming(broker, topic, script):
            [copy] = await world.until_kept(broker, place, 1)
            await world.until_kept(broker, topic.queue, 0)
    assert copy.headers["X-Own"] == "kept"
    ours = {"Nats-Msg-Id", "Nats-Expected-Stream"}
    assert {n for n in copy.headers if n.startswith("Nats-")} == ours
    assert copy.headers["Nats-Expected-Stream"] == place


# ------------------------------------------------------------------ PC-063


@pytest.mark.parametrize("headers", [None, {"X-Own": "header"}])
async def test_pc063_zero_bytes_are_a_message(
    world: World, clock: Clock, headers: dict[str, str] | None
) -> None:
    raw = Topic(bytes, TopologyBuilder(world.fresh()).dlq().build(), codec=RAW)
    topic = world.topic()
    got: Journal[bytes] = Journal()

    async def handle(payload: bytes) -> Outcome:
        got.add(payload)
        return Outcome.ACK

    script = Script()
    async with world.broker(raw, topic) as broker:
        for queue in (raw.queue, topic.queue):
            await raw_publish(broker, queue, b"", headers)
        async with consuming(broker, raw, handle), consuming(broker, topic, script):
            await got.until(1)
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
            await world.until_kept(broker, raw.queue, 0)
    assert got.entries == [b""]
    assert script.journal.entries == []
    assert dead.payload == b""
    assert dead.headers["Shove-Death-Reason"] == "undecodable"
    assert (headers or {}).items() <= dead.headers.items()
