"""However the block of an embedded server ends, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from shove_actors.embedded import embedded_server
from tests.support import wait_until, wait_until_sync

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup
from .kit import ROOT, is_gone, script

pytestmark = pytest.mark.server


async def test_an_exception_leaves_the_block_as_it_is() -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with embedded_server() as server:
            raise error
    assert caught.value is error
    assert caught.value.__context__ is None
    assert is_gone(server.pid)


async def test_a_group_leaves_the_block_as_it_is() -> None:
    error = ValueError("one")
    with pytest.raises(ExceptionGroup) as caught:
        async with embedded_server():
            raise ExceptionGroup("mine", [error])
    # Trio's scopes rebuild groups; no level may be added or lost.
    assert caught.value.message == "mine"
    assert caught.value.exceptions == (error,)


async def test_cancelled_in_the_block() -> None:
    with trio.CancelScope() as scope:
        async with embedded_server() as server:
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert is_gone(server.pid)


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 6, 10, 15, 20, 30, 50])
async def test_cancelled_while_starting(milliseconds: int) -> None:
    with trio.move_on_after(milliseconds / 1000):
        async with embedded_server():
            await trio.sleep_forever()


@pytest.mark.parametrize("milliseconds", [1, 3, 6, 10, 15, 20, 30])
async def test_cancelled_while_restarting(milliseconds: int) -> None:
    async with embedded_server() as server:
        first = server.pid
        with trio.move_on_after(milliseconds / 1000) as scope:
            await server.restart()
        # Either it came back, or none is running: never a half-started one.
        assert server.running is not scope.cancelled_caught
        assert is_gone(first)
        await server.restart()
        assert server.running


async def test_left_while_the_supervisor_is_restarting() -> None:
    async with embedded_server() as server:
        os.kill(server.pid, signal.SIGKILL)
        await wait_until(lambda: not server.running)


async def test_the_guard_may_be_killed() -> None:
    async with embedded_server() as server:
        os.kill(server._launch.guard.pid, signal.SIGKILL)
        await server.restart()
        assert server.running


PARENTS = {
    "trio": """
import sys, trio
from shove_actors.embedded import embedded_server
async def main():
    async with embedded_server() as server:
        print(server.pid, server._launch.guard.pid, server._launch.private_dir, flush=True)
        await trio.sleep_forever()
trio.run(main)
""",
    "sync": """
import time
from shove_actors.embedded import ServerProcess
with ServerProcess() as server:
    print(server.pid, server._launch.guard.pid, server._launch.private_dir, flush=True)
    time.sleep(600)
""",
    # The thread that started the server has ended long before the process does.
    "thread": """
import threading, time
from shove_actors.embedded import ServerProcess
server = ServerProcess()
thread = threading.Thread(target=server.__enter__)
thread.start()
thread.join()
time.sleep(0.5)
assert server.running
print(server.pid, server._launch.guard.pid, server._launch.private_dir, flush=True)
time.sleep(600)
""",
}


@pytest.mark.parametrize("parent", sorted(PARENTS))
@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_nothing_is_left_behind_when_the_parent_is_killed(
    parent: str, paused: bool, private_temp: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENTS[parent]],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(private_temp)},
        text=True,
    )
    try:
        assert process.stdout is not None
        server_pid, guard_pid, directory = process.stdout.readline().split()
        assert not is_gone(int(server_pid))
        assert Path(directory).is_dir()
        if paused:
            os.kill(int(server_pid), signal.SIGSTOP)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    wait_until_sync(lambda: is_gone(int(server_pid)) and is_gone(int(guard_pid)))
    assert not Path(directory).exists()


def test_nothing_is_left_behind_when_the_parent_is_killed_while_starting(
    tmp_path: Path, private_temp: Path
) -> None:
    sleeper = script(
        tmp_path / "sleeper",
        f"echo $$ > {tmp_path}/pid.new\nmv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 600",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", PARENTS["sync"]],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(private_temp), "SHOVE_NATS_SERVER": str(sleeper)},
    )
    try:
        wait_until_sync((tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        assert not is_gone(pid)
    finally:
        process.kill()
        process.wait()
    wait_until_sync(lambda: is_gone(pid) and not list(private_temp.iterdir()))


def test_a_gate_that_is_never_released_starts_nothing(tmp_path: Path) -> None:
    from shove_actors.embedded._guard import Gate, gated

    gate = Gate()
    process = subprocess.Popen(
        gated(["/usr/bin/touch", str(tmp_path / "ran")]), stdin=gate.child_end
    )
    gate.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    assert process.returncode == 1
    assert not (tmp_path / "ran").exists()


async def test_ctrl_c_in_a_terminal_does_not_reach_the_server() -> None:
    async with embedded_server() as server:
        assert os.getsid(server.pid) != os.getsid(0)
        assert os.getsid(server._launch.guard.pid) != os.getsid(0)
