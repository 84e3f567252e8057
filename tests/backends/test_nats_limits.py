"""Limits reached: what the publisher is told, and what becomes of what is stored already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from shove_actors import (
    BatchError,
    Broker,
    NatsConfig,
    NatsStreamConfig,
    Outcome,
    PublishReceipt,
    Retention,
    Storage,
    StreamFull,
    Topic,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends.nats import NatsBackend
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream, StreamConfig
from tests.runtime.world import Journal, Order, consuming

Fresh = Callable[[], str]


def js_of(broker: Broker) -> JetStream:
    assert isinstance(broker.backend, NatsBackend)
    return broker.backend.js


def bounded(queue: str, **settings: Any) -> Topic[Order]:
    return Topic(
        Order, TopologyBuilder(queue).nats_stream_config(NatsStreamConfig(**settings)).build()
    )


async def numbers(js: JetStream, stream: str) -> list[int]:
    """The sequences that are stored."""
    info = await js.stream_info(stream)
    if not info.messages:
        return []
    found, sequence = [], info.first_seq
    while (message := await js.next_message(stream, sequence)) is not None:
        found.append(message.sequence)
        sequence = message.sequence + 1
    return found


async def until_full(broker: Broker, topic: Topic[Order], most: int = 50) -> tuple[int, StreamFull]:
    """How many were stored before the first refusal, and that refusal."""
    for number in range(most):
        try:
            await broker.publisher().publish(topic, Order(str(number)))
        except StreamFull as exc:
            return number, exc
    raise AssertionError(f"{most} messages found room")


# ------------------------------------------------------------------ discard new: ours


@pytest.mark.parametrize("retention", [Retention.WORK_QUEUE, Retention.LIMITS])
@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("limit", [{"max_messages": 5}, {"max_bytes": 500}], ids=["count", "bytes"])
async def test_discard_new_refuses_and_keeps_what_it_has(
    server: ServerProcess,
    fresh_queue: Fresh,
    limit: dict[str, int],
    storage: Storage,
    retention: Retention,
) -> None:
    topic = bounded(fresh_queue(), storage=storage, retention=retention, **limit)
    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        count, error = await until_full(broker, topic)
        assert count >= 2
        assert error.stored is False
        assert topic.queue in str(error)
        assert "full" in str(error)
        assert await numbers(js_of(broker), topic.queue) == list(range(1, count + 1))
        with pytest.raises(StreamFull):
            await broker.publisher().publish(topic, Order("again"))


async def test_room_that_is_made_is_used(server: ServerProcess, fresh_queue: Fresh) -> None:
    topic = bounded(fresh_queue(), max_messages=2)
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        count, _ = await until_full(broker, topic)
        assert count == 2
        async with consuming(broker, topic, handle):
            await seen.until(2)
        await broker.publisher().publish(topic, Order("fits"))


async def test_a_batch_into_a_stream_that_fills_up(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    topic = bounded(fresh_queue(), max_messages=3)
    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        with pytest.raises(BatchError) as caught:
            await broker.publisher().publish_batch(topic, [Order(str(n)) for n in range(5)])
    kinds = [type(result) for result in caught.value.results]
    assert kinds == [PublishReceipt] * 3 + [StreamFull] * 2


async def test_messages_that_grow_old_make_room(server: ServerProcess, fresh_queue: Fresh) -> None:
    topic = bounded(fresh_queue(), max_messages=1, max_age=0.5)
    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic)
        publisher = broker.publisher()
        await publisher.publish(topic, Order("first"))
        with trio.fail_after(20):
            while True:
                try:
                    receipt = await publisher.publish(topic, Order("second"))
                    break
                except StreamFull:
                    await trio.sleep(0.1)
        assert receipt.sequence == 2
        assert await numbers(js_of(broker), topic.queue) == [2]


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize(
    "limit", [{"max_messages": 2}, {"max_bytes": 150}, {"max_messages": 1, "max_bytes": 100}]
)
async def test_a_limit_below_what_is_stored_deletes_nothing(
    server: ServerProcess, fresh_queue: Fresh, limit: dict[str, int], storage: Storage
) -> None:
    """Nor does it when an operator had the stream discard its oldest meanwhile."""
    queue = fresh_queue()
    async with open_broker(NatsConfig(server.url)) as broker:
        js = js_of(broker)
        before = bounded(queue, storage=storage)
        await broker.declare(before)
        await broker.publisher().publish_batch(before, [Order(str(n)) for n in range(6)])
        config = (await js.stream_info(queue)).config
        await js.update_stream(replace(config, discard="old"))
        lower = bounded(queue, storage=storage, **limit)
        await broker.declare(lower)
        assert await numbers(js, queue) == [1, 2, 3, 4, 5, 6]
        with pytest.raises(StreamFull):
            await broker.publisher().publish(lower, Order("x"))
        assert await numbers(js, queue) == [1, 2, 3, 4, 5, 6]


# ------------------------------------------------------------------ per subject, and the account


async def test_an_operators_limit_per_subject(server: ServerProcess, fresh_queue: Fresh) -> None:
    """Not ours to set nor to remove; told as what it is, and only for the subject that is full."""
    queue = fresh_queue()
    subjects = [f"{queue}.a", f"{queue}.b"]
    topic = Topic(Order, TopologyBuilder(queue).nats_subjects(subjects).build())
    async with open_broker(NatsConfig(server.url)) as broker:
        js, publisher = js_of(broker), broker.publisher()
        await broker.declare(topic)
        config = (await js.stream_info(queue)).config
        limited = replace(
            config,
            max_msgs_per_subject=1,
            extra={**config.extra, "discard_new_per_subject": True},
        )
        await js.update_stream(limited)
        await broker.declare(topic)
        await publisher.publish(topic, Order("1"), subject=subjects[0])
        with pytest.raises(StreamFull, match=f"{queue}.a.*per subject"):
            await publisher.publish(topic, Order("2"), subject=subjects[0])
        await publisher.publish(topic, Order("3"), subject=subjects[1])
        await broker.declare(topic)
        now = (await js.stream_info(queue)).config
        assert now.max_msgs_per_subject == 1
        assert now.discard_new_per_subject is True


async def test_the_accounts_limit() -> None:
    text = (
        "accounts { A { jetstream { max_file: 20000, max_mem: 20000 }, "
        "users: [ { user: a, password: b } ] } }"
    )
    topic = Topic(Order, TopologyBuilder("q").build())
    with ServerProcess(config=text) as process:
        config = NatsConfig(process.url, username="a", password="b")
        async with open_broker(config) as broker:
            await broker.declare(topic)
            count, error = await until_full(broker, topic, most=2000)
            assert count > 10
            assert "account" in str(error)
            assert len(await numbers(js_of(broker), "q")) == count


# ------------------------------------------------------------------ discard old: external only


async def test_external_stream_that_discards_its_oldest(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """Its owner chose so: publishing succeeds, and what was oldest is gone."""
    queue = fresh_queue()
    topic = Topic(Order, TopologyBuilder(queue).nats_external_stream().build())
    async with open_broker(NatsConfig(server.url)) as broker:
        js = js_of(broker)
        await js.create_stream(
            StreamConfig(name=queue, subjects=(queue,), discard="old", max_msgs=3)
        )
        await broker.declare(topic)
        receipts = [await broker.publisher().publish(topic, Order(str(n))) for n in range(5)]
        assert [receipt.sequence for receipt in receipts] == [1, 2, 3, 4, 5]
        assert await numbers(js, queue) == [3, 4, 5]
        assert (await js.stream_info(queue)).config.discard == "old"


async def test_external_stream_with_discard_new(server: ServerProcess, fresh_queue: Fresh) -> None:
    queue = fresh_queue()
    topic = Topic(Order, TopologyBuilder(queue).nats_external_stream().build())
    async with open_broker(NatsConfig(server.url)) as broker:
        js = js_of(broker)
        await js.create_stream(
            StreamConfig(name=queue, subjects=(f"{queue}.>", queue), discard="new", max_msgs=3)
        )
        await broker.declare(topic)
        count, _ = await until_full(broker, topic)
        assert count == 3


# ------------------------------------------------------------------ what is not ours


async def test_settings_that_are_not_ours_survive_every_kind_of_update(
    server: ServerProcess, fresh_queue: Fresh
) -> None:
    """Sources, metadata, description, republish, transform; by limits and subjects."""
    queue, other = fresh_queue(), fresh_queue()
    async with open_broker(NatsConfig(server.url)) as broker:
        js = js_of(broker)
        await js.create_stream(StreamConfig(name=other, subjects=(other,)))
        await broker.declare(bounded(queue))
        config = (await js.stream_info(queue)).config
        theirs = {
            "placement": {"tags": []} if False else None,
            "sources": [{"name": other}],
            "republish": {"src": ">", "dest": f"republished.{queue}.>"},
            "subject_transform": {"src": ">", "dest": ">"},
            "compression": "s2",
        }
        operators = replace(
            config,
            description="kept by the operators",
            metadata={"owner": "ops"},
            allow_direct=True,
            extra={**config.extra, **theirs},
        )
        before = (await js.update_stream(operators)).config
        for settings in ({"max_messages": 9}, {"max_bytes": 10_000}, {"max_age": 60.0}, {}):
            await broker.declare(bounded(queue, **settings))
            after = (await js.stream_info(queue)).config
            assert after.description == "kept by the operators"
            assert after.metadata == before.metadata
            assert after.allow_direct is True
            assert after.extra == before.extra
        topic = Topic(Order, TopologyBuilder(queue).nats_subjects([queue, f"{queue}.x"]).build())
        await broker.declare(topic)
        after = (await js.stream_info(queue)).config
        assert set(after.subjects) == {queue, f"{queue}.x"}
        assert after.extra == before.extra
