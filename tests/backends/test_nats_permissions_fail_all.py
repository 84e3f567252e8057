"""What consumers of a FAIL_ALL topic need of the server, and how they do without some of it."""

from __future__ import annotations

import pytest
import trio

from shove_actors import (
    Broker,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    open_broker,
)
from shove_actors.backends import BackendEvent
from shove_actors.embedded import ServerProcess
from tests.runtime.replaying import until_released
from tests.runtime.world import Journal, Order, consuming

from .test_nats_permissions import allowing, config
from .test_nats_permissions import server_for as server_for

pytestmark = pytest.mark.server

LEDGER = SequencedTopic(
    Order,
    key=lambda order: order.key,
    topology=TopologyBuilder("ledger")
    .sequenced(SequenceFailure.FAIL_ALL)
    .routing_shards(1)
    .hold_queue(0.2)
    .dlq()
    .build(),
)

CONSUMERS = [
    "$JS.API.CONSUMER.*.ledger.>",
    "$JS.API.CONSUMER.MSG.NEXT.ledger.>",
    "$JS.API.STREAM.INFO.ledger",
    "$JS.ACK.ledger.>",
    "$JS.API.STREAM.*.ledger-attempts",
    "$JS.API.STREAM.MSG.GET.ledger-attempts",
    "ledger-attempts.*",
    "ledger.shard.*",
    "ledger-dlq",
    "$JS.API.STREAM.INFO.KV_ledger-poison",
    "$KV.ledger-poison.>",
    "$JS.API.STREAM.MSG.GET.KV_ledger-poison",
]
REPLAYS = [
    "$JS.API.STREAM.INFO.ledger-dlq",
    "$JS.API.STREAM.MSG.GET.ledger-dlq",
    "$JS.API.STREAM.MSG.DELETE.ledger-dlq",
    "$JS.API.CONSUMER.*.ledger-dlq.>",
    "$JS.API.CONSUMER.MSG.NEXT.ledger-dlq.>",
]
WATCHING = ["_INBOX.>", "$JS.EVENT.ADVISORY.>", "$KV.ledger-poison.>"]


async def _until_dead(admin: Broker, count: int) -> None:
    with trio.fail_after(10):
        while await admin.backend.last_sequence("ledger-dlq") < count:  # noqa: ASYNC110
            await trio.sleep(0.02)


async def _poison_and_replay(process: ServerProcess) -> list[str]:
    """What the server has complained about; asserts that everything worked."""
    complaints: list[BackendEvent] = []
    seen: Journal[str] = Journal()
    mended = False

    async def handle(order: Order) -> Outcome:
        seen.add(order.name)
        return Outcome.REJECT if order.name == "bad" and not mended else Outcome.ACK

    async with open_broker(config(process, "admin")) as admin:
        await admin.declare(LEDGER)
        async with open_broker(config(process)) as broker:
            broker.backend.listen(complaints.append)
            async with consuming(broker, LEDGER, handle):
                for name in ("1", "bad", "2"):
                    await broker.publisher().publish(LEDGER, Order(name, "k"))
                await _until_dead(admin, 2)
                mended = True
                assert await admin.release(LEDGER, "k", replay=True)
                await until_released(admin, LEDGER)
    assert seen.entries == ["1", "bad", "bad", "2"]
    return [event.detail for event in complaints if event.kind == "error"]


@allowing([*CONSUMERS, *REPLAYS], WATCHING)
async def test_what_consumers_of_fail_all_need(server_for: ServerProcess) -> None:
    assert await _poison_and_replay(server_for) == []


@allowing([*CONSUMERS, *REPLAYS[1:3], "$JS.API.STREAM.INFO.ledger-dlq"], WATCHING[:2])
async def test_letters_are_read_one_by_one_where_no_reader_may_be_made(
    server_for: ServerProcess,
) -> None:
    """And who may not watch the bucket consumes all the same; it is said."""
    complaints = await _poison_and_replay(server_for)
    assert any("$KV.ledger-poison.>" in text for text in complaints)
    assert any("$JS.API.CONSUMER.CREATE.ledger-dlq" in text for text in complaints)


@allowing(CONSUMERS, WATCHING)
async def test_keys_are_poisoned_where_the_dead_letters_may_not_be_looked_at(
    server_for: ServerProcess,
) -> None:
    """Where their queue ends stays unknown; a replay would need more."""
    async with open_broker(config(server_for, "admin")) as admin:
        await admin.declare(LEDGER)
        async with open_broker(config(server_for)) as broker:

            async def reject(order: Order) -> Outcome:
                return Outcome.REJECT

            async with consuming(broker, LEDGER, reject):
                await broker.publisher().publish(LEDGER, Order("bad", "k"))
                await _until_dead(admin, 1)
                assert [found.key for found in await admin.poisoned(LEDGER)] == ["k"]
