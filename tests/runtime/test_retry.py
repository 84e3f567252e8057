"""RETRY, DEFER and REJECT: which place comes next, in which order, at whose expense."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio
import trio.testing

from shove_actors import (
    Broker,
    Defer,
    MessageMetadata,
    Outcome,
    Reject,
    Retry,
    SequencedTopic,
    SequenceFailure,
    StreamFull,
    Topic,
    TopologyBuilder,
)
from shove_actors.backends import Post

from .fixtures import Clock
from .world import Journal, Order, Script, World, consuming, raw_publish


def kinds(world: World) -> dict[str, Topic[Order]]:
    return {
        "holds": world.topic(),
        "no holds": world.topic(lambda b: b.dlq()),
        "sequenced": SequencedTopic(
            Order,
            key=lambda o: o.key,
            topology=TopologyBuilder(world.fresh())
            .sequenced(SequenceFailure.SKIP)
            .routing_shards(2)
            .hold_queue(0.1)
            .dlq()
            .build(),
        ),
    }


# ------------------------------------------------------------------ the budget (SW-09)


@pytest.mark.parametrize("max_retries", [0, 1, 2])
@pytest.mark.parametrize("kind", ["holds", "no holds", "sequenced"])
async def test_sw09_max_retries_is_retries_after_the_first_attempt(
    world: World, clock: Clock, kind: str, max_retries: int
) -> None:
    topic = kinds(world)[kind]
    script = Script(outcomes={"fails": [Outcome.RETRY] * 9, "well": [Outcome.RETRY] * max_retries})
    async with world.broker(topic) as broker:
        await broker.publisher().publish_batch(topic, [Order("fails", "a"), Order("well", "b")])
        async with consuming(
            broker, topic, script, max_retries=max_retries, retry_delay=0.1
        ) as run:
            await script.journal.until(2 * (max_retries + 1))
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
            await world.until_kept(broker, topic.queue, 0)
        counted = run.group.statistics()[topic.queue]
    expected = list(range(max_retries + 1))
    assert script.attempts("fails") == expected
    # Used up to the last one, and that one succeeds: acknowledged.
    assert script.attempts("well") == expected
    assert dead.headers["Shove-Death-Reason"] == "max_retries_exceeded"
    assert dead.headers["Shove-Retry-Count"] == str(max_retries)
    assert (counted["ack"], counted["dead"]) == (1, 1)


async def test_each_retry_waits_in_its_own_hold_queue_and_later_ones_in_the_last(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(1).hold_queue(10).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY] * 4})
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, script):
            await script.journal.until(5, within=60)
    gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
    assert gaps == pytest.approx([1, 10, 10, 10], abs=0.05)
    assert script.attempts("x") == [0, 1, 2, 3, 4]


async def test_retry_after_waits_as_long_as_it_says(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The copy carries its own due time: shorter and longer than any hold queue."""
    topic = memory_world.topic(lambda b: b.hold_queue(10).hold_queue(60).dlq())
    no_holds = memory_world.topic(lambda b: b.dlq())
    waits = [0.5, 10, 33.25, 3600]
    for each in (topic, no_holds):
        script = Script(outcomes={"x": [Retry(after=seconds) for seconds in waits]})
        async with memory_world.broker(each) as broker:
            await broker.publisher().publish(each, Order("x"))
            async with consuming(broker, each, script):
                await script.journal.until(5, within=4000)
        gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
        assert gaps == pytest.approx(waits, abs=0.05)
        assert script.attempts("x") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["holds", "no holds"])
async def test_defer_costs_no_retry(world: World, clock: Clock, kind: str) -> None:
    topic = kinds(world)[kind]
    outcomes: list[object] = [Outcome.DEFER, Defer(after=0.05), Outcome.RETRY, Outcome.DEFER]
    script = Script(outcomes={"x": outcomes})
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, script, max_retries=1, retry_delay=0.05) as run:
            await script.journal.until(5)
            await world.until_kept(broker, topic.queue, 0)
        assert await world.kept(broker, topic.topology.dlq) == []
    assert script.attempts("x") == [0, 0, 0, 1, 1]
    assert run.group.statistics()[topic.queue]["ack"] == 1
    assert [m.redelivered for m in script.seen] == [False, True, True, True, True]


