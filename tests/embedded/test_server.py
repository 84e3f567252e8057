"""The embedded server: who answers, what survives, and who starts it again."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
import trio.testing

from shove_actors._errors import EmbeddedServerError
from shove_actors.embedded import EmbeddedServer, ServerProcess, embedded_server
from shove_actors.embedded._facts import ServerFacts
from tests.support import wait_until

from .kit import is_gone, script

pytestmark = pytest.mark.server


LINUX = sys.platform.startswith("linux")


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
