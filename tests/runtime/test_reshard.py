"""Another number of shards for a topic in use: no key changes its lane with a message in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing

from shove_actors import (
    BatchError,
    Broker,
    MessageMetadata,
    Outcome,
    ReshardTimeout,
    ReshardUnderWay,
    SequencedTopic,
    SequenceFailure,
    TopicNotDeclared,
    TopologyBuilder,
    TopologyError,
    UsageError,
)
from shove_actors.backends import Resharded
from shove_actors.backends.nats import NatsBackend
from shove_actors.messaging import closed_subject, layout_of, shard_subjects

from .fixtures import Clock
from .world import SOON_S, Journal, Order, Script, World, consuming, until

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

KEYS = [f"key-{n}" for n in range(12)]


def topic(queue: str, shards: int) -> SequencedTopic[Order]:
    return SequencedTopic(
        Order,
        key=lambda order: order.key,
        topology=TopologyBuilder(queue)
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(shards)
        .hold_queue(0.2)
        .dlq()
        .build(),
    )


@dataclass
class Server:
    """The stream as the server has it, whichever backend it is."""

    world: World
    broker: Broker
    queue: str

    async def subjects(self) -> tuple[str, ...]:
        if self.world.memory is not None:
            return self.world.memory.streams[self.queue].settings.subjects
        assert isinstance(self.broker.backend, NatsBackend)
        return (await self.broker.backend.js.stream_info(self.queue)).config.subjects

    async def bind(self, *subjects: str) -> None:
        if self.world.memory is not None:
            self.world.memory.edit_stream(self.queue, subjects=subjects)
            return
        assert isinstance(self.broker.backend, NatsBackend)
        js = self.broker.backend.js
        config = (await js.stream_info(self.queue)).config
        await js.update_stream(replace(config, subjects=subjects))

    async def durables(self) -> set[str]:
        if self.world.memory is not None:
            return set(self.world.memory.streams[self.queue].durables)
        assert isinstance(self.broker.backend, NatsBackend)
        return {i.name async for i in self.broker.backend.js.list_consumers(self.queue)}

    async def closed(self) -> bool:
        return layout_of(self.queue, await self.subjects()).under_way is not None

    async def until_closed(self) -> None:
        with trio.fail_after(SOON_S):
            while not await self.closed():  # noqa: ASYNC110 - the server tells nobody
                await trio.sleep(0.01)


@pytest.mark.parametrize(("was", "will"), [(2, 5), (5, 2)])
async def test_drained_change_under_load_keeps_every_order(
    world: World, clock: Clock, was: int, will: int
) -> None:
    """Messages in every lane, one of them retried, and publishers that go on and on."""
    queue = world.fresh()
    old, new = topic(queue, was), topic(queue, will)
    seen: dict[str, list[int]] = {key: [] for key in KEYS}
    failed_once = False
    refused = 0

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        nonlocal failed_once
        if order.name == "1" and order.key == KEYS[0] and not failed_once:
            failed_once = True
            return Outcome.RETRY
        await trio.sleep(0.005)
        seen[order.key].append(int(order.name))
        return Outcome.ACK

    async with world.broker(old) as one, world.broker() as two, world.broker() as operator:
        publisher = one.publisher()
        for number in range(4):
            await publisher.publish_batch(old, [Order(str(number), key) for key in KEYS])
        numbers = iter(range(4, 1000))

        async def publish_on() -> None:
            nonlocal refused
            number = next(numbers)
            while True:
                try:
                    await publisher.publish_batch(old, [Order(str(number), key) for key in KEYS])
                except BatchError as exc:
                    # All of them or none: closed between two messages would be no order either.
                    causes = [r for r in exc.results if isinstance(r, Exception)]
                    assert all(isinstance(c, (ReshardUnderWay, TopologyError)) for c in causes)
                    refused += 1
                    return
                number = next(numbers)
                await trio.sleep(0.01)

        async with consuming(one, old, handle), trio.open_nursery() as nursery:
            nursery.start_soon(publish_on)
            await trio.sleep(0.2)
            assert await operator.reshard(new, timeout=20) == Resharded(
                was, will, max(0, was - will)
            )
            await until(lambda: refused == 1)
            with pytest.raises(TopologyError, match=f"has {will} shards"):
                await publisher.publish(old, Order("999", KEYS[0]))
        await two.declare(new)
        handled = {key: len(numbers_) for key, numbers_ in seen.items()}
        async with consuming(two, new, handle):
            await two.publisher().publish_batch(new, [Order("1000", key) for key in KEYS])
            await until(lambda: all(numbers_[-1] == 1000 for numbers_ in seen.values()))
        server = Server(world, two, queue)
        assert set(await server.subjects()) == set(shard_subjects(queue, will))
        durables = {name for name in await server.durables() if "-shard-" in name}
        assert durables == {f"{queue}-shard-{n}" for n in range(will)}
    for key, numbers_ in seen.items():
        assert numbers_ == sorted(set(numbers_)), key
        assert len(numbers_) == handled[key] + 1
    assert failed_once


async def test_nobody_drains_it(world: World, clock: Clock) -> None:
    queue = world.fresh()
    async with world.broker(topic(queue, 2)) as broker:
        await broker.publisher().publish(topic(queue, 2), Order("1", "a"))
        with pytest.raises(ReshardTimeout, match="still had 1 messages"):
            await broker.reshard(topic(queue, 4), timeout=1.5)
        server = Server(world, broker, queue)
        assert set(await server.subjects()) == set(shard_subjects(queue, 2))
        await broker.publisher().publish(topic(queue, 2), Order("2", "a"))


async def test_cancelled_it_puts_the_old_subjects_back(world: World, clock: Clock) -> None:
    queue = world.fresh()
    async with world.broker(topic(queue, 2)) as broker, trio.open_nursery() as nursery:
        await broker.publisher().publish(topic(queue, 2), Order("1", "a"))
        server = Server(world, broker, queue)

        async def change() -> None:
            with scope:
                await broker.reshard(topic(queue, 4))

        scope = trio.CancelScope()
        nursery.start_soon(change)
        await server.until_closed()
        with pytest.raises(ReshardUnderWay, match="from 2 to 4 shards"):
            await broker.publisher().publish(topic(queue, 2), Order("2", "a"))
        scope.cancel()
        with trio.fail_after(SOON_S):
            while await server.closed():  # noqa: ASYNC110 - the server tells nobody
                await trio.sleep(0.01)
        await broker.publisher().publish(topic(queue, 2), Order("2", "a"))


async def test_every_way_to_publish_is_refused_while_it_is_closed(
    world: World, clock: Clock
) -> None:
    queue = world.fresh()
    old = topic(queue, 2)
    async with world.broker(old) as broker:
        server = Server(world, broker, queue)
        publisher = broker.publisher()
        await publisher.publish(old, Order("1", "a"))
        await server.bind(closed_subject(queue, 2, 3))
        with pytest.raises(ReshardUnderWay):
            await publisher.publish(old, Order("2", "a"))
        with pytest.raises(BatchError, match="from 2 to 3 shards"):
            await publisher.publish_batch(old, [Order("2", "a")])
        with pytest.raises(BaseExceptionGroup) as caught:
            async with publisher.pipeline(old) as pipe:
                await pipe.send(Order("2", "a"))
        assert caught.group_contains(ReshardUnderWay)
        assert len(await world.kept(broker, queue)) == 1


async def test_publisher_of_the_old_number_never_reaches_a_lane_of_the_new_one(
    world: World, clock: Clock
) -> None:
    """Also if it published before, did nothing during the change, and no publish failed."""
    queue = world.fresh()
    old, new = topic(queue, 3), topic(queue, 4)
    async with world.broker(old) as one, world.broker() as operator:
        script = Script()
        async with consuming(one, old, script):
            await one.publisher().publish(old, Order("1", "a"))
            await operator.reshard(new, timeout=10)
            for key in KEYS:
                with pytest.raises(TopologyError, match="has 4 shards"):
                    await one.publisher().publish(old, Order("2", key))
        assert await world.kept(operator, queue) == []
        await operator.publisher().publish(new, Order("2", "a"))
        # A broker that starts with the old number, and does not even declare.
        async with world.broker() as late:
            with pytest.raises(TopologyError, match="has 4 shards"):
                await late.publisher().publish(old, Order("3", "a"))
            with pytest.raises(TopologyError, match="4 shards"):
                await late.declare(old)


@pytest.mark.parametrize("before", [True, False], ids=["published-before", "first-publish"])
async def test_what_is_published_while_the_number_is_looked_up_waits_as_well(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The doubt was taken back before the look: only the first of these was held."""
    queue = world.fresh()
    old, new = topic(queue, 2), topic(queue, 5)
    async with world.broker(old) as operator, world.broker() as one:
        publisher = one.publisher()
        script = Script()
        async with consuming(operator, old, script):
            if before:
                await publisher.publish(old, Order("0", "a"))
            await operator.reshard(new, timeout=10)
        looking, go_on = trio.Event(), trio.Event()
        look = one.backend.shard_layout

        async def slow(name: str, changed: object) -> object:
            looking.set()
            await go_on.wait()
            return await look(name, changed)  # type: ignore[arg-type]

        monkeypatch.setattr(one.backend, "shard_layout", slow)
        refused: Journal[str] = Journal()

        async def publish(name: str) -> None:
            with pytest.raises(TopologyError, match="has 5 shards"):
                await publisher.publish(old, Order(name, "a"))
            refused.add(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, "1")
            await looking.wait()
            for number in range(2, 12):
                nursery.start_soon(publish, str(number))
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert refused.entries == []
            go_on.set()
        assert len(refused) == 11
        assert await world.kept(operator, queue) == []