async def test_defer_always_uses_the_first_hold_queue(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(1).hold_queue(10).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY, Outcome.RETRY, Outcome.DEFER, Outcome.DEFER]})
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, script):
            await script.journal.until(5)
    gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
    assert gaps == pytest.approx([1, 10, 1, 1], abs=0.05)


async def test_without_hold_queues_the_delay_is_the_option(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic(lambda b: b.dlq())
    for options, delay in (({}, 1.0), ({"retry_delay": 7.0}, 7.0)):
        script = Script(outcomes={"x": [Outcome.RETRY, Outcome.DEFER]})
        async with memory_world.broker(topic) as broker:
            await broker.publisher().publish(topic, Order("x"))
            async with consuming(broker, topic, script, **options):
                await script.journal.until(3)
        gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
        assert gaps == pytest.approx([delay, delay])


async def test_reject_goes_to_the_dead_letters_at_once(world: World, clock: Clock) -> None:
    topic = world.topic()
    script = Script(outcomes={"x": [Reject(reason="closed")]})
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"), headers={"X-Own": "kept"})
        async with consuming(broker, topic, script):
            [dead] = await world.until_kept(broker, topic.topology.dlq, 1)
            await world.until_kept(broker, topic.queue, 0)
    assert len(script.journal) == 1
    assert dead.headers["Shove-Death-Detail"] == "closed"
    assert dead.headers["X-Own"] == "kept"


# ------------------------------------------------------------------ what survives a hop


async def test_identity_and_headers_survive_hops(world: World, clock: Clock) -> None:
    """SW-08: one delivery id for life, and ids on the wire that do not grow."""
    topic = world.topic(lambda b: b.hold_queue(0.05).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY, Outcome.DEFER, Outcome.RETRY]})
    headers = {"X-Own": "value, with = signs", "x-trace-id": "abc", "Ünïcode".encode().hex(): "ü"}
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"), headers=headers, message_id="mine")
        async with consuming(broker, topic, script):
            await script.journal.until(4)
    assert {metadata.delivery_id for metadata in script.seen} == {"mine"}
    for metadata in script.seen:
        assert headers.items() <= metadata.headers.items()
    assert [m.attempt for m in script.seen] == [1, 2, 3, 4]
    assert [m.redelivered for m in script.seen] == [False, True, True, True]
    lengths = [len(m.headers["Nats-Msg-Id"]) for m in script.seen[1:]]
    assert max(lengths) - min(lengths) <= 2


async def test_a_message_returns_to_the_subject_it_came_from(world: World, clock: Clock) -> None:
    name = world.fresh()
    topic = world.topic(lambda b: b.nats_subjects([name + ".>"]).hold_queue(0.05).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY]})
    async with world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"), subject=f"{name}.eu.1")
        async with consuming(broker, topic, script):
            await script.journal.until(2)
    assert [metadata.subject for metadata in script.seen] == [f"{name}.eu.1"] * 2


# ------------------------------------------------------------------ store, wait, then acknowledge


async def _watch(broker: Broker, trace: Journal[str]) -> None:
    """Notes each publish by the runtime, each answer to one, and each settle."""
    backend = broker.backend
    post, open_lanes = backend.post, backend.open_lanes

    def noting_post(batch: list[Post]) -> None:
        for each in batch:
            done = each.done
            trace.add(f"post {each.subject}")

            def noted(post: Post, result: object, done: object = done) -> None:
                trace.add(f"answer {post.subject} {type(result).__name__}")
                done(post, result)  # type: ignore[operator]

            each.done = noted
        post(batch)

    async def noting_lanes(specs: object) -> object:
        lanes = await open_lanes(specs)  # type: ignore[arg-type]
        for lane in lanes:
            for verb in ("ack", "nak"):

                def noting(name: str, do: Callable[..., None], *args: object) -> None:
                    trace.add(name)
                    do(*args)

                setattr(lane, verb, partial(noting, verb, getattr(lane, verb)))
        return lanes

    backend.post = noting_post  # type: ignore[method-assign, assignment]
    backend.open_lanes = noting_lanes  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.DEFER, Outcome.REJECT])
