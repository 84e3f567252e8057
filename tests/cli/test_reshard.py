"""`shove-actors reshard`: what it says, its exit codes, and what becomes of it when it is ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from shove_actors import (
    Broker,
    NatsConfig,
    Outcome,
    ReshardUnderWay,
    SequencedTopic,
    SequenceFailure,
    TopologyBuilder,
    jetstream,
    open_broker,
)
from shove_actors.embedded import ServerProcess
from shove_actors.messaging import layout_of

pytestmark = pytest.mark.server

SOON_S = 20.0


def topic(queue: str, shards: int) -> SequencedTopic[str]:
    return SequencedTopic(
        str,
        key=lambda text: text,
        topology=TopologyBuilder(queue)
        .sequenced(SequenceFailure.SKIP)
        .routing_shards(shards)
        .hold_queue(1)
        .dlq()
        .build(),
    )


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shove_actors", "reshard", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


async def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    with trio.fail_after(SOON_S):
        out, err = await trio.to_thread.run_sync(process.communicate)
    assert "Traceback" not in err
    return process.returncode, out, err


async def until_closed(url: str, queue: str, closed: bool = True) -> None:
    async with jetstream.connect(url) as js:
        with trio.fail_after(SOON_S):
            while True:
                subjects = (await js.stream_info(queue)).config.subjects
                if (layout_of(queue, subjects).under_way is not None) is closed:
                    return
                await trio.sleep(0.01)


@asynccontextmanager
async def consumers(broker: Broker, of: SequencedTopic[str]) -> Any:
    async def handle(text: str) -> Outcome:
        return Outcome.ACK

    group = broker.consumer_group()
    group.register(of, handle)
    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        yield
        group.stop()


def arguments(url: str, queue: str, shards: int, timeout: float = 15) -> list[str]:
    return ["--url", url, "--queue", queue, "--shards", str(shards), "--timeout", str(timeout)]


async def test_done(server: ServerProcess, fresh_queue: Callable[[], str]) -> None:
    queue = fresh_queue()
    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic(queue, 4))
        async with consumers(broker, topic(queue, 4)):
            await broker.publisher().publish(topic(queue, 4), "a")
            code, out, _ = await end(start(*arguments(server.url, queue, 2)))
        assert code == 0
        assert out == f"{queue}: 4 shards -> 2, 2 durables without a shard deleted\n"
        code, out, _ = await end(start(*arguments(server.url, queue, 2)))
        assert (code, out) == (0, f"{queue}: 2 shards -> 2\n")


async def test_not_drained(server: ServerProcess, fresh_queue: Callable[[], str]) -> None:
    queue = fresh_queue()
    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic(queue, 2))
        await broker.publisher().publish(topic(queue, 2), "a")
        code, _, err = await end(start(*arguments(server.url, queue, 4, timeout=1.5)))
        assert code == 4
        assert "still had 1 messages" in err
        await broker.publisher().publish(topic(queue, 2), "a")


async def test_errors(server: ServerProcess, fresh_queue: Callable[[], str]) -> None:
    assert (await end(start(*arguments("nats://127.0.0.1:1", "q", 4))))[0] == 1
    code, _, err = await end(start(*arguments(server.url, fresh_queue(), 4)))
    assert (code, "declare it first" in err) == (2, True)
    assert (await end(start("--queue", "q", "--shards", "0", "--url", server.url)))[0] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_it_goes_back(
    server: ServerProcess, fresh_queue: Callable[[], str], number: signal.Signals
) -> None:
    queue = fresh_queue()
    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic(queue, 2))
        await broker.publisher().publish(topic(queue, 2), "a")
        process = start(*arguments(server.url, queue, 4))
        await until_closed(server.url, queue)
        process.send_signal(number)
        assert (await end(process))[0] == 130
        await broker.publisher().publish(topic(queue, 2), "b")


@pytest.mark.parametrize("drained", [False, True])
async def test_killed_it_is_completed_by_running_it_again_or_by_declaring(
    server: ServerProcess, fresh_queue: Callable[[], str], drained: bool
) -> None:
    """It stays closed for a second at least, so here it dies before it opens the stream again."""
    queue = fresh_queue()
    async with open_broker(NatsConfig(server.url)) as broker:
        await broker.declare(topic(queue, 2))
        if not drained:
            await broker.publisher().publish(topic(queue, 2), "a")
        process = start(*arguments(server.url, queue, 4))
        await until_closed(server.url, queue)
        process.kill()
        await trio.to_thread.run_sync(process.communicate)
        await until_closed(server.url, queue)
        with pytest.raises(ReshardUnderWay):
            await broker.publisher().publish(topic(queue, 2), "b")
        async with open_broker(NatsConfig(server.url)) as other:
            if drained:
                await other.declare(topic(queue, 4))
            else:
                async with consumers(broker, topic(queue, 2)):
                    assert (await end(start(*arguments(server.url, queue, 4))))[0] == 0
            await other.publisher().publish(topic(queue, 4), "b")
        await until_closed(server.url, queue, closed=False)
