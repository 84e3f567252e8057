"""`shove-actors server`: its URL is its first line, and a signal ends it."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
import trio

from shove_actors import jetstream

from .kit import LONG_S, Cli, started

pytestmark = pytest.mark.server


async def stream_on(url: str) -> None:
    async with jetstream.connect(url) as js:
        await js.create_stream(jetstream.StreamConfig(name="kept", subjects=("kept",)))


async def has_stream(url: str) -> bool:
    async with jetstream.connect(url) as js:
        return (await js.stream_info("kept")).config.name == "kept"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_the_store_outlives_the_server(number: signal.Signals, tmp_path: Path) -> None:
    arguments = ("server", "--port", "0", "--store", str(tmp_path))
    with started(*arguments) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        trio.run(stream_on, url)
        process.send_signal(number)
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
        assert (process.wait(timeout=LONG_S), err) == (0, "")
    assert f"JetStream in {tmp_path}, kept" in out
    with started(*arguments, "--json") as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert trio.run(has_stream, facts["url"])
        assert facts["kept"] is True
        process.terminate()
        assert process.wait(timeout=LONG_S) == 0


def test_without_a_store_nothing_is_left() -> None:
    with started("server", "--port", "0", "--json") as process:
        assert process.stdout is not None
        store = Path(json.loads(process.stdout.readline())["store"])
        assert store.exists()
        process.terminate()
        assert process.wait(timeout=LONG_S) == 0
    assert not store.exists()


def test_a_port_that_is_taken(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in cli.error("server", "--port", str(port), code=1)


def test_a_port_that_is_none(cli: Cli) -> None:
    assert "--port" in cli.error("server", "--port", "70000", code=2)
