"""`shove-actors run`: what an application may be, signals, drain, exit codes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shove_actors.cli import _running
from shove_actors.embedded import ServerProcess

from .kit import LONG_S, Cli, started

pytestmark = pytest.mark.server

APPS = "tests.cli.apps.services"
CARELESS = "    await b.publisher().publish(nowhere, 'x')".replace("'", '"')


@contextmanager
def app(
    name: str, *options: str, url: str | None = None, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    where = ("--memory",) if url is None else ("--url", url)
    with started("run", f"{APPS}:{name}", *where, *options, environment=environment) as process:
        yield process


def until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.rstrip("\n") == line:
            return
    assert process.stderr is not None
    raise AssertionError(f"it ended without {line!r}: {process.stderr.read()}")


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    return process.wait(timeout=LONG_S), out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_group_drains_on_a_signal(
    server: ServerProcess, fresh_queue: Callable[[], str], number: signal.Signals
) -> None:
    names = {"SHOVE_TEST_QUEUE": fresh_queue(), "SHOVE_TEST_ORDERS": "a slow"}
    with app("group", url=server.url, **names) as process:
        until(process, "handled slow")
        process.send_signal(number)
        code, out, err = end(process)
    assert (code, out) == (0, "slow is done\n")
    assert f"{number.name}: stopping" in err
    assert "Traceback" not in err


def test_the_drain_timeout_is_exit_code_3() -> None:
    with app("group", "--drain-timeout", "0.1", SHOVE_TEST_ORDERS="stuck") as process:
        until(process, "handled stuck")
        process.terminate()
        assert end(process)[0] == 3


def test_a_second_signal_ends_it_at_once() -> None:
    with app("group", "--drain-timeout", "600", SHOVE_TEST_ORDERS="stuck") as process:
        until(process, "handled stuck")
        process.terminate()
        assert process.stderr is not None
        for line in process.stderr:
            if "SIGTERM: stopping" in line:
                break
        process.terminate()
        assert end(process)[0] == 3


@pytest.mark.parametrize("name", ["two_groups", "ticker", "with_nursery"])
def test_several_things_at_once_end_in_order(name: str) -> None:
    with app(name, SHOVE_TEST_ORDERS="a") as process:
        until(process, "handled a")
        process.terminate()
        code, _, err = end(process)
    assert code == 0, err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["SPEC", "specs"])
def test_actors_stop_in_order(name: str) -> None:
    with app(name) as process:
        until(process, "up")
        process.terminate()
        code, out, err = end(process)
    assert (code, out) == (0, "stopping\n"), err


def test_actors_that_give_up() -> None:
    with app("CRASHING") as process:
        code, _, err = end(process)
    assert code == 1
    assert "Traceback" not in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [("for_ever", (), 0), ("tidy", (), 0), ("untidy", ("--drain-timeout", "0.1"), 3)],
)
def test_functions_that_run_until_a_signal(name: str, options: tuple[str, ...], code: int) -> None:
    with app(name, *options) as process:
        until(process, "up")
        process.terminate()
        found, out, err = end(process)
    assert (found, out) == (code, "stopping\n" if name == "tidy" else ""), err


@pytest.mark.parametrize(("name", "code", "said"), [("plain", 7, "plain"), ("not_async", 0, "not")])
def test_functions_that_need_no_broker(cli: Cli, name: str, code: int, said: str) -> None:
    assert said in cli.run("run", f"{APPS}:{name}", code=code)


def test_the_outcome_of_a_group_is_the_exit_code(cli: Cli) -> None:
    assert cli.run("run", f"{APPS}:own_run", "--memory") == ""


def test_the_application_s_own_exception_is_its_traceback(cli: Cli) -> None:
    with app("broken") as process:
        code, _, err = end(process)
    assert code == 1
    assert "ZeroDivisionError: mine" in err
    assert "in broken" in err


def test_a_topic_that_is_not_declared_is_one_line(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    quiet = ("--log-level", "warning")
    with app("undeclared", *quiet, url=server.url, SHOVE_TEST_QUEUE=fresh_queue()) as process:
        code, _, err = end(process)
    assert code == 1, "the command line was right"
    assert err.count("\n") == 1
    assert "declare" in err


def test_an_error_of_the_library_is_told_with_its_place_in_the_application(
    server: ServerProcess, fresh_queue: Callable[[], str]
) -> None:
    quiet = ("--log-level", "warning")
    with app("careless", *quiet, url=server.url, SHOVE_TEST_QUEUE=fresh_queue()) as process:
        code, _, err = end(process)
    assert code == 1
    assert err.count("\n") == 1
    line = (Path(__file__).parent / "apps/services.py").read_text().splitlines().index(CARELESS)
    assert err.endswith(f"services.py:{line + 1})\n")


def test_no_server_is_one_line(cli: Cli) -> None:
    error = cli.error("run", f"{APPS}:group", "--url", "nats://127.0.0.1:1", code=1)
    assert "127.0.0.1:1" in error


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("services", "write module:name"),
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("tests.cli.apps.missing:app", "there is no module 'tests.cli.apps.missing'"),
        (f"{APPS}:groop", "has no 'groop'. It has: say, handle, group, "),
        (f"{APPS}:NOTHING", "is an int"),
        (f"{APPS}:ORDERS", "is a Topic"),
        (f"{APPS}:strange", "the parameter 'colour'"),
        (f"{APPS}:returns_text", "returned a str"),
    ],
)
def test_what_cannot_be_run(cli: Cli, target: str, said: str) -> None:
    assert said in cli.error("run", target, "--memory", code=2)


def test_the_worst_outcome_counts() -> None:
    """`max` of exit codes is the worst one, as in an outcome."""
    assert _running.ExitCode.CLEAN < _running.ExitCode.ERROR < _running.ExitCode.PANIC
    assert _running.ExitCode.PANIC < _running.ExitCode.DRAIN_TIMEOUT
