"""What was typed and what is broken in a module, told without passwords and frames of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shove_actors.__main__ import main
from shove_actors.cli._masked import masked

from .kit import Cli

SECRET = "se.sam3"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["doctor", "--monitor", f"bob:{SECRET}@x"], 2),
        (["doctor", f"--monitor=bob:{SECRET}@x"], 2),
        (["doctor", "--monitor", f"http://bob:{SECRET}@127.0.0.1:1"], 1),
        (["doctor", f"nats://bob:{SECRET}@h:1"], 2),
        (["dlq", "list", f"nats://bob:{SECRET}@h:1"], 2),
        (["dlq", "list", f"bob:{SECRET}@h"], 2),
        (["run", f"nats://bob:{SECRET}@h:1"], 2),
        (["topology", "plan", f"nats://{SECRET}@h:1"], 2),
        (["topology", "plan", f"nats://bob:{SECRET}@h:1"], 2),
        (["top", "--once", "--url", f"nats://bob:{SECRET}@127.0.0.1:1"], 1),
        (["top", "--once", "--url", f"{SECRET}@127.0.0.1:1"], 1),
        (["demo", "--count", f"nats://bob:{SECRET}@h:1"], 2),
        ([f"nats://bob:{SECRET}@h:1"], 2),
        (["dlq", "purge", "q", "--limit", f"nats://bob:{SECRET}@h:1"], 2),
    ],
    ids=range(14),
)
def test_no_password_is_repeated(cli: Cli, arguments: list[str], code: int) -> None:
    error = cli.error(*arguments, code=code)
    for piece in (SECRET, "sam3"):
        assert piece not in error


def test_what_is_no_password_is_repeated() -> None:
    text = "key 'ann@example.com' is not poisoned"
    assert masked(text, ["poisoned", "release", "q", "ann@example.com"]) == text
    assert masked("x o'k y", ["--url", "o'k@host"]) == "x *** y"
    assert masked(repr("a'\\b"), ["--url", "a'\\b@host"]) != repr("a'\\b")


@pytest.mark.parametrize("target", ["", ":", "a:", ":b", "a b", "a/b.py", "a.py:", ".", "a:b:c"])
def test_what_names_no_module(cli: Cli, target: str) -> None:
    assert "write module:name" in cli.error("topology", "plan", target, code=2)
    assert "write module:name" in cli.error("run", target, code=2)


BROKEN = {
    "syntax": ("x = 1\ndef f(:\n", "SyntaxError", 2),
    "missing": ("\nimport no_such_module_here\n", "ModuleNotFoundError: No module named", 2),
    "raising": ("def f():\n    1 / 0\n\n\nf()\n", "ZeroDivisionError: division by zero", 2),
    "refused": (
        "from shove_actors import TopologyBuilder\n\nTopologyBuilder('a b').build()\n",
        "TopologyError",
        3,
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_module_is_told_with_its_place(cli: Cli, kind: str, tmp_path: Path) -> None:
    text, said, line = BROKEN[kind]
    name = f"broken_{kind}"
    (tmp_path / f"{name}.py").write_text(text)
    where = f"({tmp_path / name}.py:{line})"
    folder = ["--app-dir", str(tmp_path)]
    for command in (["topology", "plan"], ["topology", "diff"], ["dlq", "list"]):
        error = cli.error(*command, f"{name}:X", *folder, code=1)
        assert said in error
        assert error.endswith(where)
    _, err = cli.both("run", f"{name}:X", *folder, code=1)
    assert said in err
    if kind == "refused":
        assert err.rstrip().endswith(where)
        return
    # The author's own frames are what helps; ours and those of the import machinery are not.
    assert f'{name}.py", line {line}' in err
    for foreign in ("importlib", "runpy", "click", str(Path("shove_actors", "cli"))):
        assert foreign not in err


def test_interrupted_while_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def imported(argv: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("shove_actors.cli._app.main", imported)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "shove-actors: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("simulate-autoscaler", 141), ("completion bash", 141), ("top", 2), ("--version", 0)],
)
def test_no_standard_output_at_all(arguments: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m shove_actors {arguments} >&-', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
