"""A launcher for the whole run, and queues on the shared server or on one of the test's own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shove_actors.embedded import ServerProcess
from shove_actors.runtime import _hold_mover

from .launcher import Launcher
from .support import World

#: Of movers in this process and in children that are told so: a killed mover's message comes back
#: this soon.
MOVER_LEASE_S = 1.0


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    log = tmp_path_factory.mktemp("launcher") / "launcher.log"
    started = Launcher(log)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(autouse=True)
def _clean_up_children(launcher: Launcher) -> Iterator[None]:
    yield
    for child in launcher.children:
        child.signal(signal.SIGKILL)
    launcher.children.clear()


@pytest.fixture
def short_mover_lease(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(_hold_mover, "ACK_WAIT_S", MOVER_LEASE_S)
    return MOVER_LEASE_S


@pytest.fixture
def world(
    launcher: Launcher, tmp_path: Path, server: ServerProcess, fresh_queue: Callable[[], str]
) -> Callable[..., World]:
    """Makes a `World` on the shared server."""

    def make(kind: str = "holds", **options: Any) -> World:
        return World(launcher, tmp_path, server.url, fresh_queue(), kind, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def own_world(
    launcher: Launcher, tmp_path: Path, own_server: ServerProcess, fresh_queue: Callable[[], str]
) -> Callable[..., World]:
    """Makes a `World` on a server of the test's own, which may be killed."""

    def make(kind: str = "holds", **options: Any) -> World:
        return World(launcher, tmp_path, own_server.url, fresh_queue(), kind, **options)  # type: ignore[arg-type]

    return make
