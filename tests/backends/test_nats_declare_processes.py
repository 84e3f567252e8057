"""Eight real processes declare at once, from nothing: whoever is first, all of them succeed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import trio

from shove_actors.embedded import ServerProcess
from shove_actors.jetstream import JetStream, connect

PROGRAM = """
import sys
import trio
from shove_actors import (
    NatsConfig, NatsStreamConfig, SequencedTopic, SequenceFailure, Topic, TopologyBuilder,
    TopologyError, open_broker,
)

url, queue, number = sys.argv[1:]
settings = NatsStreamConfig(max_messages=1000, max_age=3600)
plain = Topic(
    str,
    TopologyBuilder(queue).hold_queue(1).hold_queue(5).dlq().nats_stream_config(settings).build(),
)
lanes = SequencedTopic(
    str,
    key=lambda text: text,
    topology=TopologyBuilder(queue + "-lanes")
    .sequenced(SequenceFailure.FAIL_ALL).routing_shards(4).hold_queue(1).dlq().build(),
)

async def main():
    async with open_broker(NatsConfig(url)) as broker:
        print("ready", flush=True)
        sys.stdin.readline()
        await broker.declare(plain, lanes)
        await broker.publisher().publish(plain, number)
        await broker.publisher().publish(lanes, number)
        print("stored", flush=True)

trio.run(main)
"""


@pytest.mark.limit(120)
async def test_from_nothing(server: ServerProcess, fresh_queue: Callable[[], str]) -> None:
    queue = fresh_queue()
    outputs = await trio.to_thread.run_sync(_run_eight, server.url, queue)
    assert outputs == ["ready\nstored\n"] * 8
    async with connect(server.url) as js:
        names = [name async for name in js.stream_names() if queue in name]
        lanes = f"{queue}-lanes"
        assert sorted(names) == sorted(
            [
                *(queue + end for end in ("", "-dlq", "-hold-1s", "-hold-5s")),
                *(lanes + end for end in ("", "-dlq", "-hold-1s")),
                f"KV_{lanes}-poison",
            ]
        )
        assert await _messages(js, queue) == 8
        assert await _messages(js, lanes) == 8
        assert len((await js.stream_info(lanes)).config.subjects) == 4


async def _messages(js: JetStream, name: str) -> int:
    return (await js.stream_info(name)).messages


def _run_eight(url: str, queue: str) -> list[str]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, queue, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    outputs = []
    try:
        for process in processes:
            assert process.stdout is not None
            outputs.append(process.stdout.readline())
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for number, process in enumerate(processes):
            rest, _ = process.communicate(timeout=60)
            assert process.returncode == 0
            outputs[number] += rest
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    return outputs
