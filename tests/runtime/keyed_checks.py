"""What a keyed topic promises, on every backend."""

from __future__ import annotations

import trio

from shove_actors import Outcome
from shove_actors.backends import KeyedLane
from shove_actors.messaging import SequenceFailure
from tests.support import wait_until

from .keyed import Log, Note, Server, broker, serving, topic


async def check_many_keys_at_once_each_in_order(server: Server, queue: str) -> None:
    subject, log = topic(queue), Log()

    async def handle(note: Note) -> Outcome:
        log.begin(note)
        await trio.sleep(0.02)
        log.end(note)
        return Outcome.ACK

    async with broker(server) as opened:
        await opened.declare(subject)
        notes = [Note(f"k{i % 20}", i) for i in range(200)]
        await opened.publisher().publish_batch(subject, notes)
        async with serving(opened, subject, handle):
            await log.until(200)
    for key in {note.key for note in notes}:
        assert log.of(key) == sorted(log.of(key)), key
    assert log.most > 2, "more than one per shard"


async def check_retries_rejections_and_timeouts_stay_with_their_key(
    server: Server, queue: str
) -> None:
    subject, log = topic(queue, shards=1), Log()
    tries: dict[int, int] = {}

    async def handle(note: Note) -> Outcome:
        tries[note.number] = tries.get(note.number, 0) + 1
        if note.key == "retried" and tries[note.number] < 3:
            return Outcome.RETRY
        if note.key == "rejected" and note.number == 10:
            return Outcome.REJECT
        if note.key == "hangs" and tries[note.number] == 1:
            await trio.sleep_forever()
        log.begin(note)
        log.end(note)
        return Outcome.ACK

    async with broker(server) as opened:
        await opened.declare(subject)
        keys = ("retried", "rejected", "hangs", "fine")
        notes = [Note(key, number) for number in (10, 20) for key in keys]
        await opened.publisher().publish_batch(subject, notes)
        async with serving(opened, subject, handle, handler_timeout=0.5) as group:
            await log.until(7)
            assert group.statistics()[subject.queue]["dead"] == 1
    assert [log.of(key) for key in keys] == [[10, 20], [20], [10, 20], [10, 20]]


async def check_fail_all_poisons_its_key_only(server: Server, queue: str) -> None:
    subject, log = topic(queue, failure=SequenceFailure.FAIL_ALL, shards=1), Log()

    async def handle(note: Note) -> Outcome:
        if note.key == "bad" and note.number == 0:
            return Outcome.REJECT
        log.begin(note)
        log.end(note)
        return Outcome.ACK

    async with broker(server) as opened:
        await opened.declare(subject)
        notes = [Note(key, number) for number in range(3) for key in ("bad", "good")]
        await opened.publisher().publish_batch(subject, notes)
        async with serving(opened, subject, handle) as group:
            await log.until(3)
            with trio.fail_after(10):
                await wait_until(lambda: group.statistics()[subject.queue].get("dead", 0) == 3)
            assert [key.key for key in await opened.poisoned(subject)] == ["bad"]
            assert log.of("bad") == []
            await opened.publisher().publish(subject, Note("good", 3))
            await log.until(4)
    assert log.of("good") == [0, 1, 2, 3]


async def check_a_stuck_key_holds_nobody_up(server: Server, queue: str) -> None:
    subject, log = topic(queue, shards=1, keyed=8), Log()

    async def handle(note: Note) -> Outcome:
        if note.key == "stuck":
            await trio.sleep_forever()
        log.begin(note)
        log.end(note)
        return Outcome.ACK

    async with broker(server) as opened:
        await opened.declare(subject)
        notes = [Note("stuck", i) for i in range(50)] + [Note(f"k{i}", i) for i in range(100)]
        await opened.publisher().publish_batch(subject, notes)
        async with serving(opened, subject, handle, handler_timeout=20.0) as group:
            await log.until(100, within=10)
            assert log.of("stuck") == []
            group.hard_stop()
        lanes = opened.backend._lanes  # type: ignore[attr-defined]
        assert not [lane for lane in lanes if isinstance(lane, KeyedLane)], "left behind"


