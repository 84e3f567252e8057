"""Publishing in order, per key: `runtime/_key_order.py`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import trio
import trio.testing

from shove_actors import (
    BatchError,
    Broker,
    MemoryConfig,
    MemoryServer,
    NatsConfig,
    PublishError,
    PublishReceipt,
    SequencedTopic,
    SequenceFailure,
    StreamFull,
    TopologyBuilder,
    open_broker,
)
from shove_actors.embedded import ServerProcess


class Step(msgspec.Struct):
    key: str
    number: int


def ladder(queue: str, shards: int = 4) -> SequencedTopic[Step]:
    builder = TopologyBuilder(queue).sequenced(SequenceFailure.SKIP).routing_shards(shards)
    return SequencedTopic(
        Step, key=lambda step: step.key, topology=builder.hold_queue(1).dlq().build()
    )


def steps(payloads: list[bytes]) -> list[Step]:
    return [msgspec.json.decode(payload, type=Step) for payload in payloads]


async def test_a_key_stops_at_its_first_failure(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The second message of "a" is refused; its third is not sent; "b" goes on."""
    server, topic = MemoryServer(), ladder("ladder")
    async with open_broker(MemoryConfig(server=server)) as broker:
        await broker.declare(topic)
        publisher = broker.publisher()
        await publisher.publish(topic, Step("a", 1))
        server.faults.refuse_publish("ladder", StreamFull("full"), times=1)
        batch = [Step("a", 2), Step("a", 3), Step("b", 1), Step("b", 2)]
        with pytest.raises(BatchError) as caught:
            await publisher.publish_batch(topic, batch)
        results = caught.value.results
        assert isinstance(results[0], StreamFull)
        assert isinstance(results[1], PublishError)
        assert "earlier message of its key" in str(results[1])
        assert all(isinstance(result, PublishReceipt) for result in results[2:])
        stored = steps([m.payload for m in server.messages("ladder")])
        assert [(s.key, s.number) for s in stored] == [("a", 1), ("b", 1), ("b", 2)]
        # Nothing leaked: the window is as empty as before.
        assert broker.publish_service.window.taken == 0


