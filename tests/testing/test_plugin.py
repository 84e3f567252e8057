"""The pytest plugin and the strategies, as a user's project has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from shove_actors.messaging import shard_of
from shove_actors.testing import FaultPlan, strategies

CONFTEST = 'pytest_plugins = ["shove_actors.testing.pytest_plugin"]\n'
TESTS = """
import trio
from shove_actors import Outcome, Topic, TopologyBuilder, open_broker, NatsConfig

ORDERS = Topic(dict, TopologyBuilder("q").hold_queue(60).dlq().build())

async def flow(config):
    seen, done = [], trio.Event()
    async def handle(order):
        seen.append(order["n"])
        if len(seen) == 2:
            done.set()
            return Outcome.ACK
        return Outcome.RETRY
    async with open_broker(config) as broker, trio.open_nursery() as nursery:
        await broker.declare(ORDERS)
        group = broker.consumer_group()
        group.register(ORDERS, handle)
        await nursery.start(group.serve)
        await broker.publisher().publish(ORDERS, {"n": 1})
        await done.wait()
        group.stop()
    return seen

def test_memory(memory_config, run_in_virtual_time):
    assert run_in_virtual_time(lambda: flow(memory_config("w"))) == [1, 1]

def test_server(nats_server):
    async def connects():
        async with open_broker(NatsConfig(nats_server.url)) as broker:
            await broker.declare(ORDERS)
    trio.run(connects)

def test_both(nats_server, run_in_virtual_time):
    raise AssertionError("refused before it runs")
"""


def test_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_them.py").write_text(TESTS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": str(Path(sys.executable).parent),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "2 passed, 1 error" in done.stdout or "1 failed, 2 passed" in done.stdout, done.stdout
    assert "cannot be combined with nats_server" in done.stdout


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(key=strategies.keys(), shards=strategies.shard_counts(), plan=strategies.fault_plans())
def test_strategies_make_what_they_say(key: str, shards: int, plan: FaultPlan) -> None:
    assert 0 <= shard_of(key, shards) < shards
    assert repr(plan).startswith("FaultPlan(")