async def check_a_drain_hands_the_shards_on(server: Server, queue: str) -> None:
    """The next process has not to wait for the lease of the one that left."""
    subject, log = topic(queue), Log()

    async def handle(note: Note) -> Outcome:
        log.begin(note)
        await trio.sleep(0.01)
        log.end(note)
        return Outcome.ACK

    async with broker(server) as one, broker(server) as two:
        await one.declare(subject)
        first = [Note(f"k{i % 10}", i) for i in range(300)]
        await one.publisher().publish_batch(subject, first)
        async with serving(one, subject, handle, ack_wait=20.0):
            await log.until(20)
        began = trio.current_time()
        async with serving(two, subject, handle, ack_wait=20.0):
            await log.until(300)
        assert trio.current_time() - began < 15
    assert len(log.handled) == 300, "nothing twice"
    for key in {note.key for note in first}:
        assert log.of(key) == sorted(log.of(key)), key


async def check_a_drain_that_is_cut_short_hands_on_too(server: Server, queue: str) -> None:
    """Handlers are cancelled by the drain time-out; the next process need not wait for a lease."""
    subject, log = topic(queue, shards=2), Log()
    hang = True

    async def handle(note: Note) -> Outcome:
        log.begin(note)
        if hang:
            await trio.sleep_forever()
        log.end(note)
        return Outcome.ACK

    async with broker(server) as one, broker(server) as two:
        await one.declare(subject)
        notes = [Note(f"k{i % 10}", i) for i in range(30)]
        await one.publisher().publish_batch(subject, notes)
        group = one.consumer_group()
        group.register(subject, handle, ack_wait=20.0)

        async def all_hang() -> None:
            await wait_until(lambda: len(log.running) == 10, 10.0)

        began = trio.current_time()
        outcome = await group.run_until(all_hang, drain_timeout=0.3)
        assert outcome.timed_out
        assert trio.current_time() - began < 10
        hang = False
        log.running.clear()
        async with serving(two, subject, handle, ack_wait=20.0):
            await log.until(30)
        assert trio.current_time() - began < 15
    for key in {note.key for note in notes}:
        assert log.of(key) == sorted(log.of(key)), key


async def check_a_released_key_is_replayed(server: Server, queue: str) -> None:
    """Its dead letters are handled first, in order; other keys go on meanwhile."""
    subject, log = topic(queue, failure=SequenceFailure.FAIL_ALL, shards=1), Log()
    broken = True

    async def handle(note: Note) -> Outcome:
        if note.key == "bad" and broken:
            return Outcome.REJECT
        log.begin(note)
        if note.key == "bad":
            await trio.sleep(0.05)
        log.end(note)
        return Outcome.ACK

    async with broker(server) as opened:
        await opened.declare(subject)
        await opened.publisher().publish_batch(subject, [Note("bad", n) for n in range(3)])
        async with serving(opened, subject, handle) as group:
            with trio.fail_after(10):
                await wait_until(lambda: group.statistics()[subject.queue].get("dead", 0) == 3)
            broken = False
            await opened.release(subject, "bad", replay=True)
            later = [Note(key, n) for n in range(3, 6) for key in ("bad", "good")]
            await opened.publisher().publish_batch(subject, later)
            await log.until(9)
            assert await opened.poisoned(subject) == ()
    assert log.of("bad") == list(range(6))
    assert log.of("good") == [3, 4, 5]


async def check_another_number_of_shards(server: Server, queue: str) -> None:
    """`broker.reshard`, with consumers of the old number, then of the new one."""
    old, new, log = topic(queue, shards=2), topic(queue, shards=5), Log()

    async def handle(note: Note) -> Outcome:
        log.begin(note)
        await trio.sleep(0.01)
        log.end(note)
        return Outcome.ACK

    async with broker(server) as opened:
        await opened.declare(old)
        notes = [Note(f"k{n % 10}", n) for n in range(100)]
        await opened.publisher().publish_batch(old, notes[:60])
        group = opened.consumer_group()
        group.register(old, handle, ack_wait=3.0)
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            resharded = await opened.reshard(new, timeout=20.0)
            assert (resharded.was, resharded.now) == (2, 5)
            group.stop()
        async with serving(opened, new, handle):
            await opened.publisher().publish_batch(new, notes[60:])
            await log.until(100)
    for key in {note.key for note in notes}:
        assert log.of(key) == sorted(log.of(key)), key


CHECKS = (
    check_another_number_of_shards,
    check_a_released_key_is_replayed,
    check_many_keys_at_once_each_in_order,
    check_retries_rejections_and_timeouts_stay_with_their_key,
    check_fail_all_poisons_its_key_only,
    check_a_stuck_key_holds_nobody_up,
    check_a_drain_hands_the_shards_on,
    check_a_drain_that_is_cut_short_hands_on_too,
)
