"""`shove-actors doctor`: on servers that are well, and on such that are not."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from shove_actors import jetstream
from shove_actors.backends.nats import _features
from shove_actors.cli import _checkup
from shove_actors.cli._monitor import Monitored, look
from shove_actors.embedded import ServerProcess

from .kit import Cli

pytestmark = pytest.mark.server


def by_check(report: Any) -> dict[str, Any]:
    return {finding["check"]: finding for finding in report["findings"]}


@contextmanager
def monitored(config: str | None = None) -> Iterator[tuple[ServerProcess, str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ServerProcess(config=config, extra_args=["-m", str(port)]) as server:
        yield server, f"http://127.0.0.1:{port}"


def test_a_server_that_is_well_and_what_a_client_cannot_see(
    cli: Cli, server: ServerProcess
) -> None:
    report = cli.json("doctor", "--url", server.url)
    found = by_check(report)
    assert report["ok"] is True
    assert {name: each["status"] for name, each in found.items() if name != "memory streams"} == {
        "client": "ok",
        "server": "ok",
        "round trip": found["round trip"]["status"],
        "features": "ok",
        "limits": "ok",
        "clock": "ok",
        "streams": "ok",
        "sync_interval": "unknown",
    }
    assert "a client cannot see it" in found["sync_interval"]["value"]
    assert "--monitor" in found["sync_interval"]["fix"]


def test_the_default_of_the_server_can_lose_what_it_acknowledged(cli: Cli) -> None:
    with monitored() as (server, page):
        arguments = ("doctor", "--url", server.url, "--monitor", page)
        found = by_check(cli.json(*arguments))
        assert found["sync_interval"]["status"] == "warn"
        assert found["sync_interval"]["value"] == "flushed to the disk every 120 s"
        assert "sync_interval: always" in found["sync_interval"]["fix"]
        assert "monitor" not in found
        cli.json(*arguments, "--strict", code=4)
        text = cli.run(*arguments)
    assert "WARN  sync_interval" in text
    assert "-> set `jetstream { sync_interval: always }`" in text


def test_a_server_that_flushes_always(cli: Cli) -> None:
    with monitored("jetstream { sync_interval: always }") as (server, page):
        found = by_check(cli.json("doctor", "--url", server.url, "--monitor", page, "--strict"))
    assert found["sync_interval"]["status"] == "ok"


def test_the_monitor_of_another_server(cli: Cli, server: ServerProcess) -> None:
    with monitored() as (_, page):
        found = by_check(cli.json("doctor", "--url", server.url, "--monitor", page))
    assert found["monitor"]["status"] == "warn"


def test_no_server(cli: Cli) -> None:
    found = by_check(cli.json("doctor", "--url", "nats://127.0.0.1:1", code=1))
    assert found["connection"]["status"] == "fail"
    assert "shove-actors server" in found["connection"]["fix"]


def test_no_jetstream(cli: Cli) -> None:
    with ServerProcess(jetstream=False) as server:
        found = by_check(cli.json("doctor", "--url", server.url, code=1))
    assert found["JetStream"]["status"] == "fail"
    assert "-js" in found["JetStream"]["fix"]


@pytest.mark.parametrize("page", ["http://127.0.0.1:1", "127.0.0.1:8222"])
def test_no_monitor(cli: Cli, server: ServerProcess, page: str) -> None:
    code = 1 if page.startswith("http") else 2
    assert "8222" in cli.error("doctor", "--url", server.url, "--monitor", page, code=code)


def test_memory_streams_and_limits(cli: Cli) -> None:
    config = """
    jetstream: enabled
    accounts: {A: {jetstream: {max_streams: 2}, users: [{user: a, password: secret-word}]}}
    """
    with ServerProcess(config=config) as server:
        url = server.url.replace("//", "//a:secret-word@")

        async def streams() -> None:
            async with jetstream.connect(url) as js:
                for name in ("one", "two"):
                    await js.create_stream(
                        jetstream.StreamConfig(name=name, subjects=(name,), storage="memory")
                    )

        trio.run(streams)
        text = cli.run("doctor", "--url", url)
        found = by_check(cli.json("doctor", "--url", url))
    assert found["memory streams"]["value"] == "one, two"
    assert found["limits"]["meaning"] == "streams is 100% used"
    assert "secret-word" not in text


async def test_an_old_server(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged as if everything needed a version to come; on the real one in `nox -s old_server`."""
    future = {
        name: replace(value, since=(99, 0, 0))
        for name, value in vars(_features).items()
        if isinstance(value, _features.Feature)
    }
    for name, value in future.items():
        monkeypatch.setattr(_features, name, value)
    monkeypatch.setattr(_checkup, "TELLS_TIME", (99, 0, 0))
    async with jetstream.connect(server.url) as js:
        found = {f.check: f for f in await _checkup.examine(js, None)}
    missing = [f for name, f in found.items() if name.startswith("feature: ")]
    assert len(missing) == len(future)
    assert all(f.meaning and f.fix and f.value.endswith("99.0.0") for f in missing)
    assert {f.status for f in missing} == {"fail", "warn"}
    assert found["clock"].status == "unknown"


async def test_a_monitor_that_says_nothing_of_the_disk(server: ServerProcess) -> None:
    async with jetstream.connect(server.url) as js:
        silent = Monitored(
            server_id=js.connection.server_id,
            server_name="s",
            version="2.9.10",
            sync_s=None,
            sync_always=False,
            store_dir="",
            slow_consumers=3,
            cluster_size=1,
        )
        found = {f.check: f for f in await _checkup.examine(js, silent)}
    assert found["sync_interval"].status == "unknown"
    assert found["slow consumers"].status == "warn"


async def test_what_the_endpoint_says() -> None:
    with monitored() as (server, page):
        seen = await look(page)
        async with jetstream.connect(server.url) as js:
            assert seen.server_id == js.connection.server_id
        assert seen.store_dir.startswith(str(server.store_dir))


def test_streams_are_counted(
    cli: Cli, own_server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    names = [fresh_queue() for _ in range(3)]

    async def streams() -> None:
        async with jetstream.connect(own_server.url) as js:
            for name in names:
                await js.create_stream(jetstream.StreamConfig(name=name, subjects=(name,)))

    trio.run(streams)
    assert by_check(cli.json("doctor", "--url", own_server.url))["streams"]["value"] == "3"


@pytest.mark.parametrize("url", ["nats://h:port", "nats://", "http://x", "", "nats://[::1"])
def test_an_address_that_is_none_is_wrong_usage(cli: Cli, url: str) -> None:
    cli.error("doctor", "--url", url, code=2)


@pytest.mark.parametrize(
    "url", ["h:8222", "http://", "http://h:port", "http://h:99999", "http://x y", "http://[::1"]
)
def test_a_monitoring_address_that_is_none_is_wrong_usage(cli: Cli, url: str) -> None:
    assert "give an address such as" in cli.error("doctor", "--monitor", url, code=2)