async def test_store_in_the_next_place_wait_for_the_answer_then_acknowledge(
    memory_world: World, autojump_clock: trio.testing.MockClock, outcome: Outcome
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(3600).dlq())
    place = topic.topology.dlq if outcome is Outcome.REJECT else topic.topology.holds[0].name
    assert place is not None
    script = Script(outcomes={"x": [outcome]})
    trace: Journal[str] = Journal()
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        await _watch(broker, trace)
        async with consuming(broker, topic, script):
            await memory_world.until_kept(broker, place, 1)
            await memory_world.until_settled(broker, topic.queue)
    assert trace.entries == [f"post {place}", f"answer {place} Stored", "ack"]


async def test_hop_that_is_refused_leaves_the_original_where_it_is(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    topic = memory_world.topic(lambda b: b.hold_queue(1).dlq())
    hold = topic.topology.holds[0].name
    script = Script(outcomes={"x": [Outcome.RETRY] * 4})
    trace: Journal[str] = Journal()
    assert memory_world.memory is not None
    memory_world.memory.faults.refuse_publish(hold, StreamFull("full"), times=3)
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        await _watch(broker, trace)
        async with consuming(broker, topic, script):
            await script.journal.until(5)
            await memory_world.until_kept(broker, topic.queue, 0)
    refused = [f"post {hold}", f"answer {hold} StreamFull", "nak"]
    assert trace.entries[:9] == refused * 3
    assert trace.entries[9:12] == [f"post {hold}", f"answer {hold} Stored", "ack"]
    # Not moved on is no retry: the count is still 0 until the copy is stored.
    assert script.attempts("x") == [0, 0, 0, 0, 1]


async def test_hop_repeated_after_a_lost_acknowledgement_is_stored_once(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The copy is safe, its acknowledgement of the original is lost: the original comes again."""
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(3600).dlq())
    hold = topic.topology.holds[0].name
    script = Script(outcomes={"x": [Outcome.RETRY] * 9})
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        memory_world.memory.faults.drop_next_ack()
        async with consuming(broker, topic, script, ack_wait=5):
            await script.journal.until(2)
            await memory_world.until_settled(broker, topic.queue)
            held = await memory_world.kept(broker, hold)
    assert len(held) == 1
    assert held[0].headers["Shove-Retry-Count"] == "1"


async def test_hop_whose_answer_is_lost_is_asked_for_again_and_stored_once(
    memory_world: World, autojump_clock: trio.testing.MockClock
) -> None:
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(3600).dlq())
    script = Script(outcomes={"x": [Outcome.RETRY] * 9})
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        memory_world.memory.faults.drop_puback()
        async with consuming(broker, topic, script):
            await memory_world.until_kept(broker, topic.topology.holds[0].name, 1)
            await memory_world.until_settled(broker, topic.queue)
    assert len(script.journal) == 1


@pytest.mark.parametrize("has_dlq", [True, False])
async def test_message_that_cannot_grow_ends_instead_of_looping(
    memory_world: World, autojump_clock: trio.testing.MockClock, has_dlq: bool
) -> None:
    """Published by somebody else, as large as the server allows: no hop has room for a header."""
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(1).dlq() if has_dlq else b.hold_queue(1))
    room = memory_world.memory.max_payload
    payload = b'{"name":"x"' + b" " * (room - 12) + b"}"
    assert len(payload) == room
    script = Script(outcomes={"x": [Outcome.RETRY] * 9})
    async with memory_world.broker(topic) as broker:
        await raw_publish(broker, topic.queue, payload)
        async with consuming(broker, topic, script) as run:
            await memory_world.until_kept(broker, topic.queue, 0)
        assert (await run.end()).is_clean
        assert run.outcome is not None
        assert run.outcome.restarts == 0
        counted = run.group.statistics()[topic.queue]
        if has_dlq:
            [dead] = await memory_world.kept(broker, topic.topology.dlq)
            assert dead.payload == payload
    assert counted["dead" if has_dlq else "discarded"] == 1
    assert len(script.journal) == 1


async def test_spoofed_and_unreadable_counters_of_foreign_producers(
    world: World, clock: Clock
) -> None:
    """SW-11: an unreadable count is no fresh budget, and a readable one is believed."""
    topic = world.topic(lambda b: b.hold_queue(0.05).dlq())
    script = Script(outcomes={"late": [Outcome.RETRY] * 9})
    async with world.broker(topic) as broker:
        for text in ("-1", "1e3", "many", "9999999999"):
            headers = {"Shove-Retry-Count": text, "X-Text": text}
            await raw_publish(broker, topic.queue, b'{"name":"bad"}', headers)
        await raw_publish(broker, topic.queue, b'{"name":"late"}', {"Shove-Retry-Count": "9"})
        async with consuming(broker, topic, script):
            dead = await world.until_kept(broker, topic.topology.dlq, 5)
    assert script.journal.entries == [("late", 9), ("late", 10)]
    reasons = {m.headers.get("X-Text"): m.headers["Shove-Death-Reason"] for m in dead}
    assert reasons.pop(None) == "max_retries_exceeded"
    assert set(reasons.values()) == {"foreign_header"}
    assert len(reasons) == 4


async def test_pause_of_what_cannot_be_moved_has_a_ceiling() -> None:
    """After thousands of tries too: 2 to the power of that would not fit any number."""
    from shove_actors.runtime._settle import STUCK_MAX_S, Settler

    pauses: list[float | None] = []

    class Lane:
        def nak(self, delivery: object, delay_s: float | None = None) -> None:
            pauses.append(delay_s)

    class Stuck:
        stream, sequence, settled, lane = "s", 1, False, Lane()

    settler = Settler(TopologyBuilder("q").build(), None)  # type: ignore[arg-type]
    for _ in range(3000):
        settler.stay(Stuck(), StreamFull("full"))  # type: ignore[arg-type]
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert pauses[-1] == STUCK_MAX_S
    settler.forget(1)
    settler.stay(Stuck(), StreamFull("full"))  # type: ignore[arg-type]
    assert pauses[-1] == 0.5


async def test_metadata_of_a_plain_message(world: World, clock: Clock) -> None:
    topic = world.topic()
    script = Script()
    async with world.broker(topic) as broker:
        receipt = await broker.publisher().publish(topic, Order("x"), message_id="mine")
        async with consuming(broker, topic, script):
            await script.journal.until(1)
    [metadata] = script.seen
    assert isinstance(metadata, MessageMetadata)
    assert (metadata.stream, metadata.sequence) == (receipt.stream, receipt.sequence)
    assert (metadata.retry_count, metadata.attempt, metadata.redelivered) == (0, 1, False)
    assert metadata.delivery_id == "mine"
    assert (metadata.shard, metadata.key) == (None, None)
    assert metadata.subject == topic.queue


@pytest.mark.parametrize("end", [Outcome.ACK, Outcome.REJECT, Outcome.RETRY])
async def test_nothing_is_remembered_of_a_message_that_is_done(
    memory_world: World, autojump_clock: trio.testing.MockClock, end: Outcome
) -> None:
    """It could not be moved on twice; then it ended, in one way or another."""
    assert memory_world.memory is not None
    topic = memory_world.topic(lambda b: b.hold_queue(3600).dlq())
    dlq = topic.topology.dlq
    assert dlq is not None
    memory_world.memory.faults.refuse_publish(dlq, StreamFull("full"), times=2)
    script = Script(outcomes={"x": [Outcome.REJECT, Outcome.REJECT, end]})
    async with memory_world.broker(topic) as broker:
        await broker.publisher().publish(topic, Order("x"))
        async with consuming(broker, topic, script) as run:
            await script.journal.until(3)
            await memory_world.until_kept(broker, topic.queue, 0)
        settler = run.group._registrations[0].settler
    assert settler.counts["stuck"] == 2
    assert settler._stuck == {}