async def test_a_change_that_is_announced_during_the_look_leaves_a_doubt(
    memory_world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = memory_world.fresh()
    async with memory_world.broker(topic(queue, 2)) as broker:
        looks: Journal[str] = Journal()
        look = broker.backend.shard_layout

        async def announced(name: str, changed: Callable[[], None]) -> object:
            found = await look(name, changed)
            looks.add(name)
            if len(looks) == 1:
                changed()
            return found

        monkeypatch.setattr(broker.backend, "shard_layout", announced)
        await broker.publisher().publish(topic(queue, 2), Order("1", "a"))
        assert len(looks) == 2


async def test_old_number_cannot_come_back_by_declaring_it(world: World, clock: Clock) -> None:
    """A process of the old number that starts once more finds an empty stream."""
    queue = world.fresh()
    async with world.broker(topic(queue, 2)) as broker:
        await broker.reshard(topic(queue, 3), timeout=10)
        assert await world.kept(broker, queue) == []
        with pytest.raises(TopologyError, match="changed to 3 shards by `reshard`"):
            await broker.declare(topic(queue, 2))
        await broker.declare(topic(queue, 3))
        assert await broker.reshard(topic(queue, 2), timeout=10) == Resharded(3, 2)
        await broker.declare(topic(queue, 2))


async def test_without_a_change_nothing_is_closed(world: World, clock: Clock) -> None:
    queue = world.fresh()
    async with world.broker(topic(queue, 2)) as broker:
        await broker.publisher().publish(topic(queue, 2), Order("1", "a"))
        began = trio.current_time()
        assert await broker.reshard(topic(queue, 2), timeout=10) == Resharded(2, 2)
        assert trio.current_time() - began < 0.9


# ------------------------------------------------------------------ killed on the way


async def test_killed_while_draining_it_goes_on_or_back(world: World, clock: Clock) -> None:
    queue = world.fresh()
    old, new = topic(queue, 2), topic(queue, 3)
    async with world.broker(old) as broker:
        server = Server(world, broker, queue)
        await broker.publisher().publish(old, Order("1", "a"))
        await server.bind(closed_subject(queue, 2, 3))
        # Declaring changes nothing yet: a consumer of the old number starts, the new one waits.
        await broker.declare(old)
        assert await server.closed()
        async with world.broker() as other:
            with pytest.raises(TopologyError, match="run `reshard` again"):
                await other.declare(new)
            with pytest.raises(TopologyError, match="already, not to 4"):
                await other.reshard(topic(queue, 4), timeout=2)
        # Back ...
        await broker.reshard(old, timeout=10)
        assert set(await server.subjects()) == set(shard_subjects(queue, 2))
        # ... and on.
        await server.bind(closed_subject(queue, 2, 3))
        script = Script()
        async with consuming(broker, old, script):
            await broker.reshard(new, timeout=10)
        assert set(await server.subjects()) == set(shard_subjects(queue, 3))
        assert script.journal.entries == [("1", 0)]


async def test_killed_when_drained_declaring_completes_it(world: World, clock: Clock) -> None:
    queue = world.fresh()
    async with world.broker(topic(queue, 2)) as broker:
        server = Server(world, broker, queue)
        await server.bind(closed_subject(queue, 2, 3))
        async with world.broker(topic(queue, 3)) as other:
            assert set(await server.subjects()) == set(shard_subjects(queue, 3))
            await other.publisher().publish(topic(queue, 3), Order("1", "a"))


async def test_killed_before_the_durables_were_deleted(world: World, clock: Clock) -> None:
    queue = world.fresh()
    async with world.broker(topic(queue, 4)) as broker:
        server = Server(world, broker, queue)
        async with consuming(broker, topic(queue, 4), Script()):
            pass
        await server.bind(*shard_subjects(queue, 2))
        assert await broker.reshard(topic(queue, 2), timeout=10) == Resharded(2, 2, 2)
        assert await server.durables() == {f"{queue}-shard-0", f"{queue}-shard-1"}


# ------------------------------------------------------------------ what cannot be


async def test_refusals(world: World, clock: Clock) -> None:
    plain = world.topic()
    async with world.broker(plain) as broker:
        with pytest.raises(TopicNotDeclared):
            await broker.reshard(topic(world.fresh(), 2))
        with pytest.raises(TopologyError, match="no shard subjects"):
            await broker.reshard(topic(plain.queue, 2))
        with pytest.raises(UsageError, match="not sequenced"):
            await broker.reshard(plain)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="timeout"):
            await broker.reshard(topic(plain.queue, 2), timeout=0)
        for wrong in ("5", None, float("nan"), True, 1.0):
            with pytest.raises(UsageError, match="timeout"):
                await broker.reshard(topic(plain.queue, 2), timeout=wrong)  # type: ignore[arg-type]


async def test_first_publish_looks_once(
    server_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is asked for once per topic and connection, not once per message."""
    queue = server_world.fresh()
    async with server_world.broker(topic(queue, 2)) as broker:
        asked: Journal[str] = Journal()
        look = broker.backend.shard_layout

        async def counted(name: str, changed: object) -> object:
            asked.add(name)
            return await look(name, changed)  # type: ignore[arg-type]

        monkeypatch.setattr(broker.backend, "shard_layout", counted)
        for number in range(20):
            await broker.publisher().publish(topic(queue, 2), Order(str(number), "a"))
        assert asked.entries == [queue]
        assert isinstance(broker.backend, NatsBackend)
        broker.backend.connection.drop_session("the test says so")
        await until(lambda: not broker.backend.connected)
        for number in range(5):
            await broker.publisher().publish(topic(queue, 2), Order(str(number), "a"))
        assert asked.entries == [queue, queue]
