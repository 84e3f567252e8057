"""What a keyed topic needs of the server's permissions, and what is said when something is missing.

Of topics that are not keyed: `tests/backends/test_nats_permissions.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from shove_actors import (
    NatsConfig,
    Outcome,
    PermissionDenied,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends import BackendEvent
from shove_actors.backends.nats import NatsBackend
from shove_actors.embedded import ServerProcess
from tests.runtime.world import Journal, Order, consuming, running
from tests.support import wait_until

pytestmark = pytest.mark.server

PASSWORD = "perm1ssi0n-secret"
KEYED = SequencedTopic(
    Order,
    key=lambda order: order.key,
    topology=TopologyBuilder("keys")
    .sequenced(SequenceFailure.SKIP)
    .routing_shards(1)
    .keyed(max_in_flight=8)
    .allow_message_loss()
    .build(),
)


def config(process: ServerProcess, user: str = "user") -> NatsConfig:
    return NatsConfig(
        process.url,
        username=user,
        password=PASSWORD,
        reconnect_wait=0.02,
        reconnect_jitter=0.0,
    )


@pytest.fixture
def server_for(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server with an almighty `admin`, and with `user`, who has these permissions."""
    text = f"""
        authorization {{ users: [
            {{ user: admin, password: "{PASSWORD}" }}
            {{ user: user, password: "{PASSWORD}", permissions: {{ {request.param} }} }}
        ] }}
    """
    with ServerProcess(config=text) as process:
        trio.run(_declare, process)
        yield process


async def _declare(process: ServerProcess) -> None:
    async with open_broker(config(process, "admin")) as broker:
        await broker.declare(KEYED)
        await broker.publisher().publish(KEYED, Order("first", key="k"))


def denying(*subjects: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "server_for",
        ['publish: { deny: "%s" }' % subject for subject in subjects],  # noqa: UP031
        indirect=True,
        ids=[subject.removeprefix("$JS.API.") for subject in subjects],
    )


async def ack(order: Order) -> Outcome:
    return Outcome.ACK


@denying(
    "$KV.keys-owners.>",
    "$JS.API.STREAM.MSG.GET.KV_keys-owners",
    "$JS.API.CONSUMER.RESET.>",
    "$JS.API.CONSUMER.MSG.NEXT.>",
)
async def test_a_shard_that_may_not_be_owned_ends_its_group(server_for: ServerProcess) -> None:
    async with open_broker(config(server_for)) as broker:
        group = broker.consumer_group()
        group.register(KEYED, ack)
        async with running(group) as run:
            outcome = await run.end(within=20)
        assert outcome.exit_code == 1
        assert any("PermissionDenied" in reason for reason in outcome.reasons), outcome.reasons
    assert PASSWORD not in str(outcome.reasons)


@denying("$JS.API.STREAM.INFO.KV_keys-owners")
async def test_a_group_that_may_not_look_for_the_bucket(server_for: ServerProcess) -> None:
    async with open_broker(config(server_for)) as broker:
        group = broker.consumer_group()
        group.register(KEYED, ack)
        with trio.fail_after(10), pytest.raises(PermissionDenied) as caught:
            await group.run_until(trio.sleep_forever)
    assert caught.value.subject == "$JS.API.STREAM.INFO.KV_keys-owners"


@denying("$JS.API.STREAM.MSG.GET.keys")
async def test_what_is_in_doubt_may_not_be_looked_for(server_for: ServerProcess) -> None:
    """After a connection was lost the stream is asked what was acknowledged: unless it was proven
    in the meantime, so it is tried some times."""
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with open_broker(config(server_for)) as broker:
        backend = broker.backend
        assert isinstance(backend, NatsBackend)
        group = broker.consumer_group()
        group.register(KEYED, handle)
        async with running(group) as run:
            for number in range(10):
                await seen.until(number + 1)
                await backend.connection.flush()
                backend.connection.drop_session("the test says so")
                await backend.wait_connected()
                with trio.move_on_after(2.0):
                    await run.ended.wait()
                if run.ended.is_set():
                    break
                await broker.publisher().publish(KEYED, Order(str(number), key="k"))
            outcome = await run.end(within=20)
    assert any("STREAM.MSG.GET.keys" in reason for reason in outcome.reasons), outcome.reasons


@denying("$JS.API.CONSUMER.UNPIN.>")
async def test_handing_on_without_a_permission_is_said(
    server_for: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The shard is handed on all the same; the next one has to wait until the pin lapses."""
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with open_broker(config(server_for)) as broker:
        async with consuming(broker, KEYED, handle):
            await seen.until(1)
    assert caplog.text.count("cannot be handled: permissions violation") == 1


#: Exactly what docs/configuration.md says.
PUBLISH = (
    "$JS.API.CONSUMER.*.keys.>",
    "$JS.API.CONSUMER.MSG.NEXT.keys.>",
    "$JS.API.STREAM.INFO.keys",
    "$JS.ACK.keys.>",
    "keys.shard.*",
    "keys-attempts.*",
    "$JS.API.STREAM.*.keys-attempts",
    "$JS.API.STREAM.MSG.GET.keys-attempts",
    "$JS.API.STREAM.INFO.KV_keys-poison",
    "$KV.keys-owners.>",
    "$JS.API.STREAM.*.KV_keys-owners",
    "$JS.API.STREAM.MSG.*.KV_keys-owners",
    "$JS.API.STREAM.MSG.GET.keys",
)
ALLOWED = "publish: {{ allow: [{}] }}, subscribe: {{ allow: [{}] }}".format(
    ", ".join(f'"{subject}"' for subject in PUBLISH), '"_INBOX.>", "$JS.EVENT.ADVISORY.>"'
)


@pytest.mark.slow
@pytest.mark.parametrize("server_for", [ALLOWED], indirect=True, ids=["allowed"])
async def test_what_consumers_of_a_keyed_topic_need(server_for: ServerProcess) -> None:
    """Two processes that share the shard, a lost connection, a deleted bucket, and a hand-over."""
    complaints: list[BackendEvent] = []
    seen: Journal[str] = Journal()

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.ACK

    async with (
        open_broker(config(server_for)) as one,
        open_broker(config(server_for)) as two,
        open_broker(config(server_for, "admin")) as admin,
    ):
        one.backend.listen(complaints.append)
        two.backend.listen(complaints.append)
        async with consuming(two, KEYED, handle, ack_wait=2.0):
            async with consuming(one, KEYED, handle, ack_wait=2.0):
                await seen.until(1)
                for broker in (one, two):
                    assert isinstance(broker.backend, NatsBackend)
                    broker.backend.connection.drop_session("the test says so")
                await admin.publisher().publish(KEYED, Order("second", key="k"))
                await seen.until(2)
                assert isinstance(admin.backend, NatsBackend)
                await admin.backend.js.delete_stream("KV_keys-owners")
                await admin.publisher().publish(KEYED, Order("third", key="k"))
                await seen.until(3)
            await admin.publisher().publish(KEYED, Order("fourth", key="k"))
            await wait_until(lambda: "fourth" in seen.entries, timeout=20)
    denied = [event for event in complaints if isinstance(event.error, PermissionDenied)]
    assert denied == []
