"""Nothing listens on a socket unless the application asks for it.

A process of its own does everything that the package does without being asked to serve anything:
broker, movers, group, autoscaler, audit, telemetry with a real SDK. Its sockets are read from the
kernel.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shove_actors.embedded import ServerProcess

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

PROGRAM = """
import sys

import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from shove_actors import NatsConfig, Outcome, Telemetry, Topic, TopologyBuilder, open_broker

topic = Topic(str, TopologyBuilder("listens").hold_queue(1).dlq().build())


async def main():
    handled = trio.Event()

    async def handle(message):
        handled.set()
        return Outcome.ACK

    telemetry = Telemetry(
        meter_provider=MeterProvider([InMemoryMetricReader()]), tracer_provider=TracerProvider()
    )
    async with open_broker(NatsConfig(sys.argv[1]), telemetry=telemetry) as broker:
        await broker.declare(topic)
        group = broker.consumer_group()
        group.register(topic, handle, consumers=(1, 3))
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            await broker.publisher().publish(topic, "x")
            await handled.wait()
            EXTRA
            print("ready", flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            group.stop()

trio.run(main)
"""

_LISTEN = "0A"


def sockets(pid: int) -> set[str]:
    """Inodes of a process's sockets."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def open_to_others(pid: int) -> tuple[list[str], int]:
    """Addresses at which the process can be reached (TCP listeners, any UDP), and its TCP links."""
    mine = sockets(pid)
    reachable, links = [], 0
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            local, state, inode = fields[1], fields[3], fields[9]
            if inode not in mine:
                continue
            if table.startswith("udp") or state == _LISTEN:
                reachable.append(f"{table} {local}")
            else:
                links += 1
    return reachable, links


def look_at(url: str, extra: str = "pass") -> tuple[list[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("EXTRA", extra), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = open_to_others(process.pid)
        process.communicate("\n", timeout=30)
        assert process.returncode == 0
        return found
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_nothing_listens_unless_asked(own_server: ServerProcess) -> None:
    reachable, links = look_at(own_server.url)
    assert reachable == []
    assert links == 1, "the one connection to the server"


@pytest.mark.parametrize(
    "extra",
    [
        "from prometheus_client import start_http_server; start_http_server(0, '127.0.0.1')",
        "listeners = await trio.open_tcp_listeners(0, host='127.0.0.1')",
    ],
    ids=["prometheus", "trio"],
)
def test_the_look_would_find_a_listener(own_server: ServerProcess, extra: str) -> None:
    reachable, _ = look_at(own_server.url, extra)
    assert len(reachable) == 1
    assert reachable[0].startswith("tcp 0100007F:")
