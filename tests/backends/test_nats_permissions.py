"""What the server forbids reaches the publisher or the consumer that it forbids it to, at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from shove_actors import (
    BatchError,
    Broker,
    MessageMetadata,
    NatsConfig,
    Outcome,
    PermissionDenied,
    PublishForbidden,
    PublishRefused,
    SequencedTopic,
    SequenceFailure,
    Topic,
    TopologyBuilder,
    UsageError,
    open_broker,
)
from shove_actors.backends import BackendEvent
from shove_actors.backends.nats import NatsBackend
from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import Connection, connect
from tests.jetstream.test_tls_auth import replace_config
from tests.runtime.world import Journal, Order, Run, consuming, running
from tests.support import wait_until

pytestmark = pytest.mark.server

#: Far below the time-outs of a publish (30 s), a request (5 s) and an acknowledgement (2 s).
AT_ONCE_S = 1.5
PASSWORD = "perm1ssi0n-secret"

TOPIC = Topic(Order, TopologyBuilder("Orders").hold_queue(0.2).dlq().build())
LANES = SequencedTopic(
    Order,
    key=lambda order: order.key,
    topology=TopologyBuilder("lanes")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(2)
    .allow_message_loss()
    .build(),
)


@contextmanager
def forbidding(permissions: str) -> Iterator[ServerProcess]:
    """A server with an almighty `admin`, and with `user`, who has these permissions."""
    text = f"""
        authorization {{ users: [
            {{ user: admin, password: "{PASSWORD}" }}
            {{ user: user, password: "{PASSWORD}", permissions: {{ {permissions} }} }}
        ] }}
    """
    with ServerProcess(config=text) as process:
        trio.run(_declare, process)
        yield process


async def _declare(process: ServerProcess) -> None:
    async with open_broker(config(process, "admin")) as broker:
        await broker.declare(TOPIC, LANES)


def config(process: ServerProcess, user: str = "user") -> NatsConfig:
    return NatsConfig(
        process.url,
        username=user,
        password=PASSWORD,
        reconnect_wait=0.02,
        reconnect_jitter=0.0,
    )


def connection_of(broker: Broker) -> Connection:
    assert isinstance(broker.backend, NatsBackend)
    return broker.backend.connection


@pytest.fixture
def server_for(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """Outside Trio, because making it asks the server."""
    with forbidding(request.param) as process:
        yield process


def denying(permissions: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server_for", [permissions], indirect=True, ids=["denied"])


# ------------------------------------------------------------------ publishers


@denying('publish: { deny: "Orders" }')
async def test_publishers_hear_of_it_at_once_each_with_its_own(server_for: ServerProcess) -> None:
    """The others are not disturbed, and the connection stays."""
    other = Topic(Order, TopologyBuilder("lanes").nats_subjects(["lanes.shard.0"]).build())
    refused: list[PublishForbidden] = []
    async with open_broker(config(server_for)) as broker:
        publisher = broker.publisher()

        async def one(number: int) -> None:
            with pytest.raises(PublishForbidden) as caught:
                await publisher.publish(TOPIC, Order(str(number)))
            refused.append(caught.value)

        with trio.fail_after(AT_ONCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(one, number)
                receipt = await publisher.publish(other, Order("well"))
        assert receipt.stream == "lanes"
        assert (await publisher.publish(other, Order("well"))).stream == "lanes"
        assert len(set(map(id, refused))) == 20, "one exception each"
        for error in refused:
            assert "'Orders'" in str(error), "with its capitals"
            assert (error.subject, error.operation) == ("Orders", "publish")
            assert error.stored is False
            assert isinstance(error, PublishRefused)
            assert isinstance(error, UsageError)
        assert connection_of(broker).connected
        assert connection_of(broker).reconnects == 0
        assert len(connection_of(broker).replies) == 0
    async with connect(config(server_for, "admin")) as js:
        assert (await js.stream_info("Orders")).messages == 0


@denying('publish: { deny: "Orders" }')
async def test_a_batch_says_which_were_refused(server_for: ServerProcess) -> None:
    async with open_broker(config(server_for)) as broker:
        with trio.fail_after(AT_ONCE_S), pytest.raises(BatchError) as caught:
            await broker.publisher().publish_batch(TOPIC, [Order(str(n)) for n in range(50)])
    assert all(isinstance(result, PublishForbidden) for result in caught.value.results)
    assert len(caught.value.results) == 50


@denying('publish: { allow: ["Orders", "$JS.API.INFO"] }, subscribe: { allow: "_INBOX.>" }')
async def test_a_publisher_needs_no_more_than_its_subject(server_for: ServerProcess) -> None:
    async with open_broker(config(server_for)) as broker:
        receipt = await broker.publisher().publish(TOPIC, Order("well"))
        assert (receipt.stream, receipt.sequence) == ("Orders", 1)


@denying('subscribe: { deny: "_INBOX.>" }')
async def test_answers_that_may_not_be_heard(server_for: ServerProcess) -> None:
    """No acknowledgement could ever arrive: said so, instead of a time-out for everything."""
    async with open_broker(config(server_for)) as broker:
        await connection_of(broker).flush()
        for _ in range(2):
            with trio.fail_after(AT_ONCE_S), pytest.raises(PublishForbidden, match="_INBOX"):
                await broker.publisher().publish(TOPIC, Order("x"))
            with trio.fail_after(AT_ONCE_S), pytest.raises(PermissionDenied, match="_INBOX"):
                await broker.declare(TOPIC)


@denying('subscribe: { deny: "_INBOX.>" }')
async def test_publishing_before_that_is_known_claims_nothing(server_for: ServerProcess) -> None:
    """It may have been stored: what is refused is to hear of it."""
    async with open_broker(config(server_for)) as broker:
        backend = broker.backend
        assert isinstance(backend, NatsBackend)
        with trio.fail_after(AT_ONCE_S), pytest.raises(PublishForbidden) as caught:
            await broker.publisher().publish(TOPIC, Order("x"))
        assert caught.value.stored is None


@denying('publish: { deny: "$JS.API.STREAM.>" }')
async def test_declaring_without_permission(server_for: ServerProcess) -> None:
    async with open_broker(config(server_for)) as broker:
        with trio.fail_after(AT_ONCE_S), pytest.raises(PermissionDenied) as caught:
            await broker.declare(TOPIC)
    assert caught.value.subject == "$JS.API.STREAM.INFO.Orders"


@denying('publish: { deny: "Orders" }')
async def test_granted_meanwhile(server_for: ServerProcess) -> None:
    """Nothing of a refusal is remembered: the server is asked each time."""
    async with open_broker(config(server_for)) as broker:
        publisher = broker.publisher()
        with pytest.raises(PublishForbidden):
            await publisher.publish(TOPIC, Order("x"))
        await trio.to_thread.run_sync(replace_config, server_for, 'deny: "Orders"', 'deny: "x"')
        assert (await publisher.publish(TOPIC, Order("x"))).stream == "Orders"


@denying('subscribe: { deny: "_INBOX.>" }')
async def test_answers_that_may_be_heard_again(server_for: ServerProcess) -> None:
    async with open_broker(config(server_for)) as broker:
        await connection_of(broker).flush()
        with pytest.raises(PublishForbidden):
            await broker.publisher().publish(TOPIC, Order("x"))
        await trio.to_thread.run_sync(replace_config, server_for, "_INBOX.>", "nothing")
        await wait_until(lambda: connection_of(broker).reconnects == 1)
        assert (await broker.publisher().publish(TOPIC, Order("x"))).stream == "Orders"


# ------------------------------------------------------------------ consumers


async def ack(order: Order) -> Outcome:
    return Outcome.ACK


@denying('publish: { deny: "$JS.API.CONSUMER.INFO.>" }')
async def test_a_group_that_may_not_look_for_its_durable(server_for: ServerProcess) -> None:
    async with open_broker(config(server_for)) as broker:
        group = broker.consumer_group()
        group.register(TOPIC, ack)
        with trio.fail_after(AT_ONCE_S), pytest.raises(PermissionDenied) as caught:
            await group.run_until(trio.sleep_forever)
    assert caught.value.subject == "$JS.API.CONSUMER.INFO.Orders.Orders-consumer"


async def ended(broker: Broker, topic: Topic[Order]) -> tuple[Run, list[str]]:
    """A group that ends by itself, and why. The others of the broker go on."""
    group = broker.consumer_group()
    group.register(topic, ack)
    async with running(group) as run:
        outcome = await run.end(within=10)
    assert outcome.errors
    assert outcome.exit_code == 1
    return run, list(outcome.reasons)


@denying('publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" }')
@pytest.mark.parametrize("topic", [TOPIC, LANES], ids=["plain", "sequenced"])
async def test_a_consumer_that_may_not_ask_for_messages(
    server_for: ServerProcess, topic: Topic[Order]
) -> None:
    async with open_broker(config(server_for)) as broker:
        _, reasons = await ended(broker, topic)
        assert any(
            "PermissionDenied" in reason and f"$JS.API.CONSUMER.MSG.NEXT.{topic.queue}" in reason
            for reason in reasons
        ), reasons
        assert connection_of(broker).reconnects == 0
        await broker.publisher().publish(TOPIC, Order("others go on"))


@denying('publish: { deny: "$JS.ACK.>" }')
async def test_a_consumer_that_may_not_acknowledge(server_for: ServerProcess) -> None:
    """It does not handle the same message again and again: it ends, and the message stays."""
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with open_broker(config(server_for)) as broker:
        await broker.publisher().publish(TOPIC, Order("x"))
        group = broker.consumer_group()
        group.register(TOPIC, handle)
        async with running(group) as run:
            await seen.until(1)
            outcome = await run.end(within=10)
        assert any("$JS.ACK.Orders.Orders-consumer" in reason for reason in outcome.reasons)
        assert seen.entries == ["x"]
    async with connect(config(server_for, "admin")) as js:
        assert (await js.stream_info("Orders")).messages == 1


@denying('publish: { deny: "$JS.ACK.Orders.>" }')
async def test_other_consumers_of_the_broker_go_on(server_for: ServerProcess) -> None:
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with open_broker(config(server_for)) as broker:
        async with consuming(broker, LANES, handle) as well:
            await broker.publisher().publish(TOPIC, Order("x"))
            await ended(broker, TOPIC)
            for number in range(6):
                await broker.publisher().publish(LANES, Order(str(number), key=str(number)))
            await seen.until(6)
            assert well.outcome is None


@denying('publish: { deny: "Orders-dlq" }')
async def test_pc078_a_dead_letter_queue_that_may_not_be_written(
    server_for: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The original stays, is tried again with growing pauses, and the reason is logged."""
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.REJECT if order.name == "bad" else Outcome.ACK

    with caplog.at_level(logging.WARNING):
        async with open_broker(config(server_for)) as broker:
            async with consuming(broker, TOPIC, handle) as run:
                await broker.publisher().publish(TOPIC, Order("bad"))
                await seen.until(2)
                await broker.publisher().publish(TOPIC, Order("well"))
                await seen.until(3)
                assert run.outcome is None
    async with connect(config(server_for, "admin")) as js:
        assert (await js.stream_info("Orders")).messages == 1
        assert (await js.stream_info("Orders-dlq")).messages == 0
    assert "'Orders-dlq'" in caplog.text
    assert PASSWORD not in caplog.text


