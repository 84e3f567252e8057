"""`simulate-autoscaler` prints what the library's own decisions lead to."""

from __future__ import annotations

import json

import pytest

from shove_actors.cli import main
from shove_actors.cli._simulate import flights_by_minute


@pytest.mark.parametrize("load", ["step", "burst", "sawtooth", "flights"])
@pytest.mark.parametrize("strategy", ["threshold", "proportional"])
def test_every_load_with_every_strategy(
    load: str, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["simulate-autoscaler", "--load", load, "--strategy", strategy, "--days", "1"]
    # Flights are few a minute: at ten seconds each they need more than one consumer.
    service = ["--service", "10"] if load == "flights" else []
    assert main([*arguments, *service]) == 0
    text = capsys.readouterr().out
    assert "consumers |" in text
    assert " -> " in text, "nothing was scaled"


def test_json_has_every_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate-autoscaler", "--load", "burst", "--max", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {sample["consumers"] for sample in found["samples"]} == {1, 2, 3}
    assert found["changes"][0][1:] == [1, 2]
    assert found["samples"][-1]["pending"] == 0


def test_the_flights_are_all_there() -> None:
    month = flights_by_minute(31)
    assert sum(month) == 27_004
    assert len(month) == 31 * 24 * 60


@pytest.mark.parametrize(
    "wrong",
    [["--min", "5", "--max", "2"], ["--service", "3600", "--max", "1"]],
)
def test_numbers_that_make_no_sense_are_one_line(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate-autoscaler", *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("value", ["inf", "nan", "1e9", "-1", "1e-9", "x"])
@pytest.mark.parametrize("option", ["--service", "--poll-interval", "--hysteresis", "--cooldown"])
def test_what_would_not_end_is_refused_by_the_name_of_its_option(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if value == "1e-9" and option in ("--hysteresis", "--cooldown"):
        value = "1e300"
    with pytest.raises(SystemExit) as caught:
        main(["simulate-autoscaler", option, value])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert f"'{option}'" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--days", "99999"), ("--max", "1000000000"), ("--min", "1001"), ("--takes", "1e9")],
)
def test_ranges_of_whole_numbers(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["simulate-autoscaler", option, value])
    assert caught.value.code == 2
    assert f"'{option}'" in capsys.readouterr().err


def test_a_load_that_is_never_drained_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--load", "step", "--service", "3600", "--max", "1"]
    assert main(["simulate-autoscaler", *wrong]) == 2
    error = capsys.readouterr().err
    assert "messages are left" in error
    assert "--service" in error
