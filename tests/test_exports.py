"""What is public is exactly what is spelled out."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import shove_actors

PACKAGES = [
    "shove_actors",
    "shove_actors.actors",
    "shove_actors.backends",
    "shove_actors.backends.memory",
    "shove_actors.backends.nats",
    "shove_actors.embedded",
    "shove_actors.jetstream",
    "shove_actors.messaging",
    "shove_actors.runtime",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_exist_and_are_sorted_once(name: str) -> None:
    module = importlib.import_module(name)
    names = list(module.__all__)
    assert len(names) == len(set(names))
    missing = [each for each in names if not hasattr(module, each)]
    assert not missing


@pytest.mark.parametrize("name", [n for n in PACKAGES if n != "shove_actors"])
def test_every_public_name_of_a_package_is_in_all(name: str) -> None:
    """A name without an underscore that is not exported would be public by accident."""
    module = importlib.import_module(name)
    submodules = {info.name for info in pkgutil.iter_modules(module.__path__)}
    public = {n for n in vars(module) if not n.startswith("_")} - {"annotations"} - submodules
    assert public == set(module.__all__) - submodules


def test_implementation_modules_are_private() -> None:
    for info in pkgutil.walk_packages(shove_actors.__path__, "shove_actors."):
        last = info.name.rpartition(".")[2]
        # `pytest_plugin` is named by users, in `pytest_plugins = [...]`.
        if not info.ispkg and last not in ("__main__", "pytest_plugin"):
            assert last.startswith("_"), info.name


def test_public_objects_are_documented() -> None:
    undocumented = [
        name
        for name in shove_actors.__all__
        if callable(getattr(shove_actors, name)) and not getattr(shove_actors, name).__doc__
    ]
    assert not undocumented