@denying('subscribe: { deny: "$JS.EVENT.>" }')
async def test_advisories_are_a_luxury(server_for: ServerProcess) -> None:
    async with open_broker(config(server_for)) as broker:
        seen: Journal[str] = Journal()

        async def handle(order: Order) -> Outcome:
            seen.add(order.name)
            return Outcome.ACK

        async with consuming(broker, TOPIC, handle) as run:
            await broker.publisher().publish(TOPIC, Order("x"))
            await seen.until(1)
            assert run.outcome is None


# ------------------------------------------------------------------ what is needed


def allowing(publish: list[str], subscribe: list[str]) -> pytest.MarkDecorator:
    """Exactly what docs/configuration.md says."""
    lists = (", ".join(f'"{subject}"' for subject in names) for names in (publish, subscribe))
    return denying("publish: { allow: [%s] }, subscribe: { allow: [%s] }" % tuple(lists))  # noqa: UP031


@allowing(
    ["Orders", "lanes.shard.*", "$JS.API.STREAM.INFO.lanes"],
    ["_INBOX.>", "$JS.EVENT.ADVISORY.STREAM.UPDATED.lanes"],
)
async def test_what_publishers_need(server_for: ServerProcess) -> None:
    complaints: list[BackendEvent] = []
    async with open_broker(config(server_for)) as broker:
        broker.backend.listen(complaints.append)
        await broker.publisher().publish(TOPIC, Order("x"))
        await broker.publisher().publish(LANES, Order("x", key="k"))
        await connection_of(broker).flush()
    assert [event for event in complaints if event.kind == "error"] == []


