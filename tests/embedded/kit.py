"""Scripts, requests and processes for tests of the embedded server."""

from __future__ import annotations

from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


def is_gone(pid: int) -> bool:
    """Whether the process has ended. A zombie has; if it is an orphan, reaping is init's duty."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def children() -> set[int]:
    """Children of this process, unreaped ones included."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
