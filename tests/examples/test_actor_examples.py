"""The examples of supervision as a reader starts them, undisturbed and with actors being killed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ALONE = ["tcp_service", "crawler"]
KILLS = 6


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Warnings are errors: an example that leaks a socket fails."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", ALONE)
def test_undisturbed(name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "0 killed, 0 restarts" in done.stdout


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ALONE)
def test_nothing_is_lost_when_actors_are_killed(name: str, seed: int) -> None:
    done = run(name, "--kill-something", "--seed", str(seed))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    killed = re.findall(r"^  killed (\S+),", done.stdout, re.MULTILINE)
    restarted = re.findall(r"^  restarted (\S+),", done.stdout, re.MULTILINE)
    assert len(killed) == KILLS
    # What a client's connection belongs to ends with it; everything else comes back.
    assert {path for path in killed if "/session-" not in path} <= set(restarted)


@pytest.mark.parametrize("name", ALONE)
def test_needs_nothing_but_actors_and_trio(name: str) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import {name}\n"
        "assert not {'nats', 'msgspec', 'trio_asyncio'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ALONE)
def test_short_enough_to_be_read(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 250


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("tcp_service", "% answer)", '% (answer + (line == b"77")))'),
        ("crawler", "if 1 <= n <= PAGES]", "if 1 <= n <= PAGES and n != 77]"),
    ],
    ids=["a wrong answer", "a missing page"],
)
def test_a_wrong_result_is_exit_code_1(name: str, old: str, new: str, tmp_path: Path) -> None:
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert source.count(old) == 1
    (tmp_path / f"{name}.py").write_text(source.replace(old, new), encoding="utf-8")
    (tmp_path / "sabotage.py").write_bytes((EXAMPLES / "sabotage.py").read_bytes())
    done = run(str(tmp_path / name))
    assert done.returncode == 1, done.stdout + done.stderr


def test_nox_runs_every_declared_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both modes of each are declared, and the noxfile reads them so."""
    pytest.importorskip("nox")
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("the_noxfile", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    noxfile = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(noxfile)
    for name in ALONE:
        runs = noxfile._runs(EXAMPLES / f"{name}.py")
        assert runs == [[], ["--kill-something", "--seed", "1"]]
    assert noxfile._runs(EXAMPLES / "orders.py") == [[]]
    assert noxfile._runs(EXAMPLES / "sabotage.py") == []