@allowing(
    [
        *(
            subject
            for stream in ("Orders", "Orders-hold-200ms", "lanes")
            for subject in (
                f"$JS.API.CONSUMER.*.{stream}.>",
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.>",
                f"$JS.API.STREAM.INFO.{stream}",
                f"$JS.ACK.{stream}.>",
            )
        ),
        *(
            subject
            for stream in ("Orders", "lanes")
            for subject in (
                f"$JS.API.STREAM.*.{stream}-attempts",
                f"$JS.API.STREAM.MSG.GET.{stream}-attempts",
                f"{stream}-attempts.*",
            )
        ),
        "Orders",
        "Orders-hold-200ms",
        "Orders-dlq",
        "lanes.shard.*",
        "$JS.API.STREAM.INFO.KV_lanes-poison",
    ],
    ["_INBOX.>", "$JS.EVENT.ADVISORY.>"],
)
async def test_what_consumers_need(server_for: ServerProcess) -> None:
    complaints: list[BackendEvent] = []
    seen: Journal[str] = Journal()

    async def handle(order: Order, metadata: MessageMetadata) -> Outcome:
        seen.add(order.name)
        if order.name == "bad":
            return Outcome.REJECT
        return Outcome.RETRY if metadata.retry_count == 0 else Outcome.ACK

    async with open_broker(config(server_for)) as broker:
        broker.backend.listen(complaints.append)
        async with consuming(broker, TOPIC, handle), consuming(broker, LANES, handle):
            await broker.publisher().publish(TOPIC, Order("x"))
            await broker.publisher().publish(TOPIC, Order("bad"))
            await broker.publisher().publish(LANES, Order("y", key="k"))
            await seen.until(5)
    assert [event for event in complaints if event.kind == "error"] == []
    async with connect(config(server_for, "admin")) as js:
        assert (await js.stream_info("Orders")).messages == 0
        assert (await js.stream_info("Orders-dlq")).messages == 1


