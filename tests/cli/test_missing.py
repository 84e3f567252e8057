"""Without the extra `cli`: it says what to install, and nothing else happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HIDE = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Hide())
"""


def without(*hidden: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """As if these packages were not installed."""
    program = HIDE.format(hidden=hidden) + (
        f"sys.argv = ['shove-actors', *{arguments!r}]\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name in "
        f"{hidden!r} else real(name, *a)\n"
        "from shove_actors.__main__ import main\n"
        "sys.exit(main())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("arguments", [[], ["demo"], ["--version"]], ids=["nothing", "demo", "v"])
def test_without_click(arguments: list[str]) -> None:
    done = without("click", arguments=arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "shove-actors: the command line needs click, which is not installed. "
        "Install it with: pip install 'shove-actors[cli]'\n"
    )


def test_without_rich_only_the_live_views_are_missing() -> None:
    done = without("rich", arguments=["tree", "--memory"])
    assert (done.returncode, done.stderr) == (0, "")
    done = without("rich", arguments=["top", "--once"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("pip install 'shove-actors[cli]'\n")
    assert done.stderr.count("\n") == 1


def test_the_library_needs_neither() -> None:
    program = (
        "import shove_actors, sys\n"
        "for name in shove_actors.__all__:\n    getattr(shove_actors, name)\n"
        "assert not {'click', 'rich'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
