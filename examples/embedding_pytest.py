# runnable
"""Inside pytest: a handler of yours, tested in virtual time and on a real server.

The plugin `shove_actors.testing.pytest_plugin` has the fixtures. `memory_config` and
`run_in_virtual_time` need no server and wait for no delay: an hour in a hold queue is over at once.
`nats_server` is a nats-server of the test run's own.

    python -m pytest -p shove_actors.testing.pytest_plugin examples/embedding_pytest.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from shove_actors import (
    MessageMetadata,
    NatsConfig,
    Outcome,
    Topic,
    TopologyBuilder,
    open_broker,
)

ORDERS = Topic(str, TopologyBuilder("orders").hold_queue(3600).dlq().build())


async def charge(order: str, metadata: MessageMetadata) -> Outcome:
    """What is tested: the bank does not answer the first time."""
    return Outcome.RETRY if order == "slow bank" and metadata.retry_count == 0 else Outcome.ACK


async def charged(config: Any, *orders: str) -> list[tuple[str, int]]:
    """What becomes of these orders: each attempt, with its retry count."""
    attempts: list[tuple[str, int]] = []
    done = trio.Event()

    async def handle(order: str, metadata: MessageMetadata) -> Outcome:
        outcome = await charge(order, metadata)
        attempts.append((order, metadata.retry_count))
        if outcome is Outcome.ACK:
            done.set()
        return outcome

    async with open_broker(config) as broker, trio.open_nursery() as nursery:
        await broker.declare(ORDERS)
        group = broker.consumer_group()
        group.register(ORDERS, handle)
        await nursery.start(group.serve)
        for order in orders:
            await broker.publisher().publish(ORDERS, order)
        await done.wait()
        group.stop()
    return attempts


def test_an_hour_later_in_no_time(
    memory_config: Callable[[str], Any], run_in_virtual_time: Callable[[Any], Any]
) -> None:
    found = run_in_virtual_time(lambda: charged(memory_config("shop"), "slow bank"))
    assert found == [("slow bank", 0), ("slow bank", 1)]


def test_on_a_real_server(nats_server: Any) -> None:
    assert trio.run(charged, NatsConfig(nats_server.url), "tea") == [("tea", 0)]


if __name__ == "__main__":
    plugin = "shove_actors.testing.pytest_plugin"
    alone = ["-o", "addopts=", "-p", "no:cacheprovider"]  # whatever this project's own settings are
    raise SystemExit(pytest.main(["-q", "-p", plugin, *alone, __file__]))
