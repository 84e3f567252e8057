"""The demonstration as a user starts it: real processes, a real server, real kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shove_actors.cli._flights import expected, read_flights
from shove_actors.cli._journal import Ended, Started, read_all
from tests.support import wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.server


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "shove_actors", "demo", "--plain", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=170
    )


def table(output: str) -> dict[str, str]:
    found = re.findall(r"^  ([a-z-][^.]*?) \.+ +(\S.*)$", output, re.MULTILINE)
    return dict(found)


def numbers(count: int) -> dict[str, str]:
    wanted = expected(read_flights(count))
    return {
        "published": f"{wanted.published:,}",
        "acknowledged": f"{wanted.acknowledged:,}",
        "dead-lettered": f"{wanted.dead_lettered:,}",
        "order violations": "0",
        "at most one in flight per shard": "held",
        "lost": "0",
    }


def test_demo() -> None:
    done = run("--count", "2000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    shown = table(done.stdout)
    assert shown == {**numbers(2000), "redelivered": shown["redelivered"]}
    assert "flights-shard-7  running" in done.stdout


def test_the_verdict_as_json() -> None:
    done = run("--count", "500", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["good"], found["mistakes"], found["lost"]) == (True, [], 0)
    assert found["published"] == 500


def test_other_shards_and_a_kept_store(tmp_path: Path) -> None:
    store = tmp_path / "kept"
    done = run("--count", "300", "--shards", "3", "--store", str(store))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in store.iterdir()} == {"demo.log", "jetstream", "journals"}
    shards = {
        event.shard for _, event in read_all(store / "journals") if isinstance(event, Started)
    }
    assert shards == {0, 1, 2}
    again = run("--count", "300", "--store", str(store))
    assert again.returncode == 2
    assert "not empty" in again.stderr


@pytest.mark.slow
def test_chaos(tmp_path: Path) -> None:
    store = tmp_path / "kept"
    done = run("--chaos", "--count", "3000", "--seed", "7", "--store", str(store))
    logs = "".join(path.read_text() for path in store.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    shown = table(done.stdout)
    assert shown == {
        **numbers(3000),
        "redelivered": shown["redelivered"],
        "server killed": "3 times",
        "consumer process killed": "2 times",
    }
    events = read_all(store / "journals")
    assert len({who for who, event in events if isinstance(event, Started)}) >= 3
    # The kills met handlers at work, or they would have proved nothing about redelivery.
    begun = {(who, e.sequence) for who, e in events if isinstance(e, Started)}
    ended = {(who, e.sequence) for who, e in events if isinstance(e, Ended)}
    assert begun - ended
    assert int(shown["redelivered"]) >= len(begun - ended)


# ------------------------------------------------------------------------------ leaving


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A chaos run in the middle of its work, and all processes below it."""
    with subprocess.Popen(
        command("--chaos", "--work-ms", "20"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Its temporary folders go where pytest removes them, also after SIGKILL.
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        below: list[psutil.Process] = []
        try:
            assert process.stdout is not None
            while not re.search(r"handled [1-9]", process.stdout.readline()):
                assert process.poll() is None
            below = psutil.Process(process.pid).children(recursive=True)
            # Two consumer processes, the server, and its guard.
            assert len(below) >= 4
            yield process, below
        finally:
            process.kill()
            for child in below:
                if child.is_running():
                    child.kill()
            process.communicate()


def gone(processes: list[psutil.Process]) -> bool:
    """A zombie is gone: whether it is reaped is up to this machine's init."""
    return not [
        process
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_ends_everything(
    running: tuple[subprocess.Popen[str], list[psutil.Process]], number: signal.Signals
) -> None:
    process, below = running
    process.send_signal(number)
    _, error = process.communicate(timeout=40)
    assert process.returncode == 130
    assert error == "shove-actors: interrupted\n"
    assert gone(below)


def test_nothing_survives_a_kill(
    running: tuple[subprocess.Popen[str], list[psutil.Process]],
) -> None:
    process, below = running
    process.kill()
    wait_until_sync(lambda: gone(below), timeout=30)