@allowing(
    [
        *(
            subject
            for stream in ("Orders-dlq", "Orders-hold-200ms")
            for subject in (
                f"$JS.API.CONSUMER.*.{stream}.>",
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.>",
                f"$JS.API.STREAM.INFO.{stream}",
                f"$JS.ACK.{stream}.>",
            )
        ),
        "$JS.API.STREAM.*.Orders-dlq-attempts",
        "$JS.API.STREAM.MSG.GET.Orders-dlq-attempts",
        "Orders-dlq-attempts.*",
        "Orders",
    ],
    ["_INBOX.>", "$JS.EVENT.ADVISORY.>"],
)
async def test_what_consumers_of_dead_letters_need(server_for: ServerProcess) -> None:
    complaints: list[BackendEvent] = []
    seen: Journal[str] = Journal()

    dying: Journal[str] = Journal()

    async def reject(order: Order) -> Outcome:
        dying.add(order.name)
        return Outcome.REJECT

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        if order.name == "again" and len(seen.entries) < 3:
            return Outcome.RETRY
        return Outcome.REJECT if order.name == "never" else Outcome.ACK

    async with open_broker(config(server_for, "admin")) as broker:
        async with consuming(broker, TOPIC, reject):
            names = ("well", "again", "never")
            await broker.publisher().publish_batch(TOPIC, [Order(name) for name in names])
            await dying.until(3)
    async with open_broker(config(server_for)) as broker:
        broker.backend.listen(complaints.append)
        group = broker.consumer_supervisor()
        group.register_dlq(TOPIC, handle, retry_delay=0.1)
        async with running(group):
            await seen.until(4)
    assert [event for event in complaints if event.kind == "error"] == []


@allowing(["$JS.API.STREAM.>"], ["_INBOX.>"])
async def test_what_declaring_needs(server_for: ServerProcess) -> None:
    complaints: list[BackendEvent] = []
    other = Topic(Order, TopologyBuilder("other").hold_queue(1).dlq().build())
    async with open_broker(config(server_for)) as broker:
        broker.backend.listen(complaints.append)
        await broker.declare(TOPIC, LANES, other)
    assert [event for event in complaints if event.kind == "error"] == []
