"""What a shard costs in one process: `python examples/bench/shards_cost.py [8 64 256]`.

For each number of shards: a fresh nats-server of its own, one process with a consumer group of one
sequenced topic, nothing to do. Measured are

    tasks       Trio tasks that the group adds, and per shard
    subs        the connection's subscriptions on the server
    memory      resident memory that the group adds, per shard (KiB), and the server's
    open        seconds from `group.serve` until every consumer is ready; the durables are made
    again       the same with the durables there
    close       seconds from `stop` until the group has ended
    idle CPU    of one core, over `IDLE_S` seconds, of this process and of the server
    messages    per second that the server sends to this connection, and gets from it, while idle

Idle means no messages for handlers: what is left is heartbeats of the pulls, their renewal, PINGs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psutil
import trio

from shove_actors import (
    RAW,
    Broker,
    NatsConfig,
    Outcome,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    embedded_server,
    open_broker,
)

IDLE_S: Final = 30.0
#: The first pulls, probes and renewals are over after this long.
SETTLE_S: Final = 2.0
MONITOR: Final = "http: 127.0.0.1:-1\n"


@dataclass(kw_only=True)
class Cost:
    shards: int
    tasks: int
    subs: int
    memory_kib: float
    server_kib: float
    open_s: float
    again_s: float
    close_s: float
    cpu: float
    server_cpu: float
    sent: float
    received: float


def topic(shards: int) -> SequencedTopic[bytes]:
    return SequencedTopic(
        bytes,
        key=lambda payload: payload.decode(),
        codec=RAW,
        topology=TopologyBuilder("cost")
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(shards)
        .hold_queue(1)
        .dlq()
        .build(),
    )


async def handle(payload: bytes) -> Outcome:
    return Outcome.ACK


@asynccontextmanager
async def consumers(broker: Broker, shards: int) -> AsyncIterator[float]:
    """How long it took until all were ready."""
    group = broker.consumer_group()
    group.register(topic(shards), handle)
    async with trio.open_nursery() as nursery:
        begun = time.perf_counter()
        await nursery.start(partial(group.serve, drain_timeout=5.0))
        yield time.perf_counter() - begun
        group.stop()


async def measure(shards: int) -> Cost:
    me = psutil.Process()
    async with embedded_server(config=MONITOR) as server:
        monitor = await trio.to_thread.run_sync(monitor_of, server.pid)
        assert server.pid is not None
        its = psutil.Process(server.pid)
        async with open_broker(NatsConfig(server.url, name="cost")) as broker:
            await broker.declare(topic(shards))
            tasks = trio.lowlevel.current_statistics().tasks_living
            memory, server_memory = me.memory_info().rss, its.memory_info().rss
            async with consumers(broker, shards) as open_s:
                await trio.sleep(SETTLE_S)
                added = trio.lowlevel.current_statistics().tasks_living - tasks
                grown = (me.memory_info().rss - memory) / 1024
                server_grown = (its.memory_info().rss - server_memory) / 1024
                before = await trio.to_thread.run_sync(connection, monitor)
                cpu, server_cpu = sum(me.cpu_times()[:2]), sum(its.cpu_times()[:2])
                await trio.sleep(IDLE_S)
                cpu = (sum(me.cpu_times()[:2]) - cpu) / IDLE_S
                server_cpu = (sum(its.cpu_times()[:2]) - server_cpu) / IDLE_S
                after = await trio.to_thread.run_sync(connection, monitor)
                begun = time.perf_counter()
            close_s = time.perf_counter() - begun
            async with consumers(broker, shards) as again_s:
                pass
    return Cost(
        shards=shards,
        tasks=added,
        subs=after["subscriptions"],
        memory_kib=grown / shards,
        server_kib=server_grown / shards,
        open_s=open_s,
        again_s=again_s,
        close_s=close_s,
        cpu=cpu,
        server_cpu=server_cpu,
        sent=(after["out_msgs"] - before["out_msgs"]) / IDLE_S,
        received=(after["in_msgs"] - before["in_msgs"]) / IDLE_S,
    )


def monitor_of(pid: int | None) -> str:
    """The address of its monitoring page: the port of the process that is not for clients."""
    assert pid is not None
    for _ in range(100):
        for found in psutil.Process(pid).net_connections(kind="tcp"):
            if found.status == psutil.CONN_LISTEN:
                url = f"http://127.0.0.1:{found.laddr.port}"
                try:
                    with urllib.request.urlopen(f"{url}/healthz", timeout=2):
                        return url
                except (OSError, http.client.HTTPException):
                    continue
        time.sleep(0.05)
    sys.exit("the server has no monitoring page")


def connection(monitor: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{monitor}/connz", timeout=5) as answer:
        [mine] = [c for c in json.load(answer)["connections"] if c.get("name") == "cost"]
        return dict(mine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=int, nargs="*", default=[8, 64, 256])
    options = parser.parse_args()
    print("shards tasks /shard  subs  KiB/shard (server)  open s again s close s  CPU % (server)  "
          "msg/s to us, from us")  # fmt: skip
    for shards in options.shards:
        c = trio.run(measure, shards)
        print(
            f"{c.shards:>6} {c.tasks:>5} {c.tasks / c.shards:>6.2f} {c.subs:>5} "
            f"{c.memory_kib:>10.1f} ({c.server_kib:>6.1f}) {c.open_s:>7.2f} {c.again_s:>7.2f} "
            f"{c.close_s:>7.2f} {100 * c.cpu:>6.2f} ({100 * c.server_cpu:>6.2f}) "
            f"{c.sent:>9.2f}, {c.received:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
