"""The pytest fixtures that start a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .kit import ROOT

pytestmark = pytest.mark.server


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
