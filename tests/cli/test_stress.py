"""`shove-actors stress`: bounded in count and time, on a server and in memory."""

from __future__ import annotations

import os

import pytest
import trio

from shove_actors import MemoryConfig, jetstream
from shove_actors.cli._resources import cpu_seconds, resident_bytes
from shove_actors.cli._stress import HANDLERS, TIERS
from shove_actors.cli._stress_cell import WORK_S, Cell, measure
from shove_actors.embedded import ServerProcess

from .kit import Cli

pytestmark = pytest.mark.server


async def names(url: str) -> list[str]:
    async with jetstream.connect(url) as js:
        return [name async for name in js.stream_names()]


def test_a_grid_on_a_server_that_runs(cli: Cli, own_server: ServerProcess) -> None:
    found = cli.json(
        *("stress", "--url", own_server.url, "--handler", "zero", "--messages", "300"),
        *("--consumers", "1", "--consumers", "2", "--prefetch", "5", "--prefetch", "50"),
    )
    cells = found["cells"]
    assert [(c["consumers"], c["prefetch"]) for c in cells] == [(1, 5), (1, 50), (2, 5), (2, 50)]
    for cell in cells:
        assert cell["complete"] is True
        assert cell["handled"] == 300
        assert cell["repeated"] == 0
        assert cell["per_second"] > 0
        assert 0 < cell["dispatch"]["p50"] <= cell["dispatch"]["p99"] <= cell["dispatch"]["max"]
        assert cell["end_to_end"]["p50"] >= cell["dispatch"]["p50"]
        assert cell["cpu_percent"] > 0
        assert cell["memory_bytes"] > 0
    assert "nats-server" in found["backend"]
    assert trio.run(names, own_server.url) == []


def test_a_server_of_its_own_and_a_table(cli: Cli) -> None:
    text = cli.run("stress", "--handler", "fast", "--messages", "50", "--consumers", "1")
    head, _, columns, row = text.splitlines()
    assert head.startswith("nats-server ")
    assert "of its own" in head
    assert columns.split()[:3] == ["handler", "consumers", "prefetch"]
    assert row.split()[:4] == ["fast", "1", "20", "50"]


def test_time_is_bounded(cli: Cli) -> None:
    arguments = ("stress", "--memory", "--handler", "heavy", "--consumers", "1", "--messages", "99")
    [cell] = cli.json(*arguments, "--seconds", "0.2")["cells"]
    assert (cell["handled"], cell["complete"]) == (0, False)
    assert cell["dispatch"] == {}
    assert cell["seconds"] < 10
    text = cli.run(*arguments, "--seconds", "0.2")
    assert text.splitlines()[-1].startswith("* not all were handled")


async def test_serial_consumers_have_one_handler_each(autojump_clock: object) -> None:
    """Of a hundred handlers that take 50 to 300 ms, in virtual time."""

    async def took(concurrent: bool) -> float:
        cell = Cell(
            handler="slow",
            consumers=2,
            prefetch=10,
            messages=100,
            seconds=1000,
            concurrent=concurrent,
        )
        measured = await measure(cell, MemoryConfig(), "slow")
        assert measured.complete
        low = WORK_S["slow"][0]
        assert low <= measured.end_to_end["p50"]
        return measured.seconds

    assert await took(False) > 100 * 0.05 / 2
    assert await took(True) < 100 * 0.3 / 10


async def test_a_rate_spreads_what_is_published(autojump_clock: object) -> None:
    cell = Cell(handler="zero", consumers=1, prefetch=20, messages=200, seconds=100, rate=100.0)
    measured = await measure(cell, MemoryConfig(), "paced")
    assert measured.complete
    assert 1.9 < measured.seconds < 2.5
    # Nobody waits behind a burst.
    assert measured.dispatch["p99"] < 0.1


def test_tiers_are_the_source_systems() -> None:
    assert TIERS["moderate"].consumers == (1, 4, 8, 16, 32)
    assert TIERS["high"].messages == dict(
        zip(HANDLERS, (500_000, 100_000, 5_000, 100), strict=True)
    )
    assert TIERS["extreme"].consumers == (32, 64, 128, 256)
    assert WORK_S == {"zero": (0, 0), "fast": (0.001, 0.005), "slow": (0.05, 0.3), "heavy": (1, 5)}


def test_processor_time_and_memory_of_a_process() -> None:
    assert (cpu_seconds() or 0) > 0
    own = resident_bytes()
    assert own is not None
    assert own > 1 << 20
    if os.path.exists("/proc/self/stat"):
        assert (cpu_seconds(os.getpid()) or 0) > 0
        assert resident_bytes(os.getpid()) is not None
    assert cpu_seconds(2**22 + 1) is None
    assert resident_bytes(2**22 + 1) is None


@pytest.mark.parametrize(
    "wrong", [("--handler", "none"), ("--consumers", "0"), ("--tier", "ultra"), ("--rate", "x")]
)
def test_wrong_usage(cli: Cli, wrong: tuple[str, ...]) -> None:
    cli.error("stress", *wrong, code=2)