async def test_a_pipeline_refuses_the_rest_of_a_failed_key(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server, topic = MemoryServer(), ladder("ladder")
    async with open_broker(MemoryConfig(server=server)) as broker:
        await broker.declare(topic)
        server.faults.refuse_publish("ladder", StreamFull("full"), times=1)
        with pytest.raises(BaseException) as caught:  # noqa: PT011, PT012 - a group, at the exit
            async with broker.publisher().pipeline(topic) as pipe:
                for number in range(5):
                    await pipe.send(Step("a", number))
                await trio.testing.wait_all_tasks_blocked()
                await pipe.send(Step("a", 5))
                await pipe.send(Step("b", 0))
        failures = caught.value.exceptions  # type: ignore[attr-defined]
        assert len(failures) == 6
        assert sorted(f.message.number for f in failures) == [0, 1, 2, 3, 4, 5]
        assert pipe.stored == 1
        assert broker.publish_service.window.taken == 0


async def test_one_message_of_a_key_is_under_way_at_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A lost acknowledgement of the first holds back the second, not the other key."""
    server, topic = MemoryServer(), ladder("ladder")
    async with open_broker(MemoryConfig(server=server)) as broker:
        await broker.declare(topic)
        server.faults.drop_puback(1)
        async with broker.publisher().pipeline(topic) as pipe:
            await pipe.send(Step("a", 1))
            await pipe.send(Step("a", 2))
            await pipe.send(Step("b", 1))
            await trio.testing.wait_all_tasks_blocked()
            stored = steps([m.payload for m in server.messages("ladder")])
            assert [(s.key, s.number) for s in stored] == [("a", 1), ("b", 1)]
        stored = steps([m.payload for m in server.messages("ladder")])
        assert [(s.key, s.number) for s in stored] == [("a", 1), ("b", 1), ("a", 2)]


async def test_a_server_killed_under_a_pipeline_keeps_the_order(
    own_server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    """Seen before: message 15143 directly followed by 14144, after the reconnect."""
    topic, count = ladder(fresh_queue(), shards=1), 3000
    config = NatsConfig(own_server.url, reconnect_wait=0.05, reconnect_jitter=0.01)
    async with open_broker(config, publish_timeout=60) as broker:
        await broker.declare(topic)
        async with broker.publisher().pipeline(topic, max_pending=500) as pipe:
            for number in range(count):
                await pipe.send(Step(f"key-{number % 2}", number))
                if number in (700, 1900):
                    await trio.to_thread.run_sync(own_server.kill)
                    await trio.to_thread.run_sync(own_server.restart)
        assert pipe.stored == count
        js = broker.backend.js  # type: ignore[attr-defined]
        for key in (0, 1):
            numbers = []
            for sequence in range(1, count + 1):
                message = await js.get_message(topic.queue, sequence)
                number = msgspec.json.decode(message.data, type=Step).number
                if number % 2 == key:
                    numbers.append(number)
            assert numbers == list(range(key, count, 2))


# ------------------------------------------------------------------ who is cancelled gives up


async def _gives_up(how: str, broker: Broker, topic: SequencedTopic[Step], key: str) -> None:
    publisher = broker.publisher()
    batch = [Step(key, number) for number in (1, 2, 3)]
    with trio.CancelScope() as scope:
        if how == "publish":
            scope.cancel()
            await publisher.publish(topic, batch[0])
        elif how == "batch":
            scope.cancel()
            await publisher.publish_batch(topic, batch)
        else:
            async with publisher.pipeline(topic) as pipe:
                for step in batch:
                    await pipe.send(step)
                scope.cancel()
                if how == "pipeline-body":
                    await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


@pytest.mark.parametrize("how", ["publish", "batch", "pipeline-body", "pipeline-end"])
@pytest.mark.parametrize("real", [False, True], ids=["memory", "nats"])
async def test_nothing_of_what_was_cancelled_comes_behind_what_is_published_next(
    request: pytest.FixtureRequest, how: str, real: bool
) -> None:
    """A batch of 1, 2, 3 that was cancelled, then 9: once stored as 1, 9, 2."""
    config = NatsConfig(request.getfixturevalue("server").url) if real else MemoryConfig()
    topic = ladder(f"gives-up-{how}")
    async with open_broker(config) as broker:
        await broker.declare(topic)
        for number in range(40):
            key = f"k{number}"
            await _gives_up(how, broker, topic, key)
            await broker.publisher().publish(topic, Step(key, 9))
        assert broker.publisher()._service.window.taken == 0, "every place was given back"
        found: dict[str, list[int]] = {}
        sequence = 1
        while (kept := await broker.backend.next_message(topic.queue, sequence)) is not None:
            sequence = kept.sequence + 1
            step = topic.decode(kept.payload)
            found.setdefault(step.key, []).append(step.number)
    assert len(found) == 40
    for key, numbers in found.items():
        assert numbers == [*range(1, len(numbers)), 9], key


@pytest.mark.parametrize("how", ["publish", "batch", "pipeline-end"])
async def test_what_was_cancelled_without_a_connection_is_not_sent_when_there_is_one(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    server, topic = MemoryServer(), ladder("ladder")
    async with open_broker(MemoryConfig(server=server, name="mine")) as broker:
        await broker.declare(topic)
        server.faults.disconnect("mine")
        publisher = broker.publisher()
        batch = [Step("a", number) for number in (1, 2, 3)]
        with trio.move_on_after(0.5) as scope:
            if how == "publish":
                await publisher.publish(topic, batch[0])
            elif how == "batch":
                await publisher.publish_batch(topic, batch)
            else:
                async with publisher.pipeline(topic) as pipe:
                    for step in batch:
                        await pipe.send(step)
        assert scope.cancelled_caught
        server.faults.reconnect("mine")
        await publisher.publish(topic, Step("a", 9))
        await trio.sleep(30)
        assert [step.number for step in steps([m.payload for m in server.messages("ladder")])] == [
            9
        ]
        assert publisher._service.window.taken == 0
        assert publisher._service.idle
